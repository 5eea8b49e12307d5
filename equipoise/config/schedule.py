"""Which prompts each step trains on, decided for the whole run before it starts.

TRL's sampler and NeMo-RL's shuffling break counterfactual sets apart, and cannot be resumed in a
later epoch. Here the run is a single pass over a list that depends on the seed alone, so a resumed
run only has to skip what is done, and both engines train on the same prompts in the same order.
"""

from collections.abc import Sequence

import numpy as np

from environments.base import PromptRecord
from equipoise.config.schema import Config


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
    would be taken for one group. Raises `ValueError` when sets differ in size or do not fill a
    step.
    """
    members: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        members.setdefault(record.set_id, []).append(index)
    sets = list(members.values())
    size = len(sets[0])
    per_step, remainder = divmod(prompts_per_step, size)
    if remainder or any(len(indices) != size for indices in sets):
        raise ValueError(f"steps of {prompts_per_step} prompts cannot hold whole sets of {size}")
    if per_step > len(sets):
        raise ValueError(f"steps of {per_step} sets need more than the {len(sets)} there are")
    rng = np.random.default_rng(seed)
    sets_per_pass = len(sets) // per_step * per_step
    order: list[int] = []
    while len(order) < prompts_per_step * steps:
        order += [index for s in rng.permutation(len(sets))[:sets_per_pass] for index in sets[s]]
    return order[: prompts_per_step * steps]
