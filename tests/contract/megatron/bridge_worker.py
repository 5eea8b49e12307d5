"""Megatron-Bridge's LoRA on a tiny model, by itself: what is adapted, exported and saved.

    python bridge_worker.py PACKAGES MODEL OUT < peft.json

MODEL is a folder of Hugging Face's, peft.json the section `policy.megatron_cfg.peft`. Writes
result.json, refit.safetensors and the checkpoint weights/ of the adapter into OUT.
"""

import json
import sys
from pathlib import Path

import cpu


def main(model, out, peft):
    import torch
    from megatron.bridge import AutoBridge
    from megatron.bridge.peft.lora import LoRA
    from safetensors.torch import save_file

    torch.distributed.init_process_group()
    bridge = AutoBridge.from_hf_pretrained(str(model))
    lora = LoRA(**peft)
    chunks = build(bridge, lora)
    result = {"adapted": adapted(chunks), "trained": trained(chunks)}
    move_adapters(chunks)
    save_file(exported(bridge, chunks), out / "refit.safetensors")
    bridge.save_hf_adapter(chunks, out / "adapter", lora, str(model))
    save_checkpoint(chunks, lora, model, out / "weights")
    (out / "result.json").write_text(json.dumps(result))


def build(bridge, lora, *, load_weights=True):
    """The model as one process holds it, with the layers that need no Transformer Engine."""
    from megatron.bridge.models.gpt_provider import local_layer_spec
    from megatron.core import parallel_state

    provider = bridge.to_megatron_provider(load_weights=load_weights)
    provider.transformer_layer_spec = local_layer_spec
    provider.gradient_accumulation_fusion = provider.apply_rope_fusion = False
    provider.bias_activation_fusion = provider.persist_layer_norm = False
    provider.finalize()
    if not parallel_state.model_parallel_is_initialized():
        provider.initialize_model_parallel(seed=0)
    chunks = provider.provide_distributed_model(wrap_with_ddp=False)
    return lora(chunks, training=True) if lora else chunks


def adapted(chunks):
    """Names of the modules with an adapter."""
    return [name for name, module in chunks[0].named_modules() if hasattr(module, "adapter")]


def trained(chunks):
    """How many parameters are trained."""
    return sum(p.numel() for p in chunks[0].parameters() if p.requires_grad)


def move_adapters(chunks):
    """Adapters start at zero, where one that is lost would not be missed."""
    import torch

    generator = torch.Generator().manual_seed(3)
    for parameter in chunks[0].parameters():
        if parameter.requires_grad:
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            parameter.data.copy_(values)


def exported(bridge, chunks):
    """Export the weights that a NeMo-RL worker sends to vLLM."""
    weights = bridge.export_hf_weights(chunks, show_progress=False)
    return {name: tensor.contiguous().clone() for name, tensor in weights}


def save_checkpoint(chunks, lora, model, folder):
    """As NeMo-RL's worker does, with Megatron-Bridge's own function and its own state."""
    from megatron.bridge.training import checkpointing, config
    from megatron.bridge.training.state import GlobalState
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    state = GlobalState()
    state.cfg = config.ConfigContainer(
        model=chunks[0].config,
        checkpoint=config.CheckpointConfig(save=str(folder), async_save=False),
        logger=config.LoggerConfig(),
        train=config.TrainingConfig(micro_batch_size=1, global_batch_size=1, train_iters=1),
        optimizer=OptimizerConfig(),
        ddp=DistributedDataParallelConfig(),
        scheduler=config.SchedulerConfig(),
        dataset=None,
        tokenizer=config.TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(model)
        ),
        peft=lora,
    )
    checkpointing.save_checkpoint(state, chunks, None, None, 0)


if __name__ == "__main__":
    packages, *folders = sys.argv[1:]
    cpu.prepare(packages)
    main(*map(Path, folders), json.load(sys.stdin))
