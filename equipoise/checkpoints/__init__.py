"""Checkpoints made into other checkpoints, tensor by tensor.

What is damaged, hostile or does not fit is a `ConversionError`, which names the file and tensor.

to_hugging_face.py, to_megatron.py    the two ways; bridge_script.py goes the second
sources.py    what a folder is, found by looking
hugging_face.py, dcp.py, megatron.py    the formats
lora.py, by_peft.py    what an adapter makes of its base: streamed, or by PEFT in memory
stated.py     NeMo 2, and settings that a checkpoint states, against config.json
tensors.py    tensors and other files, read when they are needed and not trusted
writer.py     safetensors, one block in memory at a time, and the record of a conversion
verify.py     the tensors that config.json asks for; whether what was written is the model
"""
