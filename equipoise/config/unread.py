"""Keys that a user has set and that what trains does not read."""

from collections.abc import Iterator, Mapping

from equipoise.config.checks import Engine
from equipoise.config.problems import Origin
from equipoise.config.schema import Config
from equipoise.config.validate import honoured_by_local

_LORA = "policy.dtensor_cfg.lora_cfg"
#: Of NeMo-RL's keys those that no run reads: Equipoise sets them, prompts are in equipoise.data.
_NEMO_RL = (
    *("data", "checkpointing.checkpoint_dir", "logger.log_dir", "policy.reward_model_cfg"),
    *("grpo.val_at_start", "grpo.val_at_end"),
)
#: What is read of these sections all the same; Megatron follows the optimizer's and LoRA's values.
_DATA = ("data.max_input_seq_length", "data.num_workers", "data.shuffle")
_FOLLOWED = (
    *(f"policy.optimizer.kwargs.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"{_LORA}.{name}" for name in ("enabled", "dim", "alpha", "dropout")),
    "policy.dtensor_cfg.enabled",
)
#: Generation backend -> its sections.
_GENERATION = {
    "vllm": ("vllm_cfg", "vllm_kwargs"),
    "sglang": ("sglang_cfg", "sglang_kwargs"),
    "megatron": ("mcore_generation_config",),
    "trtllm": ("trtllm_cfg", "trtllm_kwargs"),
    "dynamo": ("dynamo_cfg",),
}


def unread_warnings(config: Config, engine: Engine, origins: Mapping[str, Origin]) -> Iterator[str]:
    """Warn of the keys that the user has set and that what trains does not read."""
    trainer = f"NeMo-RL with {'Megatron' if config.policy.megatron_cfg.enabled else 'DTensor'}"
    keys = _unread_by_nemo_rl(config, origins)
    if engine == "local":
        trainer = "the local engine"
        keys = [k for k, origin in origins.items() if origin.by_user and not honoured_by_local(k)]
    if keys:
        yield f"{trainer} does not read {', '.join(keys)}"


def _unread_by_nemo_rl(config: Config, origins: Mapping[str, Origin]) -> list[str]:
    policy = config.policy
    unread, read = [*_NEMO_RL], [*_DATA]
    if policy.megatron_cfg.enabled:
        unread += ["policy.optimizer", "policy.dtensor_cfg"]
        read += _FOLLOWED
    else:
        unread.append("policy.megatron_cfg")
        read.append("policy.megatron_cfg.enabled")
    for backend, sections in _GENERATION.items():
        if backend != policy.generation.backend:
            unread += [f"policy.generation.{section}" for section in sections]
    chosen = [key for key, origin in origins.items() if origin.by_user and not origin.shipped]
    return [key for key in chosen if _lies_in(key, unread) and not _lies_in(key, read)]


def _lies_in(key: str, sections: list[str]) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in sections)
