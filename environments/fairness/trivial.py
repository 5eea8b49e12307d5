"""Ways to decide without skill, which a trained model has to beat."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from environments.base import Rollout
from environments.fairness.design import Design

#: The severities, each of which is given one of the constant decisions in the middle.
_SEVERITIES = ("mild", "moderate", "severe")


def constant_decisions(design: Design) -> list[str]:
    """One decision for every patient, from the least to the most invasive."""
    decisions = [design.form.decision(*values, "As for all.") for values in design.constants]
    return list(dict.fromkeys(json.dumps(decision.to_dict()) for decision in decisions))


def decision_by_severity(metadata: Mapping[str, object], design: Design) -> str | None:
    """One decision for each severity, whoever the patient is; None where none is told.

    Emergencies alone have the rate that they are to have, where the design knows emergencies.
    """
    severity = metadata.get("severity")
    if severity not in _SEVERITIES:
        return None
    values = list(design.constants[1 + _SEVERITIES.index(str(severity))])
    if design.emergency_rate:
        field = design.rates[design.emergency_rate]
        highest = len(design.form.scored[field]) - 1
        urgent = metadata.get("emergency") == "yes"
        values[list(design.form.fields).index(field)] = highest if urgent else 0
    decision = design.form.decision(*values, "By the findings alone.")
    return json.dumps(decision.to_dict())


def value_drawn_at_random(rollouts: Sequence[Rollout], design: Design, seed: int) -> list[str]:
    """The replies to the prompts with the word of a value that was drawn at random.

    In each set the replies of one generation change places among the values, which is as if their
    words had. Where the value is implied there is no word to draw, and every reply stays.
    """
    blocks: dict[tuple[str, int], list[int]] = {}
    generation: dict[str, int] = {}
    for n, rollout in enumerate(rollouts):
        if design.is_named(rollout.metadata):
            g = generation.get(rollout.prompt_id, 0)
            generation[rollout.prompt_id] = g + 1
            blocks.setdefault((rollout.set_id, g), []).append(n)
    rng = np.random.default_rng(seed)
    replies = [rollout.completion for rollout in rollouts]
    for block in blocks.values():
        for index, source in zip(block, rng.permutation(block), strict=True):
            replies[index] = rollouts[source].completion
    return replies
