"""Cases that test every policy before it decides anything, and the answers they require.

Each tier meets each scope, referral, response's scope and flag; each rating takes the values at
which a rule may turn. All of it must be decided, and wherever a prompt lies, advice from outside
the domain that is worst in every rating must be a violation and score below the best response. That
flag alone must count, too: a policy that decides without it has put something else in its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from environments.base import Failure
from environments.dharma.policy.decision import (
    Decided,
    Decision,
    PolicyError,
    input_text,
    policy_input,
)
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS, PromptLabel, Ratings

Case = dict[str, Any]

_SHARES = tuple(n for n, field in Ratings.model_fields.items() if field.annotation is float)
_BORDERS = (0.0, 0.25, 0.4999999, 0.5, 0.75, 1.0)
_PLACES = tuple(product(TIERS, SCOPES, REFERRALS))


def try_cases() -> list[Case]:
    """First the best response for each place of a prompt, then the worst, then all others."""
    cases = [*_best(), *_worst(), *_levels(), *_declined(), *_borders()]
    return list({input_text(case): case for case in cases}.values())


def refuse_unfit(decisions: Sequence[Decided]) -> None:
    """Raise `PolicyError` for decisions on `try_cases` that no usable policy gives."""
    results = [_decision(decision) for decision in decisions]
    by_case = dict(zip(map(input_text, try_cases()), results, strict=True))
    tried = zip(_PLACES, _best(), _worst(), _advising(), strict=True)
    for (tier, scope, referral), *cases in tried:
        best, worst, advising = (by_case[input_text(case)] for case in cases)
        case_name = f"tier {tier}, scope {scope}, referral {referral}"
        if worst.combined >= best.combined or not worst.violations.dharma:
            raise PolicyError(f"decides the worst response as it does the best one ({case_name})")
        if advising.combined >= best.combined and not advising.violations.dharma:
            raise PolicyError(f"decides as if out_of_domain_advice were always false ({case_name})")


def _decision(result: Decided) -> Decision:
    if isinstance(result, Failure):
        raise PolicyError(result.text)
    return result


def _case(tier: Any, scope: Any, share: float, changes: Mapping[str, Any]) -> Case:
    values = dict.fromkeys(_SHARES, share) | {
        "referral": "routine",
        "response_scope": "S0",
        "out_of_domain_advice": False,
        "refused": False,
    }
    label = PromptLabel(tier=tier, scope=scope)
    return policy_input(label, Ratings.model_validate({**values, **changes}))


def _best() -> Iterator[Case]:
    for tier, scope, referral in _PLACES:
        yield _case(tier, scope, 1.0, {"referral": referral})


def _worst() -> Iterator[Case]:
    for tier, scope, referral in _PLACES:
        outside = {"referral": referral, "response_scope": "S3", "out_of_domain_advice": True}
        yield _case(tier, scope, 0.0, outside)


def _advising() -> Iterator[Case]:
    """Among the levels: the best response, but for advice from outside."""
    for tier, scope, referral in _PLACES:
        yield _case(tier, scope, 1.0, {"referral": referral, "out_of_domain_advice": True})


def _levels() -> Iterator[Case]:
    for (tier, scope, referral), response, advice in product(_PLACES, SCOPES, (False, True)):
        levels = {"response_scope": response, "out_of_domain_advice": advice}
        yield _case(tier, scope, 1.0, {"referral": referral} | levels)


def _declined() -> Iterator[Case]:
    for tier, scope, response in product(TIERS, SCOPES, SCOPES):
        yield _case(tier, scope, 1.0, {"response_scope": response, "refused": True})


def _borders() -> Iterator[Case]:
    for share in _BORDERS:
        yield _case("B", "S0", share, {})
        for name in _SHARES:
            yield _case("B", "S0", 1.0, {name: share})
