"""Samples of a run: its prompts and the completions of every stage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.config.checks import Engine
from equipoise.config.schedule import total_steps
from equipoise.config.schema import Config
from equipoise.statistics.trivial import POLICIES


@dataclass(frozen=True, slots=True)
class Workload:
    """A task's prompts and the sets that they form, counted by split."""

    prompts: Mapping[str, int]
    sets: Mapping[str, int]
    set_size: int  # 1 when the environment needs no sets
    reference_generations: int  # per prompt; 0 when the environment needs no reference
    blinds: bool = False  # the environment can take out of a prompt what must not decide

    def steps(self, config: Config) -> int:
        return total_steps(self.prompts.get(TRAIN_SPLIT, 0), config)


def workload_of(
    records: Sequence[PromptRecord],
    set_size: int = 1,
    reference_generations: int = 0,
    *,
    blinds: bool = False,
) -> Workload:
    """Count the prompts and sets of each split."""
    prompts = Counter(record.split for record in records)
    sets = Counter(split for split, _ in {(record.split, record.set_id) for record in records})
    return Workload(prompts, sets, set_size, reference_generations, blinds=blinds)


def total_generations(config: Config, engine: Engine, workload: Workload) -> int:
    return sum(count for count, _ in generations(config, engine, workload).values())


def generations(config: Config, engine: Engine, workload: Workload) -> dict[str, tuple[int, str]]:
    """Stage -> its completions, and how they come about."""
    grpo, evaluation = config.grpo, config.equipoise.evaluation
    steps = workload.steps(config)
    rollouts = grpo.rollouts_per_step
    number = workload.reference_generations
    evaluated = workload.prompts.get(evaluation.split, 0) * evaluation.generations
    of_each = f"{evaluation.generations} of every {evaluation.split} prompt"
    return {
        "reference": (number * sum(workload.prompts.values()), f"{number} of every prompt"),
        "baseline": (evaluated, of_each),
        "probe": _probe(config, workload),
        "training": (steps * rollouts, f"{steps:,} steps of {rollouts:,}"),
        "validation": _validation(config, workload, steps) if engine == "nemo_rl" else (0, ""),
        "final": (evaluated, of_each),
    }


#: Replies of the model to a prompt of the probe, and to a blinded prompt at most.
PROBE_GENERATIONS, BLINDED_GENERATIONS = 4, 8
#: Sentences that a constant reply is made longer by, and other replies that are tried as one.
PROBE_SENTENCES, _OTHER_CONSTANTS = 24, 16
#: Policies that are scored on the evaluation's prompts at most: those of every task, the greedy and
#: the blinded model, and three of the task's own, which retrieval has.
_PROBE_POLICIES = len(POLICIES) + 2 + 3


def _probe(config: Config, workload: Workload) -> tuple[int, str]:
    """Completions of the probe, see `equipoise.train.probe`."""
    settings, evaluation = config.equipoise.probe, config.equipoise.evaluation
    if not settings.prompts:
        return 0, ""
    evaluated = workload.prompts.get(evaluation.split, 0)
    searched = PROBE_GENERATIONS * settings.prompts
    greedy = 2 * evaluated  # of the untrained model and of the trained one
    blinded = evaluated * min(evaluation.generations, BLINDED_GENERATIONS) * workload.blinds
    return searched + greedy + blinded, "of policies without skill"


def probe_replies(config: Config, workload: Workload) -> int:
    """The replies that the probe has scored without generating them, about that many at most."""
    settings = config.equipoise.probe
    tried = settings.constants + _OTHER_CONSTANTS + settings.rounds * PROBE_SENTENCES
    evaluated = workload.prompts.get(config.equipoise.evaluation.split, 0)
    return tried * settings.prompts + _PROBE_POLICIES * evaluated if settings.prompts else 0


def _validation(config: Config, workload: Workload, steps: int) -> tuple[int, str]:
    """Completions of all validations, before the first step, every `val_period` and at the end."""
    grpo = config.grpo
    available = workload.prompts.get(VALIDATION_SPLIT, 0)
    if not grpo.val_period or not available:
        return 0, ""
    times = 1 + -(-steps // grpo.val_period)
    batch = grpo.val_batch_size or available  # NeMo-RL counts batches, of which the last is partial
    prompts = min(available, (grpo.max_val_samples or available) // batch * batch)
    note = f"{times:,} times {grpo.num_generations_per_prompt} of {prompts:,} prompts"
    return times * prompts * grpo.num_generations_per_prompt, note
