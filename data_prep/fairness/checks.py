"""What is wrong with prompts of the fairness task, wherever they come from."""

from collections.abc import Sequence

from data_prep.faults import named_faults
from environments.base import CONTROL_SPLIT, PromptRecord
from environments.disparity import RACES


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """What the environment could not score, wherever the prompts come from."""
    variants = [record for record in records if record.split != CONTROL_SPLIT]
    seen: set[tuple[str, object]] = set()
    twice = []
    for record in variants:
        variant = (record.set_id, record.metadata.get("race"))
        twice += [record.id] if variant in seen else []
        seen.add(variant)
    unknown = [r.id for r in variants if r.metadata.get("race") not in RACES]
    caseless = [r.id for r in records if not isinstance(r.metadata.get("case"), str)]
    return named_faults(
        {
            f"prompts have no race ({', '.join(RACES)}) in their metadata": unknown,
            "prompts have the race of another one of their set": [] if unknown else twice,
            "prompts name no clinical case in their metadata": caseless,
        }
    )
