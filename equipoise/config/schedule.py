"""Plan each step's prompts and learning rate, and count all samples, before a run starts.

TRL's sampler and NeMo-RL's shuffling break counterfactual sets apart, and cannot be resumed in a
later epoch. Here the run is a single pass over a list that depends on the seed alone, so a resumed
run only has to skip what is done, and both engines train on the same prompts in the same order.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.config.schema import Config, Engine, PolicyConfig
from equipoise.files.errors import UsageError

if TYPE_CHECKING:
    import torch


def count_steps(prompts: int, prompts_per_step: int, max_steps: int, max_epochs: int) -> int:
    """`max_steps`, or fewer when `max_epochs` passes over the prompts end first."""
    return min(max_steps, max(1, max_epochs * prompts // prompts_per_step))


def total_steps(prompts: int, config: Config) -> int:
    """`grpo.max_num_steps`, or fewer when `grpo.max_num_epochs` ends first.

    `prompts` are those to train on.
    """
    grpo = config.grpo
    return count_steps(prompts, grpo.num_prompts_per_step, grpo.max_num_steps, grpo.max_num_epochs)


def plan(
    records: Sequence[PromptRecord], prompts_per_step: int, steps: int, seed: int
) -> list[int]:
    """Indices into `records`, `prompts_per_step` for each step, whole sets adjacent.

    Sets are shuffled anew for every pass over the data. What is left of a pass and does not fill
    a step is dropped: a step that joined two passes could hold a set twice, and its generations
    would be taken for one group.
    """
    members: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        members.setdefault(record.set_id, []).append(index)
    sets = list(members.values())
    per_step = prompts_per_step // len(sets[0])
    assert 0 < per_step <= len(sets), "prompts and configuration are checked"
    rng = np.random.default_rng(seed)
    sets_per_pass = len(sets) // per_step * per_step
    order: list[int] = []
    while len(order) < prompts_per_step * steps:
        order += [index for s in rng.permutation(len(sets))[:sets_per_pass] for index in sets[s]]
    return order[: prompts_per_step * steps]


# --- Samples of a run -----------------------------------------------------------------------------


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
    """Stage -> its completions, and how that number is computed."""
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


def _probe(config: Config, workload: Workload) -> tuple[int, str]:
    """Completions of the probe, see `equipoise.run.probe`."""
    settings, evaluation = config.equipoise.probe, config.equipoise.evaluation
    if not settings.prompts:
        return 0, ""
    evaluated = workload.prompts.get(evaluation.split, 0)
    searched = PROBE_GENERATIONS * settings.prompts
    greedy = 2 * evaluated  # of the untrained model and of the trained one
    blinded = evaluated * min(evaluation.generations, BLINDED_GENERATIONS) * workload.blinds
    return searched + greedy + blinded, "of trivial baselines"


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


# --- Learning rates -------------------------------------------------------------------------------
# The optimizer and its schedule, from torch, by the configuration's names.


@dataclass(frozen=True, slots=True)
class Schedule:
    """An optimizer and its schedulers; a step's rate depends only on its number."""

    optimizer: "torch.optim.Optimizer"
    scheduler: "torch.optim.lr_scheduler.LRScheduler"
    start: Mapping[str, Any]  # the scheduler's state before the first step
    first_rates: tuple[float, ...]  # of the optimizer's groups

    @classmethod
    def of(cls, model: "torch.nn.Module", policy: PolicyConfig) -> "Schedule":
        """The optimizer and the chain of schedulers of `policy`, for what is trained of a model."""
        import torch  # it takes seconds

        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = _torch_class(policy.optimizer.name)(trainable, **policy.optimizer.kwargs)
        entries = policy.scheduler or []
        chain = [
            _torch_class(entry["name"])(optimizer, **entry.get("kwargs", {}))
            for entry in entries
            if "name" in entry
        ]
        schedulers = torch.optim.lr_scheduler
        milestones = next((entry["milestones"] for entry in entries if "milestones" in entry), [])
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if len(chain) > 1:
            scheduler = schedulers.SequentialLR(optimizer, chain, milestones)
        else:
            constant = schedulers.ConstantLR(optimizer, factor=1.0, total_iters=1)
            scheduler = chain[0] if chain else constant
        rates = tuple(group["lr"] for group in optimizer.param_groups)
        return cls(optimizer, scheduler, deepcopy(scheduler.state_dict()), rates)

    def go_to(self, step: int) -> None:
        """Set the rate after `step` steps, regardless of any loaded state."""
        self.scheduler.load_state_dict(deepcopy(dict(self.start)))
        for group, rate in zip(self.optimizer.param_groups, self.first_rates, strict=True):
            group["lr"] = rate
        with _no_updates():
            for _ in range(step):
                self.scheduler.step()


def learning_rates(policy: PolicyConfig, steps: int) -> list[float]:
    """List the rates of the first `steps` steps."""
    import torch

    schedule = Schedule.of(torch.nn.Linear(1, 1), policy)
    rates = []
    with _no_updates():
        for _ in range(steps):
            rates.append(float(schedule.optimizer.param_groups[0]["lr"]))
            schedule.scheduler.step()
    return rates


@contextmanager
def _no_updates() -> Iterator[None]:
    """Silence torch's warning about scheduler steps without an update."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _torch_class(name: str) -> Any:
    """A class below torch.optim by its full name, as NeMo-RL's configuration writes it."""
    import torch

    prefix, _, last = name.rpartition(".")
    modules: Mapping[str, Any] = {
        "torch.optim": torch.optim,
        "torch.optim.lr_scheduler": torch.optim.lr_scheduler,
    }
    if prefix not in modules or not hasattr(modules[prefix], last):
        raise UsageError(
            "config.unknown-optimizer",
            f"policy: torch has no optimizer or scheduler {name}",
            "Name a class of torch.optim or torch.optim.lr_scheduler.",
        )
    return getattr(modules[prefix], last)
