"""Checks of the prompts before anything is run: for `--dry-run` and for any file."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_prep.faults import named_faults
from data_prep.pubmedqa.prompts import question_of
from data_prep.pubmedqa.published import is_official_test
from environments.base import TEST_SPLIT, TRAIN_SPLIT, PromptRecord
from environments.contract import Environment
from environments.pubmedqa import LABELS


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that do not fit this task, from any source."""
    trained = [record for record in records if record.split == TRAIN_SPLIT]
    leaked = [r.id for r in trained if is_official_test(r.id, question_of(r))]
    unanswered = [r.id for r in records if r.metadata.get("gold") not in LABELS]
    bare = [
        r.id for r in records if not all(r.metadata.get(key) for key in ("context", "question"))
    ]
    return named_faults(
        {
            "training prompts are of the official PubMedQA test set": leaked,
            f"prompts have no gold ({', '.join(LABELS)}) in their metadata": unanswered,
            "prompts have no context or no question in their metadata, with which reasons are "
            "checked": bare,
        }
    )


def check(
    settings: Any,
    records: Sequence[PromptRecord],
    environment: Environment,  # noqa: ARG001
) -> list[tuple[str, str, str]]:
    """The accuracy of one constant answer and of a perfect reader on the test split."""
    gold = Counter(record.metadata["gold"] for record in records if record.split == TEST_SPLIT)
    if not gold:
        return []
    [(label, count)] = gold.most_common(1)
    shortfall = sum(gold[answer] for answer in LABELS[settings.classes :])
    note = f"{shortfall} questions are answered maybe, which is no option" if shortfall else ""
    return [
        ("majority baseline", f"{count / gold.total():.1%}", f"always {label}, on the test split"),
        ("ceiling", f"{1 - shortfall / gold.total():.1%}", note),
    ]
