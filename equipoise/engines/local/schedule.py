"""Which prompts each step trains on, decided for the whole run before it starts.

TRL's sampler breaks counterfactual sets apart, and its shuffling cannot be resumed in a later
epoch. Here the run is a single pass over a list that depends on the seed alone, so a resumed run
only has to skip what is done.
"""

from collections.abc import Sequence

import numpy as np

from environments.base import PromptRecord


def plan(
    records: Sequence[PromptRecord], prompts_per_step: int, steps: int, seed: int
) -> list[int]:
    """Indices into `records`, `prompts_per_step` for each step, whole sets adjacent.

    Sets are shuffled anew for every pass over the data. Raises `ValueError` when sets differ in
    size or do not fill a step exactly.
    """
    sets = _sets(records)
    size = len(sets[0])
    if any(len(members) != size for members in sets) or prompts_per_step % size:
        raise ValueError(f"steps of {prompts_per_step} prompts cannot hold whole sets of {size}")
    rng = np.random.default_rng(seed)
    wanted = prompts_per_step * steps
    order: list[int] = []
    while len(order) < wanted:
        order += [index for s in rng.permutation(len(sets)) for index in sets[s]]
    return order[:wanted]


def _sets(records: Sequence[PromptRecord]) -> list[list[int]]:
    members: dict[str, list[int]] = {}
    for index, record in enumerate(records):
        members.setdefault(record.set_id, []).append(index)
    return list(members.values())
