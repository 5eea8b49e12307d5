"""How a data module says what is wrong with prompts."""

from collections.abc import Mapping, Sequence


def named_faults(ids_of: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each fault that prompts have, with how many they are and the first one."""
    return [
        f"{len(ids)} {fault}: {ids[0]}{', ...' if len(ids) > 1 else ''}"
        for fault, ids in ids_of.items()
        if ids
    ]
