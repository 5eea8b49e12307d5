"""Llamas of any size in Megatron's torch_dist, by torch's own writer, for memory and speed."""

import itertools
import json

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from transformers import LlamaConfig

HEAD = 64
_NUMBERS = torch.randn(2**22 + 1, generator=torch.Generator().manual_seed(7)).mul(0.02).bfloat16()


class Stack(torch.Tensor):
    """A tensor of random numbers that is made chunk by chunk, when it is written."""

    def __new__(cls, *shape, chunk=None):
        stack = torch.empty(shape, dtype=torch.bfloat16, device="meta").as_subclass(cls)
        stack.sizes = torch.Size(chunk or shape)
        return stack

    def part(self, offsets):
        """The chunk that begins there; each has other numbers."""
        count, begin = self.sizes.numel(), sum(offsets) % 1000
        numbers = _NUMBERS[begin:].repeat(-(-count // (len(_NUMBERS) - begin)))
        return numbers[:count].reshape(self.sizes)

    def __create_write_items__(self, name, _):
        properties = TensorProperties(dtype=torch.bfloat16)
        return [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offsets, self.sizes), properties, self.shape
                ),
            )
            for offsets in self.places()
        ]

    def places(self):
        """Offsets of the chunks."""
        steps = zip(self.shape, self.sizes, strict=True)
        return list(map(torch.Size, itertools.product(*(range(0, n, step) for n, step in steps))))

    def __get_tensor_shard__(self, index):
        return self.part(index.offset)


def shape(layers, hidden, inner, vocabulary):
    """A Llama with four times as many heads as groups."""
    return LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocabulary,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=hidden // HEAD // 4,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )


def megatron_tensors(config, *, stacked=False):
    """A chunk for each layer, gate and up apart, as megatron-core has it; or one, `stacked`."""
    layers, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * HEAD

    def stack(*below, parts=1):
        chunk = (1, below[0] // parts, *below[1:])
        return Stack(layers, *below, chunk=None if stacked else chunk)

    attention, mlp = "decoder.layers.self_attention", "decoder.layers.mlp"
    return {
        "embedding.word_embeddings.weight": Stack(config.vocab_size, hidden),
        f"{attention}.linear_qkv.layer_norm_weight": stack(hidden),
        f"{attention}.linear_qkv.weight": stack(rows, hidden),
        f"{attention}.linear_proj.weight": stack(hidden, hidden),
        f"{mlp}.linear_fc1.layer_norm_weight": stack(hidden),
        f"{mlp}.linear_fc1.weight": stack(2 * inner, hidden, parts=2),
        f"{mlp}.linear_fc2.weight": stack(hidden, inner),
        "decoder.final_layernorm.weight": Stack(hidden),
        "output_layer.weight": Stack(config.vocab_size, hidden),
    }


def save_megatron(config, folder, *, stacked=False):
    """The folders iter_0000000 of a model and base of its configuration."""
    tensors = megatron_tensors(config, stacked=stacked)
    iteration = folder / "iter_0000000"
    dcp.save(tensors, checkpoint_id=iteration)
    torch.save({}, iteration / "common.pt")  # Megatron-Bridge asks for it
    (iteration / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    config.save_pretrained(folder / "base")
