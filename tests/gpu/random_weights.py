"""A model folder with the shape of a known model and random weights: memory and speed need no more.

python -m tests.gpu.random_weights FOLDER TOKENIZER SHAPE DEVICE
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from equipoise.files.model_shape import ModelShape, model_shape

#: For a CPU; its vocabulary is larger than a tokenizer's, as that of a real model may be.
TINY = ModelShape(2, 64, 128, 4, 2, 4_096, tied=True, head_size=16)


def make(folder, tokenizer_folder, shape, device):
    """Write weights in bfloat16 and a copy of the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    folder, tokenizer_folder, name, device = sys.argv[1:]
    shape = TINY if name == "tiny" else model_shape(name)
    assert shape is not None, name
    make(Path(folder), tokenizer_folder, shape, device)
