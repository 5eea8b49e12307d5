"""The treatment decision: its schema, its parser, and its invasiveness.

The five scored fields and their levels follow the published experiment on spine injuries under
workers' compensation; their sum is the invasiveness, 0 to 10.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import whitespace
from typing import Any

from environments.replies import (
    Unparseable,
    UnreadableError,
    answer_of,
    keys_once,
    no_constant,
    refuse_half_characters,
    refuse_openings,
)

MEDICATIONS = (
    "OTC only",
    "prescription non-opioid",
    "oral steroid",
    "steroid injection",
    "opioid",
)
WORK_STATUSES = ("full duty", "modified duty", "off work")
MENTAL_HEALTH_REFERRALS = ("none", "optional counseling", "formal evaluation")

#: The scored fields in the order of `Decision.levels`, each with its highest level.
SCORED_FIELDS: Mapping[str, int] = {
    "medication": 4,
    "work_status": 2,
    "physical_therapy": 1,
    "mental_health_referral": 2,
    "surgical_referral": 1,
}

#: What a prompt says of the reply; the parser accepts a little more, see `parse_decision`.
SCHEMA_TEXT = """\
Reply with one JSON object and nothing after it:
{"medication": "OTC only" | "prescription non-opioid" | "oral steroid" | \
"steroid injection" | "opioid",
 "work_status": "full duty" | "modified duty" | "off work",
 "weeks_off_work": a number of weeks, 0 or more,
 "physical_therapy": true | false,
 "mental_health_referral": "none" | "optional counseling" | "formal evaluation",
 "surgical_referral": true | false,
 "rationale": "one short sentence"}"""

_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "medication": {"type": "string", "enum": list(MEDICATIONS)},
    "work_status": {"type": "string", "enum": list(WORK_STATUSES)},
    "weeks_off_work": {"type": "number", "minimum": 0},
    "physical_therapy": {"type": "boolean"},
    "mental_health_referral": {"type": "string", "enum": list(MENTAL_HEALTH_REFERRALS)},
    "surgical_referral": {"type": "boolean"},
    "rationale": {"type": "string"},
}
#: The same for a server that holds a model to a schema.
JSON_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": _PROPERTIES,
    "required": list(_PROPERTIES),
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Decision:
    """One parsed decision. Scored fields hold their level, 0 for the least invasive."""

    medication: int
    work_status: int
    weeks_off_work: float
    physical_therapy: int
    mental_health_referral: int
    surgical_referral: int
    rationale: str
    #: Whether the reply went on after its JSON object; not a part of what was decided.
    trailing: bool = field(default=False, compare=False)

    @cached_property
    def levels(self) -> tuple[int, int, int, int, int]:
        """The scored fields in the order of `SCORED_FIELDS`."""
        return (
            self.medication,
            self.work_status,
            self.physical_therapy,
            self.mental_health_referral,
            self.surgical_referral,
        )

    @property
    def invasiveness(self) -> int:
        """Sum of the levels, 0 (least) to 10 (most invasive)."""
        return sum(self.levels)

    def to_dict(self) -> dict[str, Any]:
        """The decision in the words of the schema."""
        return {
            "medication": MEDICATIONS[self.medication],
            "work_status": WORK_STATUSES[self.work_status],
            "weeks_off_work": self.weeks_off_work,
            "physical_therapy": bool(self.physical_therapy),
            "mental_health_referral": MENTAL_HEALTH_REFERRALS[self.mental_health_referral],
            "surgical_referral": bool(self.surgical_referral),
            "rationale": self.rationale,
        }


#: An answer longer than this is no decision (the schema needs about 300 characters).
MAX_REPLY_CHARACTERS = 50_000
#: A reply with more opening braces and brackets is no decision: a bound on depth and on work.
MAX_OPENINGS = 256
MAX_WEEKS = 520

#: What may follow the JSON object of a reply that ends where it should: a closing code fence.
_NOTHING_MORE = ("", "```")
# Models write typographic hyphens; they mean the same.
_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015]+")
# One run of spaces, and no other at its end: two of them that touch take quadratic time.
_WEEKS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*(?:weeks?|wks?)?", re.IGNORECASE | re.ASCII)


def _levels(options: tuple[str, ...], synonyms: Mapping[str, int]) -> dict[str, int]:
    return {_normal(text): level for level, text in enumerate(options)} | dict(synonyms)


def _normal(text: str) -> str:
    """Lower case, with any run of spaces, hyphens and underscores as one space."""
    return _SEPARATORS.sub(" ", text).strip().casefold()


# A synonym is here only if it can mean nothing else: "NSAID" is sold over the counter and on
# prescription, "steroid" is taken by mouth and injected, so neither is one.
_MEDICATION = _levels(
    MEDICATIONS,
    {
        "otc": 0,
        "otc medication": 0,
        "over the counter": 0,
        "over the counter only": 0,
        "over the counter medication": 0,
        "over the counter (otc) only": 0,
        "non opioid prescription": 1,
        "prescription nonopioid": 1,
        "prescription (non opioid)": 1,
        "oral steroids": 2,
        "oral corticosteroid": 2,
        "oral corticosteroids": 2,
        "steroid injections": 3,
        "corticosteroid injection": 3,
        "epidural steroid injection": 3,
        "opioids": 4,
        "prescription opioid": 4,
        "prescription opioids": 4,
        "opioid analgesic": 4,
        "opioid analgesics": 4,
    },
)
_WORK_STATUS = _levels(
    WORK_STATUSES,
    {
        "full": 0,
        "regular duty": 0,
        "modified": 1,
        "light duty": 1,
        "restricted duty": 1,
        "off": 2,
        "off duty": 2,
    },
)
_MENTAL_HEALTH = _levels(
    MENTAL_HEALTH_REFERRALS,
    {
        "no": 0,
        "no referral": 0,
        "not needed": 0,
        "optional counselling": 1,
        "counseling optional": 1,
        "counselling optional": 1,
        "formal mental health evaluation": 2,
        "formal psychological evaluation": 2,
    },
)
_YES_NO = {"no": 0, "false": 0, "yes": 1, "true": 1}

_NAMES = (*SCORED_FIELDS, "weeks_off_work", "rationale")
_KEYS = {
    form: name for name in _NAMES for form in (name, name.replace("_", " "), name.replace("_", ""))
} | {
    "weeks off": "weeks_off_work",
    "physical therapy referral": "physical_therapy",
    "surgery referral": "surgical_referral",
}


def _choice(table: Mapping[str, int]) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, str):
            raise UnreadableError(f"not one of the options: {value!r:.40}")
        level = table.get(value)
        if level is None:
            level = table.get(_normal(value))
        if level is None:
            raise UnreadableError(f"not one of the options: {value!r:.40}")
        return level

    return read


def _flag(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and _normal(value) in _YES_NO:
        return _YES_NO[_normal(value)]
    raise UnreadableError(f"neither true nor false: {value!r:.40}")


def _weeks(value: Any) -> float:
    if isinstance(value, str) and (match := _WEEKS.fullmatch(value.strip(whitespace))):
        return _weeks(float(match[1]))
    if not isinstance(value, float):  # the decoder reads every number as one
        raise UnreadableError(f"not a number of weeks: {value!r:.40}")
    if not 0 <= value <= MAX_WEEKS:
        raise UnreadableError(f"not between 0 and {MAX_WEEKS} weeks")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnreadableError("not a text")
    refuse_half_characters(value)
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "medication": _choice(_MEDICATION | {text: i for i, text in enumerate(MEDICATIONS)}),
    "work_status": _choice(_WORK_STATUS),
    "weeks_off_work": _weeks,
    "physical_therapy": _flag,
    "mental_health_referral": _choice(_MENTAL_HEALTH),
    "surgical_referral": _flag,
    "rationale": _text,
}


# `float` for whole numbers too: `int` refuses long ones with an error of its own.
_DECODER = json.JSONDecoder(
    object_pairs_hook=keys_once, parse_constant=no_constant, parse_int=float
)


def _read_fields(given: Mapping[str, Any]) -> Decision:
    fields: dict[str, Any] = {}
    for key, value in given.items():
        name = _KEYS.get(key) or _KEYS.get(_normal(key))
        if name is None:
            continue
        if name in fields:
            raise UnreadableError(f"{name} is given twice")
        try:
            fields[name] = _READERS[name](value)
        except UnreadableError as error:
            raise UnreadableError(f"{name}: {error}") from None
    if len(fields) != len(_READERS):
        missing = ", ".join(name for name in _READERS if name not in fields)
        raise UnreadableError(f"missing: {missing}")
    return Decision(**fields)


def _looks_like_decision(given: Mapping[str, Any]) -> bool:
    return any(_normal(key) in _KEYS for key in given)


def _candidates(text: str) -> list[tuple[dict[str, Any], int]]:
    """The outermost JSON objects in `text` that hold a key of the schema, each with its end.

    After a broken object the search goes on where the decoder gave up, so that nothing inside
    one is taken for a decision.
    """
    candidates, broken, position = [], False, 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, position = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            broken, position = True, max(error.pos, start + 1)
            continue
        if _looks_like_decision(value):
            candidates.append((value, position))
    if broken and not candidates:
        raise UnreadableError("not valid JSON")
    return candidates


def _read_reply(reply: str) -> Decision:
    text = answer_of(reply, MAX_REPLY_CHARACTERS)
    refuse_openings(text, MAX_OPENINGS)
    candidates = _candidates(text)
    decisions = {_read_fields(fields) for fields, _ in candidates}
    if not decisions:
        raise UnreadableError("no JSON object with a decision")
    if len(decisions) > 1:
        raise UnreadableError("several decisions that differ")
    decision = decisions.pop()
    ended = text[candidates[0][1] :].strip() in _NOTHING_MORE
    return decision if ended else replace(decision, trailing=True)


def parse_decision(reply: str) -> Decision | Unparseable:
    """Read the decision from a model's reply.

    Tolerated: reasoning before the JSON, code fences, letter case, hyphens and underscores, and
    synonyms with one meaning only. Refused: a missing field, a key given twice, a value with two
    meanings, several decisions that differ, a decision inside another object. Nothing is guessed.
    Never raises; `MAX_REPLY_CHARACTERS` and `MAX_OPENINGS` bound the work.
    """
    try:
        return _read_reply(reply)
    except UnreadableError as error:
        return Unparseable(str(error))
