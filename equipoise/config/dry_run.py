"""Figures of what a run will do, before anything is loaded.

Memory is estimated only for models whose shape is known.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from equipoise.config.checks import describe_cluster
from equipoise.config.memory import (
    layout_of,
    local_bytes,
    lora_rank,
    memory_of,
    model_shape,
    trained_parameters,
    vllm_share,
)
from equipoise.config.schedule import Workload, generations, total_generations
from equipoise.config.schema import Config, Engine
from equipoise.files.disk import in_gb


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `note` says how the value comes about."""

    label: str
    value: str
    note: str = ""


def dry_run_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    """The table of `--dry-run`: where it runs, the data, a step, and all that is generated."""
    policy, lora = config.policy, config.policy.dtensor_cfg.lora_cfg
    backend = "Megatron, " if policy.megatron_cfg.enabled else ""
    where = config.equipoise.device if engine == "local" else describe_cluster(config)
    trained = f"LoRA, rank {lora.dim}, alpha {lora.alpha}" if lora.enabled else "all weights"
    rows = [
        Row("engine", engine, where),
        Row("model", policy.model_name, f"{policy.precision}, {backend}{trained}"),
    ]
    for split, prompts in workload.prompts.items():
        note = _sets(workload.sets[split], prompts)
        rows.append(Row(f"{split} prompts", f"{prompts:,}", note))
    rows += [*_step_rows(config, engine, workload), *_total_rows(config, engine, workload)]
    if engine == "nemo_rl":
        return [*rows, *_gpu_rows(config)]
    if shape := model_shape(policy.model_name):
        gpu = config.equipoise.device != "cpu"
        minimum = local_bytes(config, shape, gpu=gpu)
        note = f"weights, gradients, optimizer; on a {'GPU' if gpu else 'CPU'}"
        rows.append(Row("memory, at least", in_gb(minimum, 1), note))
    return rows


def _sets(sets: int, prompts: int) -> str:
    plural = "" if sets == 1 else "s"
    return f"{sets:,} set{plural} of {prompts // sets}" if sets < prompts else ""


def _step_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    grpo, policy = config.grpo, config.policy
    prompts, generations = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    rollouts, batch = grpo.rollouts_per_step, policy.train_global_batch_size
    length, reply_tokens = policy.max_total_sequence_length, policy.generation.max_new_tokens
    ranks = layout_of(config).data_parallel if engine == "nemo_rl" else 1
    share, micro = batch // ranks, policy.train_micro_batch_size
    batches, note = f"{share // micro:,}", f"of {micro:,} rollouts"
    if policy.batches_by_length:  # how many there are depends on the lengths
        batches = f"<= {share:,}"
        note = f"{share:,} rollouts in batches of <= {micro * length:,} tokens"
    new_tokens = f"<= {rollouts * reply_tokens:,}"
    return [
        Row("prompts per step", f"{prompts:,}", _sets(prompts // workload.set_size, prompts)),
        Row("rollouts per step", f"{rollouts:,}", f"{generations} generations per prompt"),
        Row("updates per step", f"{rollouts // batch:,}", f"of {batch:,} rollouts"),
        Row(f"micro batches per {'rank' if ranks > 1 else 'update'}", batches, note),
        Row("tokens per step", f"<= {rollouts * length:,}", f"{length:,} per rollout"),
        Row("new tokens per step", new_tokens, f"{reply_tokens:,} per rollout"),
    ]


def _total_rows(config: Config, engine: Engine, workload: Workload) -> Iterator[Row]:
    yield Row("steps", f"{workload.steps(config):,}")
    for stage, (count, note) in generations(config, engine, workload).items():
        if count:
            yield Row(f"{stage} generations", f"{count:,}", note)
    yield Row("generations in all", f"{total_generations(config, engine, workload):,}")


def _gpu_rows(config: Config) -> Iterator[Row]:
    """The layout of NeMo-RL over the GPUs, and the memory that it takes."""
    name, layout = config.policy.model_name, layout_of(config)
    sizes = f"{layout.tensor} tensor x {layout.pipeline} pipeline x {layout.context} context"
    yield Row("GPUs that train", f"{layout.training_gpus:,}", f"a copy on {sizes}")
    yield Row("data-parallel ranks", f"{layout.data_parallel:,}", "share the batch")
    yield Row("vLLM replicas", f"{layout.replicas:,}", f"{layout.vllm_gpus} GPUs each")
    shape = model_shape(name)
    if shape is None:
        yield Row("memory per GPU", "not estimated", f"unknown: {name}")
        return
    rank, trained = lora_rank(config), trained_parameters(config, shape)
    yield Row("parameters", f"{shape.parameters:,}", "from the model's shape")
    yield Row("trained parameters", f"{trained:,}", f"LoRA of rank {rank}" if rank else "all")
    memory = memory_of(config, shape)
    parts = f"weights {in_gb(memory.weights, 1)}, gradients {in_gb(memory.gradients, 1)}"
    note = f"{parts}, optimizer {in_gb(memory.optimizer, 1)}; activations come on top"
    yield Row("memory per GPU, training", f">= {in_gb(memory.training, 1)}", note)
    weights = f"weights {in_gb(memory.vllm_weights, 1)}; caches take the rest"
    limit, utilization = config.equipoise.gpu_memory_gb, config.policy.generation.vllm_cfg
    if limit is None:
        yield Row("memory per GPU, vLLM", "not known", "equipoise.gpu_memory_gb is null")
    else:
        share = f"{utilization.gpu_memory_utilization:g} of {limit:g} GB; {weights}"
        yield Row("memory per GPU, vLLM", in_gb(vllm_share(config), 1), share)
    yield Row("memory of a node's host", f">= {in_gb(memory.host, 1)}", "and Ray's object store")
