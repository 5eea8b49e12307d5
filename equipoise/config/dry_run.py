"""What a run will do, in numbers, before anything is loaded.

Nothing is guessed: how many parameters are trained and how long a step takes is not known before
the model is there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.base import PromptRecord
from equipoise.config.checks import Engine, describe_cluster
from equipoise.config.schema import Config
from equipoise.engines.schedule import count_steps

_TRAIN_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `note` says how the value comes about."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the task brings, by split: prompts, and the sets that they form."""

    prompts: Mapping[str, int]
    sets: Mapping[str, int]
    set_size: int  # 1 when the environment needs no sets
    reference_generations: int  # per prompt; 0 when the environment needs no reference


def workload_of(
    records: Sequence[PromptRecord], set_size: int = 1, reference_generations: int = 0
) -> Workload:
    """Count the prompts and sets of each split."""
    prompts = Counter(record.split for record in records)
    sets = Counter(split for split, _ in {(record.split, record.set_id) for record in records})
    return Workload(prompts, sets, set_size, reference_generations)


def dry_run_rows(config: Config, engine: Engine, workload: Workload) -> list[Row]:
    """The table of `--dry-run`: where it runs, the data, a step, and all that is generated."""
    return [
        *_place_rows(config, engine),
        *_data_rows(workload),
        *_step_rows(config, workload.set_size),
        *_total_rows(config, workload),
    ]


def total_steps(prompts: int, config: Config) -> int:
    """`grpo.max_num_steps`, or fewer when `grpo.max_num_epochs` ends first; at least one.

    `prompts` are those to train on.
    """
    grpo = config.grpo
    return count_steps(
        prompts, grpo.num_prompts_per_step, grpo.max_num_steps, grpo.max_num_epochs
    )


def _place_rows(config: Config, engine: Engine) -> list[Row]:
    policy, lora = config.policy, config.policy.dtensor_cfg.lora_cfg
    where = config.equipoise.device if engine == "local" else describe_cluster(config)
    trained = f"LoRA, rank {lora.dim}, alpha {lora.alpha}" if lora.enabled else "all weights"
    return [
        Row("engine", engine, where),
        Row("model", policy.model_name, f"{policy.precision}, {trained}"),
    ]


def _data_rows(workload: Workload) -> list[Row]:
    return [
        Row(f"{split} prompts", f"{count:,}", _sets(workload.sets[split], count))
        for split, count in workload.prompts.items()
    ]


def _sets(sets: int, prompts: int) -> str:
    return f"{sets:,} sets of {prompts // sets}" if sets < prompts else ""


def _step_rows(config: Config, set_size: int) -> list[Row]:
    grpo, policy = config.grpo, config.policy
    prompts, generations = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    rollouts = prompts * generations
    batch, micro = policy.train_global_batch_size, policy.train_micro_batch_size
    length, new = policy.max_total_sequence_length, policy.generation.max_new_tokens
    return [
        Row("prompts per step", f"{prompts:,}", _sets(prompts // set_size, prompts)),
        Row("rollouts per step", f"{rollouts:,}", f"{generations} generations per prompt"),
        Row("updates per step", f"{rollouts // batch:,}", f"of {batch:,} rollouts"),
        Row("micro batches per update", f"{batch // micro:,}", f"of {micro:,} rollouts"),
        Row("tokens per step", f"<= {rollouts * length:,}", f"{length:,} per rollout"),
        Row("new tokens per step", f"<= {rollouts * new:,}", f"{new:,} per rollout"),
    ]


def _total_rows(config: Config, workload: Workload) -> list[Row]:
    grpo, evaluation = config.grpo, config.equipoise.evaluation
    steps = total_steps(workload.prompts.get(_TRAIN_SPLIT, 0), config)
    rollouts = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    reference = workload.reference_generations * sum(workload.prompts.values())
    evaluated = workload.prompts.get(evaluation.split, 0) * evaluation.generations
    stages = {
        "reference": (reference, f"{workload.reference_generations} of every prompt"),
        "baseline": (evaluated, f"{evaluation.generations} of every {evaluation.split} prompt"),
        "training": (steps * rollouts, f"{steps:,} steps of {rollouts:,}"),
        "final": (evaluated, f"{evaluation.generations} of every {evaluation.split} prompt"),
    }
    rows = [Row(f"{stage} generations", f"{n:,}", note) for stage, (n, note) in stages.items() if n]
    total = sum(count for count, _ in stages.values())
    return [Row("steps", f"{steps:,}"), *rows, Row("generations in all", f"{total:,}")]
