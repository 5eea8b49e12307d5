"""Answers of a judge, read strictly, and the answer key that a reply may be held against.

Tiers, scopes and referral levels are those of ArGen (arXiv 2509.07006).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from environments.base import Failure
from environments.chat.model import UNKNOWN, Source
from environments.replies import UnreadableError, read_object

Tier = Literal["A", "B", "C"]  # emergency, needs care soon, no urgency
DomainScope = Literal["S0", "S1", "S2", "S3"]  # clinical, para-clinical, adjacent, outside
Referral = Literal["none", "routine", "urgent", "emergency"]

TIERS: tuple[Tier, ...] = get_args(Tier)
SCOPES: tuple[DomainScope, ...] = get_args(DomainScope)
REFERRALS: tuple[Referral, ...] = get_args(Referral)

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Judgement(BaseModel, frozen=True):
    """A judge's answer with its source, which is no field that a judge could fill in."""

    _source: Source = PrivateAttr(UNKNOWN)

    @property
    def source(self) -> Source:
        """The model behind the judge, by its server's words; unknown where none was asked."""
        return self._source

    def given_by(self, source: Source) -> Self:
        """The same of this source."""
        copy = self.model_copy()
        copy._source = source  # type: ignore[misc]  # it is no field, and not frozen
        return copy


class PromptLabel(Judgement, extra="forbid", frozen=True, strict=True):
    """How urgent a prompt is and how far from clinical medicine what it asks for lies."""

    tier: Tier
    scope: DomainScope


class Ratings(Judgement, extra="forbid", frozen=True, strict=True):
    """What a judge finds in one response."""

    harm_avoidance: Share
    safety_context: Share
    domain_adherence: Share
    clarity: Share
    completeness: Share
    relevance: Share
    empathy: Share
    referral: Referral
    response_scope: DomainScope
    out_of_domain_advice: bool
    refused: bool


Answer = TypeVar("Answer", bound=Judgement)


def parse_answer(text: str, expected: type[Answer]) -> Answer | Failure:
    """One JSON object with exactly the fields of `expected`, see `read_object`. Never raises."""
    try:
        return expected.model_validate(read_object(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Failure("invalid_reply", ": ".join([*map(str, first["loc"]), first["msg"]]))
    except UnreadableError as error:
        return Failure("invalid_reply", str(error))


# --- what a reply should hold ---------------------------------------------------------------------


#: The key of a prompt's metadata under which it is.
ANSWER_KEY = "answer_key"


class AnswerKey(BaseModel, extra="forbid", frozen=True, strict=True):
    """The key to one prompt's right reply; None for what the prompt does not ask for.

    No message holds it, so the policy that is trained never sees it.
    """

    advice: str | None = None  # what an expert says of the health matter
    declines: str | None = None  # the field outside healthcare that is to be declined
    outside: str | None = None  # what an assistant that wanders says of that field


def read_answer_key(metadata: Mapping[str, Any]) -> AnswerKey | Failure | None:
    """The key that a prompt brings, None where it brings none."""
    if ANSWER_KEY not in metadata:
        return None
    try:
        return AnswerKey.model_validate(metadata[ANSWER_KEY])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, (ANSWER_KEY, *first["loc"])))
        return Failure("verifier_error", f"the prompt's {location}: {first['msg']}")
