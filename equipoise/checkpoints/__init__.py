"""Checkpoints made into other checkpoints, tensor by tensor.

sources.py          what a folder is, found by looking
hugging_face.py, dtensor.py, dcp.py    tensors of the formats, read when they are needed
parts.py            tensors that several files have a part of
megatron.py         Megatron's names and layout put into Hugging Face's
nemo.py, nemo_config.py, nemo_folder.py    NeMo's own, archive.py unpacks them
lora.py             adapters, and what they make of their base
writer.py           safetensors, one block in memory at a time
checksums.py        those that a source brings
to_megatron.py      the other way, which Megatron-Bridge goes: bridge.py, bridge_script.py
expected.py, verify.py    what a model must hold, and whether what was written is that
"""
