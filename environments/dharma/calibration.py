"""How far a judge can be trusted: it labels what was labelled, and rates what another judge rated.

Judge, policy, prompts and scored rollouts are handed in; nothing is read or written here.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.base import Failure, PromptRecord, Rollout, Score
from environments.dharma.agreement import Verdict, confusion, judge_agreement, label_agreement
from environments.dharma.environment import question
from environments.dharma.judge import Exchange, Judge
from environments.dharma.policy import Decision, Policy, policy_input
from environments.dharma.ratings import SCOPES, TIERS, PromptLabel, Ratings
from environments.measurement import Measurement

_LABEL = frozenset(PromptLabel.model_fields)
_RATED = frozenset({"label", "ratings", "decision"})


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
    given = [PromptLabel(tier=r.metadata["tier"], scope=r.metadata["scope"]) for r, _ in pairs]
    judged = [label for _, label in pairs]
    return Agreement(
        judged=len(pairs),
        failed=len(answers) - len(pairs),
        measurement=label_agreement([record.id for record, _ in pairs], given, judged),
        counts={
            "scope": confusion([a.scope for a in given], [b.scope for b in judged], SCOPES),
            "tier": confusion([a.tier for a in given], [b.tier for b in judged], TIERS),
        },
    )


def agreement_with_ratings(
    judge: Judge, policy: Policy, rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int
) -> Agreement:
    """The judge's ratings of at most `limit` replies beside those in the evidence of their scores.

    `policy` is the one that made the decisions in the evidence: a difference is then the judge's.
    Raises `CalibrationError` where no reply is rated, or the judge rates none.
    """
    pairs = _sampled(rollouts, scores, limit)
    if not pairs:
        raise CalibrationError("no reply is rated")
    labels = [PromptLabel.model_validate(score.evidence["label"]) for _, score in pairs]
    answers = judge.rate(
        [
            Exchange(question(rollout), label, rollout.completion)
            for (rollout, _), label in zip(pairs, labels, strict=True)
        ]
    )
    rated = [n for n, answer in enumerate(answers) if isinstance(answer, Ratings)]
    ratings = [answer for answer in answers if isinstance(answer, Ratings)]
    inputs = [policy_input(labels[n], r) for n, r in zip(rated, ratings, strict=True)]
    both = [
        (pairs[n][0].prompt_id, _recorded(pairs[n][1]), Verdict(r, decision))
        for n, r, decision in zip(rated, ratings, policy.decide(inputs), strict=True)
        if isinstance(decision, Decision)
    ]
    if not both:
        raise CalibrationError(f"the judge rated no reply: {_first_reason(answers)}")
    names, first, second = (list(column) for column in zip(*both, strict=True))
    one, other = ([v.ratings.response_scope for v in verdicts] for verdicts in (first, second))
    return Agreement(
        judged=len(both),
        failed=len(answers) - len(both),
        measurement=judge_agreement(names, first, second),
        counts={"response scope": confusion(one, other, SCOPES)},
    )


def _sampled(
    rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int
) -> list[tuple[Rollout, Score]]:
    """The rated replies with the smallest hashes, different ones of a prompt alone."""
    rated = {
        (rollout.prompt_id, rollout.completion): (rollout, score)
        for rollout, score in zip(rollouts, scores, strict=True)
        if score.evidence.keys() >= _RATED
    }
    ranked = sorted(rated, key=lambda key: hashlib.sha256(repr(key).encode()).digest())
    return [rated[key] for key in ranked[:limit]]


def _recorded(score: Score) -> Verdict:
    return Verdict(
        Ratings.model_validate(score.evidence["ratings"]),
        Decision.model_validate(score.evidence["decision"]),
    )


def _first_reason(answers: Sequence[object]) -> str:
    return next((a.text for a in answers if isinstance(a, Failure)), "no reason given")
