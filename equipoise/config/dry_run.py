"""Figures of what a run will do, before anything is loaded.

Memory and time are estimated only for models whose shape is known, and say that they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from environments.base import TRAIN_SPLIT
from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.memory import (
    Layout,
    Memory,
    cached_tokens,
    estimate,
    host_bytes,
    in_gb,
    layout_of,
    least_local_bytes,
    lora_rank,
    trained_parameters,
    vllm_share,
)
from equipoise.config.models import ModelShape, model_shape
from equipoise.config.schema import Config
from equipoise.config.workload import (
    START_SECONDS,
    RunTime,
    Workload,
    generations,
    run_time,
    total,
    total_generations,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `note` says how the value comes about."""

    label: str
    value: str
    note: str = ""


def dry_run_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    """The table of `--dry-run`: where it runs, the data, a step, and all that is generated."""
    return [
        *_place_rows(config, engine),
        *_data_rows(workload),
        *_step_rows(config, engine, workload),
        *_total_rows(config, engine, workload),
        *(
            [*_gpu_rows(config), *_time_rows(config, workload)]
            if engine == "nemo_rl"
            else _local_memory_rows(config)
        ),
    ]


def _place_rows(config: Config, engine: Engine) -> list[Row]:
    policy, lora = config.policy, config.policy.dtensor_cfg.lora_cfg
    backend = "Megatron, " if policy.megatron_cfg.enabled else ""
    where = config.equipoise.device if engine == "local" else describe_cluster(config)
    trained = f"LoRA, rank {lora.dim}, alpha {lora.alpha}" if lora.enabled else "all weights"
    return [
        Row("engine", engine, where),
        Row("model", policy.model_name, f"{policy.precision}, {backend}{trained}"),
    ]


def _data_rows(workload: Workload) -> list[Row]:
    return [
        Row(f"{split} prompts", f"{count:,}", _sets_of_split(workload, split))
        for split, count in workload.prompts.items()
    ]


def _sets_of_split(workload: Workload, split: str) -> str:
    sets = workload.sets[split]
    return f"{sets:,} sets" if workload.mixed else _sets(sets, workload.prompts[split])


def _sets(sets: int, prompts: int, noun: str = "set") -> str:
    plural = "" if sets == 1 else "s"
    return f"{sets:,} {noun}{plural} of {prompts // sets}" if sets < prompts else ""


def _step_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    grpo, policy = config.grpo, config.policy
    noun = "round" if workload.mixed else "set"
    prompts, generations = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    rollouts, batch = grpo.rollouts_per_step, policy.train_global_batch_size
    length, reply_tokens = policy.max_total_sequence_length, policy.generation.max_new_tokens
    return [
        Row("prompts per step", f"{prompts:,}", _sets(prompts // workload.set_size, prompts, noun)),
        Row("rollouts per step", f"{rollouts:,}", f"{generations} generations per prompt"),
        Row("updates per step", f"{rollouts // batch:,}", f"of {batch:,} rollouts"),
        _micro_batch_row(config, layout_of(config).data_parallel if engine == "nemo_rl" else 1),
        Row("tokens per step", f"<= {rollouts * length:,}", f"{length:,} per rollout"),
        Row(
            "new tokens per step",
            f"<= {rollouts * reply_tokens:,}",
            f"{reply_tokens:,} per rollout",
        ),
    ]


def _micro_batch_row(config: Config, ranks: int) -> Row:
    """Packed or batched by length, how many there are depends on the lengths."""
    policy = config.policy
    rollouts, micro = policy.train_global_batch_size // ranks, policy.train_micro_batch_size
    where = "per rank" if ranks > 1 else "per update"
    tokens = micro * policy.max_total_sequence_length
    if policy.batches_by_length:
        note = f"{rollouts:,} rollouts in batches of <= {tokens:,} tokens"
        return Row(f"micro batches {where}", f"<= {rollouts:,}", note)
    return Row(f"micro batches {where}", f"{rollouts // micro:,}", f"of {micro:,} rollouts")


def _total_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    stages = generations(config, engine, workload)
    rows = [Row(f"{stage} generations", f"{n:,}", note) for stage, (n, note) in stages.items() if n]
    total = total_generations(config, engine, workload)
    return [
        *_first_stage(config, workload),
        Row("steps", f"{workload.steps(config):,}"),
        *rows,
        Row("generations in all", f"{total:,}"),
    ]


def _first_stage(config: Config, workload: Workload) -> Iterator[Row]:
    settings = config.equipoise.first_stage
    if settings.passes:
        replies = settings.passes * workload.prompts.get(TRAIN_SPLIT, 0)
        steps = -(-replies // settings.batch_size)
        yield Row("first stage", f"{replies:,} replies", f"distilled in {steps:,} steps")


def _gpu_rows(config: Config) -> list[Row]:
    """The layout of NeMo-RL over the GPUs, and the memory that it takes."""
    name, layout = config.policy.model_name, layout_of(config)
    shape = model_shape(name)
    if shape is None:
        return [*_layout_rows(layout), Row("memory per GPU", "not estimated", f"unknown: {name}")]
    memory = estimate(config, shape)
    return [
        *_layout_rows(layout),
        *_parameter_rows(config, shape),
        *_memory_rows(memory),
        *_vllm_rows(config, shape),
        Row(
            "host memory per node",
            f"at least {in_gb(host_bytes(config, shape), 1)}",
            "reference policy, and what takes turns with it on the GPUs",
        ),
    ]


def _local_memory_rows(config: Config) -> list[Row]:
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return []
    minimum = least_local_bytes(config, shape, gpu=config.equipoise.device != "cpu")
    return [Row("memory, at least", in_gb(minimum, 1), "weights, gradients, optimizer")]


def _layout_rows(layout: Layout) -> list[Row]:
    sizes = f"{layout.tensor} tensor x {layout.pipeline} pipeline x {layout.context} context"
    return [
        Row("GPUs that train", f"{layout.training_gpus:,}", f"a copy on {sizes}"),
        Row("data-parallel ranks", f"{layout.data_parallel:,}", "share the batch"),
        Row("vLLM replicas", f"{layout.replicas:,}", f"{layout.vllm_gpus} GPUs each"),
    ]


def _parameter_rows(config: Config, shape: ModelShape) -> list[Row]:
    trained = trained_parameters(config, shape)
    note = f"LoRA of rank {lora_rank(config)}" if lora_rank(config) else "all"
    return [
        Row("parameters", f"{shape.parameters:,}", "from the model's shape"),
        Row("trained parameters", f"{trained:,}", note),
    ]


def _memory_rows(memory: Memory) -> list[Row]:
    """The estimate and its parts with their formulas; see equipoise.config.memory."""
    parts = [Row(f"  {part.name}", in_gb(part.bytes, 1), part.formula) for part in memory.parts]
    sizes = f"{in_gb(memory.vllm_weights, 1)} of vLLM beside {in_gb(memory.weights, 1)}"
    return [
        Row("memory per GPU, training", f"~ {in_gb(memory.training, 1)}", "an estimate, in bytes:"),
        *parts,
        Row("memory per GPU, handover", f"~ {in_gb(memory.refit, 1)}", f"weights: {sizes}"),
    ]


def _vllm_rows(config: Config, shape: ModelShape) -> list[Row]:
    if config.equipoise.gpu_memory_gb is None:
        return [Row("memory per GPU, vLLM", "not known", "equipoise.gpu_memory_gb is null")]
    share, tokens = vllm_share(config), cached_tokens(config, shape)
    rollouts = tokens // config.policy.max_total_sequence_length
    utilization = config.policy.generation.vllm_cfg.gpu_memory_utilization
    return [
        Row(
            "memory per GPU, vLLM",
            in_gb(share, 1),
            f"{utilization:g} of {config.equipoise.gpu_memory_gb:g} GB; weights and cache",
        ),
        Row("rollouts at once", f"~ {rollouts:,}", f"{tokens:,} tokens fit all caches"),
    ]


def _time_rows(config: Config, workload: Workload) -> list[Row]:
    """The estimate of a step and of the run; see equipoise.config.workload."""
    estimated = run_time(config, workload)
    if isinstance(estimated, str):
        return [Row("step time", "not estimated", estimated)]
    fast, slow = estimated
    gpus = layout_of(config).gpus
    hours = f"{slow.steps:,} steps, evaluations, {START_SECONDS // 60} minutes to start"
    before = _seconds(fast.before_first_step, slow.before_first_step)
    return [
        *_part_rows(config, fast, slow),
        Row(
            "evaluation time",
            _seconds(fast.evaluation, slow.evaluation),
            f"{before} before the first step",
        ),
        Row("run time", f"~ {_between(fast.hours, slow.hours)} h", hours),
        Row("GPU hours", f"~ {_between(gpus * fast.hours, gpus * slow.hours)}", f"{gpus:,} GPUs"),
    ]


def _part_rows(config: Config, fast: RunTime, slow: RunTime) -> list[Row]:
    replies = "replies of half to all of max_new_tokens"
    parts = zip(fast.step, slow.step, strict=True)
    return [
        Row(
            "step time",
            f"~ {_seconds(total(fast.step), total(slow.step))}",
            f"an estimate, on {config.equipoise.gpu} with {replies}:",
        ),
        *(
            Row(f"  {high.name}", _seconds(low.seconds, high.seconds), high.formula)
            for low, high in parts
        ),
    ]


def _seconds(low: float, high: float) -> str:
    return f"{_between(low, high)} s"


def _between(low: float, high: float) -> str:
    """Two significant digits, for more are not known."""
    digits = [f"{float(f'{value:.2g}'):,g}" for value in (low, high)]
    return digits[0] if digits[0] == digits[1] else " to ".join(digits)
