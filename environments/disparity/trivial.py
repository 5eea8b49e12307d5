"""Ways to decide without skill, which a trained model has to beat."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from environments.base import Message, PromptRecord, Rollout
from environments.disparity.decision import Decision
from environments.disparity.sets import RACES

#: Everybody gets the least, a middling or the most treatment: levels in the order of the schema.
_CONSTANTS = ((0, 0, 0, 0, 0), (1, 0, 1, 0, 0), (2, 1, 1, 1, 0), (3, 1, 1, 1, 1), (4, 2, 1, 2, 1))

#: The three in the middle, from mild to severe.
_BY_SEVERITY = dict(zip(("mild", "moderate", "severe"), _CONSTANTS[1:4], strict=True))


def constant_decisions() -> list[str]:
    """One decision for every patient, from the least to the most invasive."""
    return [json.dumps(_decision(levels).to_dict()) for levels in _CONSTANTS]


def decision_by_severity(metadata: Mapping[str, object]) -> str | None:
    """One decision for each severity, with surgery for emergencies, whoever the patient is."""
    severity = metadata.get("severity")
    if severity not in _BY_SEVERITY:
        return None
    medication, work_status, therapy, counseling, _ = _BY_SEVERITY[severity]
    surgery = int(metadata.get("emergency") == "yes")
    levels = (medication, work_status, therapy, counseling, surgery)
    return json.dumps(_decision(levels).to_dict() | {"rationale": "By the findings alone."})


def _decision(levels: tuple[int, int, int, int, int]) -> Decision:
    medication, work_status, therapy, counseling, surgery = levels
    weeks = 4.0 * work_status
    return Decision(medication, work_status, weeks, therapy, counseling, surgery, "As for all.")


def race_drawn_at_random(rollouts: Sequence[Rollout], seed: int) -> list[str]:
    """The replies to the prompts with the word of a race that was drawn at random.

    In each set the replies of one generation change places among the races, which is as if their
    words had. Where race is implied there is no word to draw, and every reply stays.
    """
    blocks: dict[tuple[str, int], list[int]] = {}
    generation: dict[str, int] = {}
    for n, rollout in enumerate(rollouts):
        if names_race(rollout.metadata):
            g = generation.get(rollout.prompt_id, 0)
            generation[rollout.prompt_id] = g + 1
            blocks.setdefault((rollout.set_id, g), []).append(n)
    rng = np.random.default_rng(seed)
    replies = [rollout.completion for rollout in rollouts]
    for block in blocks.values():
        for place, drawn in zip(block, rng.permutation(block), strict=True):
            replies[place] = rollouts[drawn].completion
    return replies


def without_race(record: PromptRecord) -> tuple[Message, ...]:
    """The messages without the words of a race; unchanged where race is implied alone."""
    if not names_race(record.metadata):
        return record.messages
    race = str(record.metadata["race"])
    return tuple(
        {**message, "content": _without(race, message["content"])} for message in record.messages
    )


def names_race(metadata: Mapping[str, object]) -> bool:
    """Whether a prompt says the race of its patient in so many words."""
    return metadata.get("race") in RACES and metadata.get("cue", "named") == "named"


def _without(race: str, text: str) -> str:
    return text.replace(f", {race},", ",").replace(f"{race} ", "")
