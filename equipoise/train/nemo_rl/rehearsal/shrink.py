"""Sizes of a scale, shrunk for a rehearsal: everything else stays as it is resolved."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from equipoise.config import LOCAL_MODEL, LoadedConfig, Options, load_config
from equipoise.config.checks import largest_divisor
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.load import count_gpus
from equipoise.config.schema import Config
from equipoise.config.task_code import set_size
from equipoise.files.errors import UsageError

_LOCAL = CONFIG_FOLDER / "local.yaml"
#: As many rollouts per step as a CPU makes in about a second.
_ROLLOUTS = 64
_STEPS = 4
_PROMPTS = 320
_GENERATIONS = 4
#: Training workers: more than one, so that they must agree; no more, for each is a process.
_RANKS = 2
#: One rank holds the whole model: every worker is a data-parallel one.
_ONE = (
    "policy.dtensor_cfg.tensor_parallel_size",
    "policy.dtensor_cfg.context_parallel_size",
    "policy.dtensor_cfg.expert_parallel_size",
    "policy.dtensor_cfg.dp_replicate_size",
    "policy.generation.vllm_cfg.tensor_parallel_size",
    "policy.generation.vllm_cfg.pipeline_parallel_size",
    "policy.generation.vllm_cfg.expert_parallel_size",
    "cluster.num_nodes",
)
#: Generation for which there is no stand-in on a CPU.
_SYNCHRONOUS = {
    "policy.generation.vllm_cfg.async_engine": False,
    "policy.generation.colocated.enabled": True,
    "policy.generation.colocated.resources": {"gpus_per_node": None, "num_nodes": None},
    "grpo.async_grpo.enabled": False,
}
#: What needs kernels that a rehearsal's Python lacks: Megatron's; on a GPU FlashAttention's, for
#: which there is a substitute on a CPU; on a CPU Triton's.
_BACKEND = {"policy.megatron_cfg.enabled": False, "policy.dtensor_cfg.enabled": True}
_ON_GPUS = {"policy.sequence_packing.enabled": False}
_ON_CPU = {"policy.dtensor_cfg.lora_cfg.use_triton": False}


#: The smallest attention heads that vLLM computes.
_HEAD_SIZE = 32


@cache  # Ray's workers are started without this process's CUDA_VISIBLE_DEVICES
def on_gpus() -> bool:
    """Whether a rehearsal takes GPUs: torch sees one, and this Python has vLLM beside it."""
    if find_spec("vllm") is None:
        return False
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.is_available()


def rehearsal_config(task: str, options: Options, scale: LoadedConfig) -> LoadedConfig:
    """Load the configuration of a rehearsal of `scale`, which `options` have given.

    What the command line sets wins over what is shrunk. The local model needs no shrinking.
    """
    backend = _BACKEND | (_ON_GPUS if on_gpus() else _ON_CPU)
    settings = [_setting(key, value) for key, value in backend.items()]
    settings.append(_setting("equipoise.stop_without_signal", value=False))  # it does not train
    if name := scale.config.equipoise.run_name:
        settings.append(_setting("equipoise.run_name", f"{name}-rehearsal"))
    if scale.config.policy.model_name != LOCAL_MODEL:
        settings += _shrunk(scale, _local_scale(task, scale))
    if on_gpus():
        model = _local_scale(task, scale).local_model_settings
        assert model is not None, "a local scale has a local model"
        # Fewer, larger heads: the local model's own are too small for vLLM.
        heads = model.model_dump()["hidden_size"] // _HEAD_SIZE
        settings.append(_setting("equipoise.local_model.heads", heads))
    return load_config(task, replace(options, settings=(*settings, *options.settings)))


def _local_scale(task: str, scale: LoadedConfig) -> LoadedConfig:
    """Load the local scale, whose prompts name the files that the environment of `scale` reads."""
    cache = _setting("equipoise.cache_dir", scale.config.equipoise.cache_dir)
    local = load_config(task, Options((_LOCAL,), settings=(cache,)))
    if local.local_model_settings is None:
        raise UsageError(
            "rehearsal.no-local-model",
            f"the task {task} has no local model to rehearse with",
            "Its data module needs imitated_replies, see data_prep/contract.py.",
        )
    return local


def _shrunk(scale: LoadedConfig, local: LoadedConfig) -> list[Setting]:
    """Set the task's tiny model with the lengths that suit it, fewer prompts, smaller batches."""
    policy, size = local.config.policy, set_size(scale.environment_class, scale.env_settings)
    data = local.prompt_settings.model_dump(mode="json")
    limits = [n for n in (data.get("num_samples"), _PROMPTS) if n is not None]
    values = {
        "policy.model_name": policy.model_name,
        "policy.tokenizer.name": "${policy.model_name}",  # which the command line may set
        "policy.max_total_sequence_length": policy.max_total_sequence_length,
        "policy.generation.max_new_tokens": policy.generation.max_new_tokens,
        "equipoise.threads": local.config.equipoise.threads,
        "logger.wandb_enabled": False,
        **({} if on_gpus() else {"policy.precision": policy.precision}),
        "equipoise.data": data | {"num_samples": min(limits)},
        "equipoise.evaluation.generations": _GENERATIONS,
        **_sizes(scale.config, size),
        **dict.fromkeys(_ONE, 1),
        **_SYNCHRONOUS,
    }
    return [_setting(key, value) for key, value in values.items()]


def _sizes(config: Config, set_size: int) -> dict[str, Any]:
    """Batches in proportion: prompts per step go down, generations per prompt stay."""
    grpo, policy = config.grpo, config.policy
    sets = _ROLLOUTS // grpo.num_generations_per_prompt // set_size
    prompts = min(max(1, sets) * set_size, grpo.num_prompts_per_step)
    updates = grpo.rollouts_per_step // policy.train_global_batch_size
    batch = prompts * grpo.num_generations_per_prompt // updates
    gpus = config.cluster.gpus
    ranks = largest_divisor(batch, min(gpus, _RANKS, count_gpus() if on_gpus() else gpus))
    micro = largest_divisor(batch // ranks, policy.train_micro_batch_size)
    return {
        "grpo.num_prompts_per_step": prompts,
        "grpo.max_num_steps": _STEPS,
        "grpo.val_period": _STEPS // 2,
        "grpo.val_batch_size": prompts,
        "grpo.max_val_samples": prompts,
        "policy.train_global_batch_size": batch,
        "policy.train_micro_batch_size": micro,
        "checkpointing.save_period": _STEPS // 2,
        "cluster.gpus_per_node": ranks,
    }


def _setting(key: str, value: Any) -> Setting:
    return Setting("--rehearse", key, value)
