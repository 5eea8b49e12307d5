"""Checkpoints made into other checkpoints, tensor by tensor.

command.py    the verbs: convert, merge-lora
to_hugging_face.py, to_megatron.py    the two ways; bridge_script.py goes the second
sources.py    what a folder is, found by looking
hugging_face.py, dcp.py, megatron.py, nemo.py, lora.py    the formats, and what an adapter makes
stated.py     settings that a checkpoint states, and config.json
tensors.py, files.py    tensors and other files, read when they are needed and not trusted
writer.py     safetensors, one block in memory at a time, and the record of a conversion
verify.py     whether what was written is the model
"""
