"""Checks of prompts of the fairness task, from any source."""

from collections.abc import Sequence

from data_prep.faults import named_faults
from environments.base import CONTROL_SPLIT, PromptRecord
from environments.fairness import RACES
from environments.fairness.own_cases import ATTRIBUTE


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that the environment could not score, from any source."""
    variants = [record for record in records if record.split != CONTROL_SPLIT]
    keys: set[tuple[str, object]] = set()
    duplicates = []
    for record in variants:
        variant = (record.set_id, _value(record))
        duplicates += [record.id] if variant in keys else []
        keys.add(variant)
    valueless = [r.id for r in variants if not _is_known(r)]
    caseless = [r.id for r in records if not isinstance(r.metadata.get("case"), str)]
    name = next((_attribute(record) for record in variants), "race")
    attribute = f"race ({', '.join(RACES)})" if name == "race" else name
    return named_faults(
        {
            f"prompts have no {attribute} in their metadata": valueless,
            f"prompts have the {name} of another one of their set": [] if valueless else duplicates,
            "prompts name no clinical case in their metadata": caseless,
        }
    )


def _attribute(record: PromptRecord) -> str:
    return str(record.metadata.get(ATTRIBUTE, "race"))


def _value(record: PromptRecord) -> object:
    return record.metadata.get(_attribute(record))


def _is_known(record: PromptRecord) -> bool:
    """Whether a prompt tells its value; those of a user's own cases the environment knows."""
    value = _value(record)
    return isinstance(value, str) if ATTRIBUTE in record.metadata else value in RACES
