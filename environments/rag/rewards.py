"""The reward of a rewriter's reply, as pure functions of what became of its queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from environments.rag.queries import NUMBER_OF_QUERIES, Defect

RewardName = Literal["accuracy", "gain"]
Payment = Literal["paid", "unpaid"]

#: Format reward of a reply with other text beside its three queries.
FORMAT_OF_SURPLUS = 0.5

#: The least that each reward can be.
_LOWEST = {"accuracy": 0.0, "gain": -1.0}


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """Reward terms and weights; a right answer counts 1."""

    outcome: RewardName = "gain"  #: a right answer, or less that of the plain question
    format_weight: float = Field(default=0.2, ge=0.01, le=10, description="exactly three queries")
    defect_penalty: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="for three empty, repeated or copied queries, in parts",
    )
    recall_weight: float = Field(
        default=0.0, ge=0, le=10, description="share of the relevant documents"
    )
    answer_in_query: Payment = Field(
        default="paid",
        description="unpaid: a reply whose queries name an option counts as one that found nothing",
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reply with three queries.

    `with_question` is whether the same generator was right with the question as the only query,
    None if it was not asked. `recall` is None where no document is known to be relevant. `paid` is
    whether the answer and what was found count.
    """

    correct: bool
    with_question: bool | None
    recall: float | None
    defects: Sequence[Defect | None]
    surplus: bool
    paid: bool = True


def reward_components(outcome: Outcome, name: RewardName) -> dict[str, float]:
    """The terms of a reward before their weights.

    `accuracy` is 1 or 0. `gain` is accuracy minus that of the plain question: -1, 0 or 1. GRPO
    subtracts the mean of a prompt's generations, which share their question, so both have the same
    advantages; the gain is what a reader wants to see and what a critic would need.
    """
    accuracy = float(outcome.correct and outcome.paid)
    terms = {
        "format": FORMAT_OF_SURPLUS if outcome.surplus else 1.0,
        name: accuracy if name == "accuracy" else accuracy - float(bool(outcome.with_question)),
        "defects": sum(defect is not None for defect in outcome.defects) / NUMBER_OF_QUERIES,
    }
    return terms if outcome.recall is None else terms | {"recall": outcome.recall * outcome.paid}


def reward_value(terms: dict[str, float], settings: RewardSettings) -> float:
    """The weighted sum of `reward_components`."""
    return (
        terms[settings.outcome]
        + settings.format_weight * terms["format"]
        + settings.recall_weight * terms.get("recall", 0.0)
        - settings.defect_penalty * terms["defects"]
    )


def broken_value(settings: RewardSettings) -> float:
    """The reward of a reply that is not three queries.

    It is that of the worst one that is, without its format reward: strictly below every other.
    """
    return _LOWEST[settings.outcome] - settings.defect_penalty
