"""Checkpoints made into other checkpoints, tensor by tensor.

What is damaged, hostile or does not fit is a `ConversionError`, which names the file and tensor.

convert.py    both ways: to Hugging Face's form, and by bridge_script.py to Megatron's
sources.py    what a folder is, found by looking
hugging_face.py, dcp.py, megatron.py    the formats
lora.py    what an adapter makes of its base: streamed, or by PEFT in memory
stated.py     settings that a checkpoint states, against config.json
tensors.py    tensors and other files, read when they are needed and not trusted
writer.py     safetensors, one block in memory at a time; the record and the card of a conversion
verify.py     the tensors that config.json asks for; whether what was written is the model
"""
