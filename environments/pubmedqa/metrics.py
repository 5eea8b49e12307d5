"""How good the answers are, as functions of sums over questions.

A question is known by its confusion counts [3, 4]: row the gold label, columns the replies that
answered yes, no, maybe, or could not be read. Only the question's own row is not zero. Every
metric but the vote follows from the sums of these. A reply that cannot be read is wrong.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import BaseModel

from environments.base import Rollout, Score, outcomes_of
from environments.measurement import Array, Blocks, Direction, Margin, Measurement, Metric, quotient
from environments.presentation import Column, Finding, Presentation, ReplyTable, Words
from environments.pubmedqa.reply import LABELS, Label

_UNREADABLE = len(LABELS)
_COLUMN: Mapping[str | None, int] = {label: i for i, label in enumerate(LABELS)} | {
    None: _UNREADABLE
}
#: What a reply is in a row of the confusion matrix.
_ANSWERED = (*(f"answered_{label}" for label in LABELS), "unreadable")

_BLOCKS = Blocks.of_shapes(
    {
        "confusion": (len(LABELS), len(_ANSWERED)),
        # of replies
        "in format": (),
        "grounded": (),
        # of right answers in the format
        "right": (),
        "false quote": (),
        "false number": (),
        "decided": (),  # with a known finding that decides
        "decisive": (),  # with that finding quoted
        # of questions
        "voted right": (),
        "questions": (),
    }
)

#: How far the figures of the reasons may worsen: two points.
_GUARD = Margin(0.02)


class AnswerOutcome(BaseModel, extra="forbid", frozen=True):
    """A reply as it is measured; `answer` is None where none could be read.

    `grounded` says that its quotes are the finding that decides, by the reward's reckoning, and
    nothing in it is false; `decisive` that one of them holds all of that finding, None where the
    prompt's metadata do not name it.
    """

    gold: Label
    answer: Label | None
    keeps_format: bool
    grounded: bool
    false_quote: bool
    false_number: bool
    decisive: bool | None


def measure_answers(
    rollouts: Sequence[Rollout], scores: Sequence[Score], options: Sequence[Label] = LABELS
) -> Measurement:
    """All metrics of the task; `options` are the answers that were asked for.

    The strata are the gold labels; every split has its share of each.
    """
    questions = _by_question(rollouts, scores)
    sums = np.zeros((len(questions), _BLOCKS.columns))
    for row, outcomes in zip(sums, questions.values(), strict=True):
        row[:] = _question_sums(outcomes)
    return Measurement(
        clusters=tuple(questions),
        sums=sums,
        metrics=_metrics(sums, options),
        breakdowns={
            "by_class": {label: _class_metrics(index) for index, label in enumerate(LABELS)},
            "confusion": {f"gold {label}": _row(index) for index, label in enumerate(LABELS)},
        },
        strata=tuple(outcomes[0].gold for outcomes in questions.values()),
    )


def vote(answers: Iterable[str | None]) -> str | None:
    """The most frequent readable answer, the one given first among equals; None without any."""
    counts = Counter(answer for answer in answers if answer is not None)
    return max(counts, key=lambda answer: counts[answer]) if counts else None


def official_predictions(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> dict[str, str]:
    """One label per question, by vote, in the form that PubMedQA's evaluation script reads.

    The script knows no unreadable reply. A question with no readable one gets the first label
    that is not its gold label: it counts as wrong there as it does here.
    """
    return {
        question: vote(o.answer for o in outcomes)
        or next(label for label in LABELS if label != outcomes[0].gold)
        for question, outcomes in _by_question(rollouts, scores).items()
    }


# --- statistics of questions --------------------------------------------------------------------


def _by_question(
    rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> dict[str, list[AnswerOutcome]]:
    """The outcomes of each question's replies."""
    questions: dict[str, list[AnswerOutcome]] = {}
    for rollout, outcome in zip(rollouts, outcomes_of(scores, AnswerOutcome), strict=True):
        if outcome is not None:
            questions.setdefault(rollout.prompt_id, []).append(outcome)
    return questions


def _question_sums(outcomes: Sequence[AnswerOutcome]) -> Array:
    """The statistics of one question, [K]."""
    confusion = np.zeros(_BLOCKS["confusion"].shape)
    for outcome in outcomes:
        confusion[_COLUMN[outcome.gold], _COLUMN[outcome.answer]] += 1
    answered = [o for o in outcomes if o.keeps_format and o.answer == o.gold]
    counts = {
        "in format": sum(o.keeps_format for o in outcomes),
        "grounded": sum(o.grounded for o in outcomes),
        "right": len(answered),
        "false quote": sum(o.false_quote for o in answered),
        "false number": sum(o.false_number for o in answered),
        "decided": sum(o.decisive is not None for o in answered),
        "decisive": sum(bool(o.decisive) for o in answered),
        "voted right": vote(o.answer for o in outcomes) == outcomes[0].gold,
        "questions": 1,
    }
    statistics = {name: np.array(float(count)) for name, count in counts.items()}
    return _BLOCKS.join((), {"confusion": confusion, **statistics})


# --- metrics ------------------------------------------------------------------------------------


def _metrics(sums: Array, options: Sequence[Label]) -> dict[str, Metric]:
    """The task's metrics, those that matter most first.

    With one reply per question the accuracy is a matter of right or wrong and has outcomes for
    McNemar's test. With several it is a mean, and the vote over them has the outcomes.
    """
    voted_right = _BLOCKS["voted right"].of(sums) > 0
    single = bool((_replies(sums) == 1).all())
    majority = int(_matrix(sums).sum(axis=(0, 2)).argmax())
    metrics = {
        "accuracy": Metric(
            _accuracy, "higher", outcomes=voted_right if single else None, trials=_replies
        ),
        "macro_f1": Metric(_macro_f1, "higher"),
        "grounded_rate": _rate("grounded", None, "higher", _GUARD),
        "false_quote_rate": _rate("false quote", "right", "lower", _GUARD),
        "false_number_rate": _rate("false number", "right", "lower", _GUARD),
        "parse_rate": Metric(_parse_rate, "higher", trials=_replies),
        "majority_baseline": Metric(partial(_share_of, [majority]), constant=True),
        "format_rate": _rate("in format", None, "higher"),
    }
    if _BLOCKS["decided"].of(sums).any():
        metrics["decisive_quote_rate"] = _rate("decisive", "decided", "higher", _GUARD)
    if not single:
        rate = _rate("voted right", "questions", "higher")
        metrics["vote_accuracy"] = replace(rate, outcomes=voted_right)
    if len(options) < len(LABELS):
        answerable = [_COLUMN[option] for option in options]
        metrics["ceiling"] = Metric(partial(_share_of, answerable), constant=True)
    return metrics


def _class_metrics(index: int) -> dict[str, Metric]:
    return {
        "recall": Metric(
            lambda t: quotient(_correct_counts(t), _matrix(t).sum(axis=-1))[..., index],
            "higher",
            trials=lambda t: _matrix(t)[..., index, :].sum(axis=-1),
        ),
        "precision": Metric(
            lambda t: quotient(_correct_counts(t), _answer_counts(t))[..., index],
            "higher",
            trials=lambda t: _answer_counts(t)[..., index],
        ),
        "f1": Metric(lambda t: _f1(t)[..., index], "higher"),
    }


def _row(index: int) -> dict[str, Metric]:
    """One row of the confusion matrix, as numbers of replies."""

    def cell(column: int, sums: Array) -> Array:
        return _matrix(sums)[..., index, column]

    return {name: Metric(partial(cell, column)) for column, name in enumerate(_ANSWERED)}


def _matrix(sums: Array) -> Array:
    """The confusion counts, [..., 3, 4]."""
    return _BLOCKS["confusion"].of(sums)


def _replies(sums: Array) -> Array:
    return np.asarray(_matrix(sums).sum(axis=(-1, -2)))


def _share(statistic: str, among: str | None, sums: Array) -> Array:
    """A statistic over another one, over all replies for None."""
    return quotient(_BLOCKS[statistic].of(sums), _number(among, sums))


def _number(among: str | None, sums: Array) -> Array:
    return _replies(sums) if among is None else _BLOCKS[among].of(sums)


def _rate(
    statistic: str, among: str | None, better: Direction, guard: Margin | None = None
) -> Metric:
    share, number = partial(_share, statistic, among), partial(_number, among)
    return Metric(share, better, guard=guard, trials=number)


def _correct_counts(sums: Array) -> Array:
    """How many replies to each gold label are right, [..., 3]."""
    return np.diagonal(_matrix(sums), axis1=-2, axis2=-1)


def _accuracy(sums: Array) -> Array:
    return quotient(_correct_counts(sums).sum(axis=-1), _replies(sums))


def _parse_rate(sums: Array) -> Array:
    unreadable = _matrix(sums)[..., _UNREADABLE].sum(axis=-1)
    return 1 - quotient(unreadable, _replies(sums))


def _share_of(labels: Sequence[int], sums: Array) -> Array:
    """The share of replies to questions with one of these gold labels."""
    return quotient(_matrix(sums)[..., labels, :].sum(axis=(-1, -2)), _replies(sums))


def _answer_counts(sums: Array) -> Array:
    """How often each label was answered, [..., 3]."""
    return np.asarray(_matrix(sums)[..., : len(LABELS)].sum(axis=-2))


def _f1(sums: Array) -> Array:
    """F1 of each label, [..., 3]; NaN for one that is neither gold nor answered."""
    return quotient(2 * _correct_counts(sums), _matrix(sums).sum(axis=-1) + _answer_counts(sums))


def _macro_f1(sums: Array) -> Array:
    """The mean F1 over the labels that are gold or answered, as the official evaluator has it.

    It is sklearn's `f1_score(average="macro")`, for which a label is there when it occurs.
    """
    f1 = _f1(sums)
    has_value = np.isfinite(f1)
    return quotient(np.where(has_value, f1, 0.0).sum(axis=-1), has_value.sum(axis=-1))


# --- what its figures are called -----------------------------------------------------------------


PRESENTATION = Presentation(
    title="PubMedQA",
    words={
        "accuracy": Words("accuracy", "right answers; a reply that cannot be read is wrong"),
        "macro_f1": Words("macro F1", "mean F1 of the answers, each counting alike"),
        "f1": Words("F1"),
        "parse_rate": Words("parse rate", "replies in a form that can be read"),
        "majority_baseline": Words(
            "majority baseline", "accuracy of always giving the commonest answer"
        ),
        "format_rate": Words("format rate", "replies that keep the whole format"),
        "grounded_rate": Words(
            "grounded replies", "they quote the finding that decides, and make nothing up"
        ),
        "false_quote_rate": Words(
            "made-up quotes",
            "right answers in the format, with a quote that is not in the abstract",
        ),
        "false_number_rate": Words(
            "made-up numbers",
            "right answers in the format, with a number that is not in the abstract",
        ),
        "decisive_quote_rate": Words(
            "decisive quotes", "right answers in the format that quote the finding which decides"
        ),
        "vote_accuracy": Words(
            "vote accuracy", "questions that the most frequent reply gets right"
        ),
        "ceiling": Words("ceiling", "accuracy if all that can be answered were right"),
        **{
            f"commonest answer, {finding}": Words(
                f"commonest answer, {finding}",
                f"gives every question the model's commonest answer, and as its reason {meaning}",
            )
            for finding, meaning in {
                "first finding": "the first sentence of the findings",
                "last finding": "the last sentence of the findings",
                "any finding": "a sentence of the findings by chance",
                "finding closest to the question": "the finding that shares most words with it",
                "first words of each finding": "the first words of all findings",
            }.items()
        },
        "by_class": Words("By right answer"),
        "gold": Words("right answer"),
        "confusion": Words("Confusion matrix, in replies"),
    },
    findings=(
        Finding("accuracy", "of 100 questions, {value} were answered correctly", 100),
        Finding(
            "grounded_rate",
            "of 100 replies, {value} quoted the finding that decides and made nothing up",
            100,
        ),
    ),
    one_of_each="gold",
    table=ReplyTable(
        "Questions side by side",
        "The first reply to a question, and the answer read from it",
        (Column("Reply", "reply"), Column("Answer", "answer", gold="gold")),
    ),
)
