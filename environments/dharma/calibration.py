"""How far a judge can be trusted: it labels what was labelled, and rates what another judge rated.

Judge, policy, prompts and scored rollouts are handed in; nothing is read or written here. All
measures are functions of sums over clusters, so that an evaluation's bootstrap gives intervals.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from environments.base import Failure, PromptRecord, Rollout, Score, outcomes_of
from environments.dharma.environment import for_each, question
from environments.dharma.judge import Exchange, Judge
from environments.dharma.metrics import DharmaOutcome, Judged
from environments.dharma.policy import Decision, Policy, Violations, policy_input
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS, PromptLabel, Ratings
from environments.errors import CodedError
from environments.measurement import (
    Array,
    Block,
    Blocks,
    Mean,
    Measurement,
    Metric,
    measure_means,
    quotient,
)

Level = TypeVar("Level", bound=str)

_SCORES = ("dharma", "ahimsa", "helpfulness", "combined")
_YES_NO = (False, True)
_LABEL = frozenset(PromptLabel.model_fields)
#: In the metadata of a reply: violation -> whether a person says that it is one.
VERDICTS = "verdicts"
#: How a judge can be right -> what the truth then is.
RIGHT = {"sensitivity": True, "specificity": False}


# --- measures of agreement -----------------------------------------------------------------------


def weighted_kappa(confusion: Array) -> Array:
    """Cohen's kappa with quadratic weights (1968, doi:10.1037/h0026256) of [..., L, L] counts.

    1 is full agreement, 0 what the two margins give by chance; NaN where chance alone agrees.
    """
    levels = confusion.shape[-1]
    ranks = np.arange(levels)
    distance = ((ranks[:, None] - ranks) / max(1, levels - 1)) ** 2
    rows, columns = confusion.sum(axis=-1), confusion.sum(axis=-2)
    total = confusion.sum(axis=(-2, -1))
    observed = (distance * confusion).sum(axis=(-2, -1)) * total
    expected = (distance * rows[..., :, None] * columns[..., None, :]).sum(axis=(-2, -1))
    return np.asarray(1 - quotient(observed, expected))


def pearson(sums: Array) -> Array:
    """Pearson's r from the sums [..., 6] of 1, x, y, xx, yy, xy; NaN where one does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.maximum(0, n * xx - x * x) * np.maximum(0, n * yy - y * y)
    # What is left of equal values is rounding.
    return quotient(n * xy - x * y, np.sqrt(np.where(spread > 1e-12 * n**4, spread, 0)))


def accuracy(confusion: Array) -> Array:
    """The share of pairs on the diagonal of [..., L, L] counts."""
    return quotient(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


# --- sums ----------------------------------------------------------------------------------------


def _pairs(first: Sequence[object], second: Sequence[object], levels: Sequence[object]) -> Array:
    """The cell of each pair in a confusion matrix, one-hot, [N, L, L]."""
    size = len(levels)
    cells = [levels.index(a) * size + levels.index(b) for a, b in zip(first, second, strict=True)]
    return np.eye(size * size)[cells].reshape(len(cells), size, size)


def _moments(x: Sequence[float], y: Sequence[float]) -> Array:
    """Return the terms of `pearson` for each pair, [N, 6]."""
    a, b = np.array(x, dtype=np.float64), np.array(y, dtype=np.float64)
    return np.stack([np.ones_like(a), a, b, a * a, b * b, a * b], axis=-1)


def _on(block: Block, measure: str, sums: Array) -> Array:
    return _MEASURES[measure](block.of(sums))


_MEASURES = {"kappa": weighted_kappa, "accuracy": accuracy, "r": pearson}


def _measurement(
    clusters: Sequence[str],
    parts: Mapping[str, Array],
    measures: Mapping[str, Sequence[str]],
) -> Measurement:
    blocks = Blocks.of_shapes({name: values.shape[1:] for name, values in parts.items()})
    return Measurement(
        clusters=tuple(clusters),
        sums=blocks.join((len(clusters),), parts),
        metrics={
            f"{name}_{measure}": Metric(partial(_on, blocks[name], measure), "higher")
            for name in parts
            for measure in measures[name]
        },
    )


# --- comparisons of answers ----------------------------------------------------------------------


def label_agreement(
    prompts: Sequence[str], labels: Sequence[PromptLabel], judged: Sequence[PromptLabel]
) -> Measurement:
    """A judge against given labels: kappa and accuracy of scope and tier, over prompts."""
    scopes = _pairs([label.scope for label in labels], [j.scope for j in judged], SCOPES)
    tiers = _pairs([label.tier for label in labels], [j.tier for j in judged], TIERS)
    return _measurement(
        prompts,
        {"scope": scopes, "tier": tiers},
        {"scope": ("kappa", "accuracy"), "tier": ("kappa", "accuracy")},
    )


def judge_agreement(
    prompts: Sequence[str], first: Sequence[Judged], second: Sequence[Judged]
) -> Measurement:
    """Two judges on the same responses, clustered by prompt.

    Pearson's r of the scores; kappa of the levels (response scope, referral) and of the yes or no
    (each violation, refusals).
    """
    parts: dict[str, Array] = {}
    for name in _SCORES:
        x, y = ([getattr(v.decision, name) for v in judge] for judge in (first, second))
        parts[name] = _moments(x, y)
    for name, levels in (("response_scope", SCOPES), ("referral", REFERRALS), ("refused", _YES_NO)):
        a, b = ([getattr(v.ratings, name) for v in judge] for judge in (first, second))
        parts[name] = _pairs(a, b, levels)
    for name in _SCORES[:3]:
        a, b = ([getattr(v.decision.violations, name) for v in j] for j in (first, second))
        parts[f"{name}_violation"] = _pairs(a, b, _YES_NO)
    measures = {name: ("r",) if name in _SCORES else ("kappa",) for name in parts}
    return _measurement(prompts, parts, measures)


def confusion(
    first: Sequence[Level], second: Sequence[Level], levels: Sequence[Level]
) -> dict[str, dict[str, int]]:
    """How often the second said what when the first said what: first -> second -> count."""
    counts = _pairs(first, second, levels).sum(axis=0)
    rows = counts.astype(int).tolist()
    return {a: dict(zip(levels, row, strict=True)) for a, row in zip(levels, rows, strict=True)}


# --- calibration ---------------------------------------------------------------------------------


class CalibrationError(CodedError, ValueError):
    """There is nothing to compare; the message says why."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge beside labels or another judge, on what both of them judged.

    `measurement` has the measures of agreement, clustered by prompt; `counts` is title -> what the
    other said -> what this judge said -> how often. `failed` is what this judge could not judge.
    """

    judged: int
    failed: int
    measurement: Measurement
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]


def agreement_with_labels(judge: Judge, records: Sequence[PromptRecord]) -> Agreement:
    """The judge's labels beside those that the metadata of prompts give.

    Raises `CalibrationError` where no prompt has labels, or the judge labels none.
    """
    labelled = [record for record in records if record.metadata.keys() >= _LABEL]
    if not labelled:
        raise CalibrationError("calibrate.no-labels", "no prompt has a tier and a scope")
    answers = judge.label([str(record.metadata["question"]) for record in labelled])
    pairs = [
        (record, answer)
        for record, answer in zip(labelled, answers, strict=True)
        if isinstance(answer, PromptLabel)
    ]
    if not pairs:
        raise CalibrationError(
            "calibrate.nothing-labelled", f"the judge labelled no prompt: {_first_reason(answers)}"
        )
    labels = [PromptLabel(tier=r.metadata["tier"], scope=r.metadata["scope"]) for r, _ in pairs]
    judged = [label for _, label in pairs]
    return Agreement(
        judged=len(pairs),
        failed=len(answers) - len(pairs),
        measurement=label_agreement([record.id for record, _ in pairs], labels, judged),
        counts={
            "scope": confusion([a.scope for a in labels], [b.scope for b in judged], SCOPES),
            "tier": confusion([a.tier for a in labels], [b.tier for b in judged], TIERS),
        },
    )


def agreement_with_ratings(
    judge: Judge, policy: Policy, rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int
) -> Agreement:
    """The judge's ratings of at most `limit` replies beside those that their scores hold.

    `policy` is the one that made the decisions in the scores: a difference is then the judge's.
    Raises `CalibrationError` where no reply is rated, or the judge rates none.
    """
    sample = _sampled(rollouts, scores, limit)
    if not sample:
        raise CalibrationError("calibrate.no-ratings", "no reply is rated")
    answers = judge.rate(
        [Exchange(question(reply), first.label, reply.completion) for reply, first in sample]
    )
    inputs = [
        answer if isinstance(answer, Failure) else policy_input(first.label, answer)
        for (_, first), answer in zip(sample, answers, strict=True)
    ]
    decisions = for_each(policy.decide, inputs)
    both = [
        (
            reply.prompt_id,
            first,
            Judged(label=first.label, ratings=answer, decision=decision),
        )
        for (reply, first), answer, decision in zip(sample, answers, decisions, strict=True)
        if isinstance(answer, Ratings) and isinstance(decision, Decision)
    ]
    if not both:
        raise CalibrationError(
            "calibrate.nothing-rated", f"the judge rated no reply: {_first_reason(decisions)}"
        )
    names, references, judged = (list(column) for column in zip(*both, strict=True))
    reference_scopes, judge_scopes = (
        [reply.ratings.response_scope for reply in judge] for judge in (references, judged)
    )
    return Agreement(
        judged=len(both),
        failed=len(sample) - len(both),
        measurement=judge_agreement(names, references, judged),
        counts={"response scope": confusion(reference_scopes, judge_scopes, SCOPES)},
    )


def agreement_with_verdicts(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Agreement:
    """A judge's scores beside a person's verdicts: sensitivity and specificity of each violation.

    Raises `CalibrationError` where nothing was judged.
    """
    outcomes = outcomes_of(scores, DharmaOutcome)
    both = [
        (rollout, outcome.judged.decision.violations)
        for rollout, outcome in zip(rollouts, outcomes, strict=True)
        if outcome and outcome.judged
    ]
    if not both:
        raise CalibrationError(
            "calibrate.no-verdict-judged",
            f"the judge rated no reply: {_first_reason([s.error for s in scores])}",
        )
    pairs = {
        name: [
            (r.metadata[VERDICTS].get(name), getattr(violations, name)) for r, violations in both
        ]
        for name in Violations.model_fields
        if any(name in r.metadata[VERDICTS] for r, _ in both)
    }
    rates = {
        f"{name}_{kind}": Mean(
            [
                violation == verdict if verdict is truth else None
                for verdict, violation in pairs[name]
            ],
            "higher",
            share=True,
        )
        for name in pairs
        for kind, truth in RIGHT.items()
    }
    return Agreement(
        judged=len(both),
        failed=len(scores) - len(both),
        measurement=measure_means([str(r.metadata["family"]) for r, _ in both], rates),
        counts={f"{name} violation": _verdict_counts(pairs[name]) for name in pairs},
    )


def _verdict_counts(pairs: Sequence[tuple[bool | None, bool]]) -> dict[str, dict[str, int]]:
    words = {True: "violation", False: "none"}
    answers = [
        (words[verdict], words[violation]) for verdict, violation in pairs if verdict is not None
    ]
    return confusion(
        [verdict for verdict, _ in answers],
        [violation for _, violation in answers],
        [*words.values()],
    )


def _sampled(
    rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int
) -> list[tuple[Rollout, Judged]]:
    """The rated replies with the smallest hashes, different ones of a prompt alone."""
    rated = {
        (rollout.prompt_id, rollout.completion): (rollout, outcome.judged)
        for rollout, outcome in zip(rollouts, outcomes_of(scores, DharmaOutcome), strict=True)
        if outcome and outcome.judged
    }
    ranked = sorted(rated, key=lambda key: hashlib.sha256(repr(key).encode()).digest())
    return [rated[key] for key in ranked[:limit]]


def _first_reason(answers: Sequence[object]) -> str:
    return next((a.text for a in answers if isinstance(a, Failure)), "no reason given")
