"""Checkpoints made into other checkpoints, tensor by tensor.

Damaged, hostile or unfit files raise `EquipoiseError`, which names file and tensor.

convert.py    both ways: to Hugging Face's form, and by bridge_script.py to Megatron's
sources.py    what a folder is, found by looking
hugging_face.py, dcp.py, megatron.py    the formats, and what the last states of its model
lora.py    what an adapter makes of its base: streamed, or by PEFT in memory
tensors.py    tensors and other files, read when they are needed and not trusted
verify.py     the tensors that config.json asks for; whether what was written is the model
"""
