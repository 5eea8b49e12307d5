"""Accuracy, recall and what else a rewriter shows, as functions of sums over questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel

from environments.measurement import Direction, Margin, Mean, Measurement, measure_means
from environments.presentation import Column, Finding, Presentation, ReplyTable, Words

_METRICS: Mapping[str, Direction | None] = {
    "accuracy": "higher",
    "accuracy_without_answer": "higher",
    "answer_in_query": "lower",
    "retrieval_recall": "higher",
    "on_question_rate": "higher",
    "format_rate": "higher",
    "defect_rate": "lower",
    "documents_read": None,
}
#: What must not get worse while accuracy rises, and how far it may.
_GUARDS = dict.fromkeys(
    ("answer_in_query", "retrieval_recall", "on_question_rate", "format_rate"), Margin(0.02)
)
#: What is shown of each stratum.
_BY_STRATUM = ("accuracy", "retrieval_recall", "on_question_rate")


class Observation(BaseModel, extra="forbid", frozen=True):
    """One rollout's figures; None where unknown or not applicable."""

    accuracy: float | None = None
    answer_in_query: float | None = None
    retrieval_recall: float | None = None
    on_question_rate: float | None = None
    format_rate: float | None = None
    defect_rate: float | None = None
    documents_read: float | None = None

    @property
    def accuracy_without_answer(self) -> float | None:
        """The accuracy of a reply if its queries name no option; None otherwise."""
        return self.accuracy if self.answer_in_query == 0 else None


def measure(
    prompt_ids: Sequence[str], strata: Sequence[str], observed: Sequence[Observation]
) -> Measurement:
    """The metrics over rollouts [N]; NaN where no rollout shows one. `strata` [N] is of its prompt.

    With one stratum there is nothing to break down.
    """
    names = sorted(set(strata)) if len(set(strata)) > 1 else []
    means = {(name, ""): _mean(name, observed) for name in _METRICS}
    for stratum in names:
        within = [
            o if s == stratum else Observation() for o, s in zip(observed, strata, strict=True)
        ]
        means |= {(name, stratum): _mean(name, within) for name in _BY_STRATUM}
    measurement = measure_means(prompt_ids, {"/".join(key): mean for key, mean in means.items()})
    metrics = {key: measurement.metrics["/".join(key)] for key in means}
    by_stratum = {s: {name: metrics[name, s] for name in _BY_STRATUM} for s in names}
    # The stratum of each prompt, in the order in which they come first.
    of_clusters = tuple(dict(zip(prompt_ids, strata, strict=True)).values())
    return replace(
        measurement,
        metrics={name: metrics[name, ""] for name in _METRICS},
        breakdowns={"by_stratum": by_stratum} if names else {},
        strata=of_clusters if names else None,
    )


def _mean(name: str, observed: Sequence[Observation]) -> Mean:
    values = [getattr(o, name) for o in observed]
    return Mean(
        values,
        _METRICS[name],
        yes_or_no=name == "accuracy",
        share=name != "documents_read",
        guard=_GUARDS.get(name),
    )


# --- what its figures are called -----------------------------------------------------------------


PRESENTATION = Presentation(
    title="Retrieval",
    words={
        "accuracy": Words("accuracy", "right answers; a reply that cannot be read is wrong"),
        "accuracy_without_answer": Words(
            "accuracy without an answer in a query", "of the replies whose queries name no option"
        ),
        "answer_in_query": Words(
            "answer in a query", "replies whose queries name an option that the question does not"
        ),
        "retrieval_recall": Words("retrieval recall", "relevant documents that were found"),
        "on_question_rate": Words(
            "on-question rate", "replies of which a query names what the question asks for"
        ),
        "copied_plan": Words("copied plan", "searches for the words of the plan"),
        "copied_question": Words("copied question", "searches for the sentences of the question"),
        "copied_options": Words("copied options", "searches for the options of the question"),
        "by_stratum": Words("By type of unseen case"),
        "stratum": Words("hold-out"),
        "format_rate": Words("format rate", "replies that keep the whole format"),
        "defect_rate": Words("defect rate", "queries with a defect"),
        "documents_read": Words("documents read", "mean number for one question"),
    },
    findings=(
        Finding("accuracy", "of 100 questions, {value} were answered correctly", 100),
        Finding("retrieval_recall", "of 100 relevant documents, {value} were found", 100),
    ),
    one_of_each="stratum",
    table=ReplyTable(
        "Questions side by side",
        "What was searched for, found and answered",
        (
            Column("Queries", "queries"),
            Column("Documents found", "documents"),
            Column("Answer", "answer", gold="gold"),
        ),
    ),
)
