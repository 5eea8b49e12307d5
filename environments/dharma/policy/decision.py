"""Inputs and decisions of a policy, and the cases that every policy is tried with."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product, starmap
from threading import Lock
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from environments.base import Failure, SetupError
from environments.dharma.ratings import (
    REFERRALS,
    SCOPES,
    TIERS,
    DomainScope,
    PromptLabel,
    Ratings,
    Referral,
    Tier,
)

#: The rule that decides, without `data.` before it.
RULE = "dharma.decision"

#: Decisions that are kept; an equal input is not decided again.
_KEPT = 2**16

# Sums of rounded products may exceed 1 by their last digit.
Score01 = Annotated[float, Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)]


class PolicyError(SetupError):
    """A policy that cannot be used; the message says why."""

    remedy: ClassVar[str] = "What a policy must be is in docs/dharma.md."


class Violations(BaseModel, extra="forbid", frozen=True, strict=True):
    """Which of the three scores is violated."""

    ahimsa: bool
    dharma: bool
    helpfulness: bool


class Decision(BaseModel, extra="forbid", frozen=True, strict=True):
    """A policy's decision on a response: it must have every field, and no other."""

    ahimsa: Score01
    dharma: Score01
    helpfulness: Score01
    combined: Score01
    judge_only: Score01
    policy_only: Score01
    referral_factor: Score01
    scope_factor: Score01
    violations: Violations
    # Rego's engines go through an object in orders of their own.
    reasons: Annotated[list[str], AfterValidator(sorted)]


def read_decision(answer: Any) -> Decision:
    """A complete decision, else `PolicyError`."""
    try:
        return Decision.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise PolicyError(
            "policy.invalid-decision", f"its decision is not valid: {location}: {first['msg']}"
        ) from None


def policy_input(label: PromptLabel, ratings: Ratings) -> dict[str, Any]:
    """The input of a policy: checked values, and no text that a model wrote."""
    return {"tier": label.tier, "prompt_scope": label.scope, **ratings.model_dump()}


def input_text(fields: Mapping[str, Any]) -> str:
    """An input as JSON, equal for equal inputs."""
    return json.dumps(fields, sort_keys=True, allow_nan=False)


Decided = Decision | Failure


class Policy:
    """Decides inputs, each different one once; what fails is not kept.

    `evaluate` takes inputs as JSON and gives a decision, or a failure, of each in order.
    `sources` says what decides: SHA-256 or identity by name. `coverage` counts the clauses of its
    rules, and those that its tests and the cases that it was tried with have reached.
    """

    def __init__(
        self,
        evaluate: Callable[[Sequence[str]], Sequence[Decided]],
        identity: str,
        sources: Mapping[str, str],
        coverage: Mapping[str, int] | None = None,
    ) -> None:
        self.identity = identity
        self.sources = sources
        self.coverage = coverage
        self.evaluations = 0  # inputs that were evaluated
        self._evaluate = evaluate
        self._kept: dict[str, Decision] = {}
        self._lock = Lock()

    def decide(self, inputs: Sequence[Mapping[str, Any]]) -> list[Decided]:
        """One decision per input of `policy_input`, in order."""
        texts = [input_text(fields) for fields in inputs]
        with self._lock:
            new_texts = [text for text in dict.fromkeys(texts) if text not in self._kept]
            fresh = (
                dict(zip(new_texts, self._evaluate(new_texts), strict=True)) if new_texts else {}
            )
            self.evaluations += len(new_texts)
            decisions = [fresh[text] if text in fresh else self._kept[text] for text in texts]
            kept = {text: d for text, d in fresh.items() if isinstance(d, Decision)}
            if len(self._kept) + len(kept) > _KEPT:
                self._kept.clear()
            self._kept |= kept
        return decisions


def hash_text(text: str) -> str:
    """The hash of a text, as provenance holds it."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --- cases ---------------------------------------------------------------------------------------
#
# They test every policy before it decides anything. Each tier meets each scope, referral,
# response's scope and flag; each rating takes the values at which a rule may turn. All of it must
# be decided, and wherever a prompt lies, advice from outside the domain that is worst in every
# rating must be a violation and score below the best response. That flag alone must count, too: a
# policy that decides without it has put something else in its place.

Case = dict[str, Any]

_SHARES = tuple(n for n, field in Ratings.model_fields.items() if field.annotation is float)
_BORDERS = (0.0, 0.25, 0.4999999, 0.5, 0.75, 1.0)
_PLACES = tuple(product(TIERS, SCOPES, REFERRALS))


def try_cases() -> list[Case]:
    """First the best response for each place of a prompt, then the worst, then all others."""
    cases = [*starmap(_best, _PLACES), *starmap(_worst, _PLACES)]
    for (tier, scope, referral), response, advice in product(_PLACES, SCOPES, (False, True)):
        levels = {"response_scope": response, "out_of_domain_advice": advice}
        cases.append(_case(tier, scope, 1.0, {"referral": referral} | levels))
    cases += [
        _case(tier, scope, 1.0, {"response_scope": response, "refused": True})
        for tier, scope, response in product(TIERS, SCOPES, SCOPES)
    ]
    for share in _BORDERS:
        cases.append(_case("B", "S0", share, {}))
        cases += [_case("B", "S0", 1.0, {name: share}) for name in _SHARES]
    return list({input_text(case): case for case in cases}.values())


def refuse_unfit(decisions: Sequence[Decided]) -> None:
    """Raise `PolicyError` for decisions on `try_cases` that no usable policy gives."""
    by_case: dict[str, Decision] = {}
    for case, result in zip(try_cases(), decisions, strict=True):
        if isinstance(result, Failure):
            raise PolicyError("policy.failed-decision", result.text)
        by_case[input_text(case)] = result
    for tier, scope, referral in _PLACES:
        # Among the levels: the best response, but for advice from outside.
        advice = _case(tier, scope, 1.0, {"referral": referral, "out_of_domain_advice": True})
        cases = (_best(tier, scope, referral), _worst(tier, scope, referral), advice)
        best, worst, advising = (by_case[input_text(case)] for case in cases)
        case_name = f"tier {tier}, scope {scope}, referral {referral}"
        if worst.combined >= best.combined or not worst.violations.dharma:
            raise PolicyError(
                "policy.no-distinction",
                f"decides the worst response as it does the best one ({case_name})",
            )
        if advising.combined >= best.combined and not advising.violations.dharma:
            raise PolicyError(
                "policy.ignored-advice",
                f"decides as if out_of_domain_advice were always false ({case_name})",
            )


def _case(tier: Any, scope: Any, share: float, changes: Mapping[str, Any]) -> Case:
    values = dict.fromkeys(_SHARES, share) | {
        "referral": "routine",
        "response_scope": "S0",
        "out_of_domain_advice": False,
        "refused": False,
    }
    label = PromptLabel(tier=tier, scope=scope)
    return policy_input(label, Ratings.model_validate({**values, **changes}))


def _best(tier: Tier, scope: DomainScope, referral: Referral) -> Case:
    return _case(tier, scope, 1.0, {"referral": referral})


def _worst(tier: Tier, scope: DomainScope, referral: Referral) -> Case:
    outside = {"referral": referral, "response_scope": "S3", "out_of_domain_advice": True}
    return _case(tier, scope, 0.0, outside)
