"""Sizes of a scale, shrunk for a rehearsal: everything else stays as it is resolved."""

from dataclasses import replace
from typing import Any

from equipoise.config import LOCAL_MODEL, LoadedConfig, Options, load_config
from equipoise.config.checks import largest_divisor
from equipoise.config.compose import CONFIG_FOLDER, Setting

#: As many rollouts per step as a CPU makes in about a second.
_ROLLOUTS = 64
_STEPS = 4
_PROMPTS = 320
#: Training workers: more than one, so that they must agree; no more, for each is a process.
_RANKS = 2
_STATIC = {
    # One rank holds the whole model: every worker is a data-parallel one.
    "policy.dtensor_cfg.tensor_parallel_size": 1,
    "policy.dtensor_cfg.context_parallel_size": 1,
    "policy.dtensor_cfg.expert_parallel_size": 1,
    "policy.dtensor_cfg.dp_replicate_size": 1,
    "policy.generation.vllm_cfg.tensor_parallel_size": 1,
    "policy.generation.vllm_cfg.pipeline_parallel_size": 1,
    "policy.generation.vllm_cfg.expert_parallel_size": 1,
    "cluster.num_nodes": 1,
    # Generation for which there is a stand-in on a CPU.
    "policy.generation.vllm_cfg.async_engine": False,
    "policy.generation.colocated.enabled": True,
    "policy.generation.colocated.resources": {"gpus_per_node": None, "num_nodes": None},
    "grpo.async_grpo.enabled": False,
    "grpo.max_num_steps": _STEPS,
    "grpo.val_period": _STEPS // 2,
    "checkpointing.save_period": _STEPS // 2,
    "equipoise.evaluation.generations": 4,
    "logger.wandb_enabled": False,
    "policy.tokenizer.name": "${policy.model_name}",  # which the command line may set
}


def rehearsal_config(task: str, options: Options, scale: LoadedConfig) -> LoadedConfig:
    """Load `scale` from `options` and shrink it, except keys of the command line."""
    values: dict[str, Any] = {
        # Kernels of Megatron and Triton are missing.
        "policy.megatron_cfg.enabled": False,
        "policy.dtensor_cfg.enabled": True,
        "policy.dtensor_cfg.lora_cfg.use_triton": False,
        "equipoise.stop_without_signal": False,  # it does not train
    }
    if name := scale.config.equipoise.run_name:
        values["equipoise.run_name"] = f"{name}-rehearsal"
    if scale.config.policy.model_name != LOCAL_MODEL:
        values |= _STATIC | _sizes(task, scale)
    settings = [Setting("--rehearse", key, value) for key, value in values.items()]
    return load_config(task, replace(options, settings=(*settings, *options.settings)))


def _sizes(task: str, scale: LoadedConfig) -> dict[str, Any]:
    """Set the task's tiny model with the lengths that suit it, fewer prompts, smaller batches.

    Prompts per step go down, generations per prompt stay.
    """
    # Its prompts name the files that the environment of `scale` reads.
    cache_dir = Setting("--rehearse", "equipoise.cache_dir", scale.config.equipoise.cache_dir)
    local = load_config(task, Options((CONFIG_FOLDER / "local.yaml",), settings=(cache_dir,)))
    grpo, policy, tiny = scale.config.grpo, scale.config.policy, local.config.policy
    members = scale.set_size
    sets = _ROLLOUTS // grpo.num_generations_per_prompt // members
    prompts = min(max(1, sets) * members, grpo.num_prompts_per_step)
    updates = grpo.rollouts_per_step // policy.train_global_batch_size
    batch = prompts * grpo.num_generations_per_prompt // updates
    ranks = largest_divisor(batch, min(scale.config.cluster.gpus, _RANKS))
    data = local.prompt_settings.model_dump(mode="json")
    samples = min(data.get("num_samples") or _PROMPTS, _PROMPTS)
    return {
        "policy.model_name": tiny.model_name,
        "policy.max_total_sequence_length": tiny.max_total_sequence_length,
        "policy.generation.max_new_tokens": tiny.generation.max_new_tokens,
        "policy.precision": tiny.precision,
        "equipoise.threads": local.config.equipoise.threads,
        "equipoise.data": data | {"num_samples": samples},
        "grpo.num_prompts_per_step": prompts,
        "grpo.val_batch_size": prompts,
        "grpo.max_val_samples": prompts,
        "policy.train_global_batch_size": batch,
        "policy.train_micro_batch_size": largest_divisor(
            batch // ranks, policy.train_micro_batch_size
        ),
        "cluster.gpus_per_node": ranks,
    }
