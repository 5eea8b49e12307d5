"""Megatron-Bridge's own conversion of one model, on a CPU; run by the Python that has it.

    python bridge_script.py import MODEL DESTINATION
    python bridge_script.py export CHECKPOINT MODEL DESTINATION

That Python need not have Equipoise. MODEL is a folder of Hugging Face's, of which `export` reads
config.json alone; CHECKPOINT is an `iter_N` in torch_dist. The last line that is printed is JSON:
the versions of Megatron's packages.

Megatron-Bridge's one-call functions want NCCL and a GPU, its single steps do not. Transformer
Engine's layers need a GPU even to be built, so the weights pass through the layers of megatron-core
itself, which have the same names in a checkpoint, and run_config.yaml names the ones it would have.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

#: The weights of one file, in bytes.
_SHARD_BYTES = 5 * 10**9
_SPREAD = "model-{:05}.safetensors"
#: What needs Transformer Engine or Apex, and does nothing for weights.
_FUSIONS = ("apply_rope_fusion", "gradient_accumulation_fusion", "persist_layer_norm")
_OF_WORDS = ("word_embeddings.weight", "output_layer.weight")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
#: Megatron-core's settings that change what a model computes, besides its vocabulary.
_FORWARD = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "normalization", "layernorm_epsilon", "activation_func", "gated_linear_unit"),
    *("position_embedding_type", "rotary_base", "rotary_percent", "rotary_interleaved"),
    *("rope_scaling", "rope_scaling_factor", "seq_len_interpolation_factor", "window_size"),
    *("softmax_scale", "softmax_type", "share_embeddings_and_output_weights", "qk_layernorm"),
    *("add_qkv_bias", "num_moe_experts", "moe_router_topk", "moe_router_score_function"),
)
_PACKAGES = ("megatron-bridge", "megatron-core")


def import_model(model: Path, destination: Path) -> None:
    """Write the model as a folder with an `iter_0000000` of Megatron's."""
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.model_load_save import temporary_distributed_context

    with temporary_distributed_context(backend="gloo"):
        bridge = AutoBridge.from_hf_pretrained(str(model), trust_remote_code=False)
        provider = bridge.to_megatron_provider(load_weights=True)
        chunks, originals = build(provider)
        for name, value in originals.items():
            setattr(chunks[0].config, name, value)
        has_tokenizer = any((model / name).is_file() for name in _TOKENIZERS)
        tokenizer = str(model) if has_tokenizer else None
        bridge.save_megatron_model(chunks, str(destination), hf_tokenizer_path=tokenizer)


def export_model(checkpoint: Path, model: Path, destination: Path) -> None:
    """Write the weights of the checkpoint as safetensors by Hugging Face's names."""
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.checkpointing import _load_model_weights_from_checkpoint
    from megatron.bridge.training.model_load_save import temporary_distributed_context
    from transformers import AutoConfig

    with temporary_distributed_context(backend="gloo"):
        # From config.json and not from run_config.yaml, which only the version that wrote it reads.
        bridge = AutoBridge.from_hf_config(
            AutoConfig.from_pretrained(model, trust_remote_code=False)
        )
        provider = bridge.to_megatron_provider(load_weights=False)
        provider.perform_initialization = False
        words = provider.vocab_size
        provider.vocab_size = words_of(checkpoint, words)
        chunks, _ = build(provider)
        compare_settings(checkpoint, provider, words)
        _load_model_weights_from_checkpoint(str(checkpoint), chunks)
        for name, weight in chunks[0].named_parameters():
            if name.endswith(_OF_WORDS):
                weight.data = weight.data[:words]  # without the rows that filled it up
        write(bridge.export_hf_weights(chunks, cpu=True, show_progress=False), destination)


def compare_settings(checkpoint: Path, provider: Any, words: int) -> None:
    """Exit unless the model of config.json, with so many words, is the one that was trained."""
    import yaml

    path = checkpoint / "run_config.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    stated = (settings or {}).get("model") or {}
    has = {name: getattr(provider, name, None) for name in _FORWARD} | {"vocab_size": words}
    different = [name for name in has if name in stated and plain(stated[name]) != plain(has[name])]
    if different:
        differences = "; ".join(f"{n} is {stated[n]} there and {has[n]} here" for n in different)
        sys.exit(f"{path} states another model than config.json of the base: {differences}")


def plain(value: Any) -> Any:
    """A function by its name; anything else as it is."""
    if isinstance(value, Mapping):
        return str(value.get("_target_")).rpartition(".")[2]
    return value.__name__ if callable(value) else value


def words_of(checkpoint: Path, otherwise: int) -> int:
    """The rows of the embeddings, which may be filled up."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    tensors: dict[str, Any] = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    sizes = [int(t.size[0]) for n, t in tensors.items() if n.endswith(_OF_WORDS)]
    return sizes[0] if sizes else otherwise


def build(provider: Any) -> tuple[list[Any], Mapping[str, Any]]:
    """The model in this process's memory, and what the provider had before it fitted a CPU."""
    from megatron.bridge.models.gpt_provider import default_layer_spec, local_layer_spec

    fitting: dict[str, Any] = {name: False for name in _FUSIONS if hasattr(provider, name)}
    if getattr(provider, "transformer_layer_spec", None) is default_layer_spec:
        fitting["transformer_layer_spec"] = local_layer_spec
    originals = {name: getattr(provider, name) for name in (*fitting, "use_cpu_initialization")}
    for name, value in fitting.items():
        setattr(provider, name, value)
    provider.finalize()
    chunks = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
    return chunks, originals


def write(weights: Iterator[tuple[str, Any]], destination: Path) -> None:
    """Files of limited size, and the index that names them."""
    from safetensors.torch import save_file

    destination.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    shard: dict[str, Any] = {}
    number, held = 1, 0

    def flush() -> None:
        if shard:
            save_file(shard, destination / _SPREAD.format(number))

    for name, tensor in weights:
        if held + tensor.nbytes > _SHARD_BYTES:
            flush()
            shard, number, held = {}, number + 1, 0
        shard[name] = tensor.contiguous().clone()  # tied ones share their memory
        places[name] = _SPREAD.format(number)
        held += tensor.nbytes
    flush()
    index = json.dumps({"weight_map": places})
    (destination / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def forget_gpus() -> None:
    """Answer for a CPU what Megatron asks of torch's GPU without asking whether there is one."""
    import torch

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_: None
    cuda.get_rng_state = lambda *_: torch.get_rng_state()


if __name__ == "__main__":
    forget_gpus()
    action, *folders = sys.argv[1:]
    work: Any = {"import": import_model, "export": export_model}[action]
    work(*map(Path, folders))
    print(json.dumps({name: metadata.version(name) for name in _PACKAGES}))  # noqa: T201
