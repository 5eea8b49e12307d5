"""How far a judge can be trusted: it labels what was labelled, and rates what another judge rated.

Judge, policy, prompts and scored rollouts are handed in; nothing is read or written here.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.base import Failure, PromptRecord, Rollout, Score, outcomes_of
from environments.dharma.agreement import confusion, judge_agreement, label_agreement
from environments.dharma.environment import for_each, question
from environments.dharma.judge import Exchange, Judge
from environments.dharma.metrics import DharmaOutcome, Judged
from environments.dharma.policy import Decision, Policy, Violations, policy_input
from environments.dharma.ratings import SCOPES, TIERS, PromptLabel, Ratings
from environments.measurement import Mean, Measurement, measure_means

_LABEL = frozenset(PromptLabel.model_fields)
#: In the metadata of a reply: violation -> whether a person says that it is one.
VERDICTS = "verdicts"
#: How a judge can be right -> what the truth then is.
RIGHT = {"sensitivity": True, "specificity": False}


class CalibrationError(ValueError):
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
        raise CalibrationError("no prompt has a tier and a scope")
    answers = judge.label([str(record.metadata["question"]) for record in labelled])
    pairs = [
        (record, answer)
        for record, answer in zip(labelled, answers, strict=True)
        if isinstance(answer, PromptLabel)
    ]
    if not pairs:
        raise CalibrationError(f"the judge labelled no prompt: {_first_reason(answers)}")
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
        raise CalibrationError("no reply is rated")
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
        raise CalibrationError(f"the judge rated no reply: {_first_reason(decisions)}")
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
            f"the judge rated no reply: {_first_reason([s.error for s in scores])}"
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
            *("higher", False),
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
