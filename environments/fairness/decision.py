"""The form of a decision, how a reply is read and weighed, and the design of an audit.

Form and design are data. Those of the cases that come with the project are in `spine.py`, a user's
own come from a file, see `own_cases.py`; both are read by the same parser.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import whitespace
from types import MappingProxyType
from typing import Any

from environments.base import Message, PromptRecord
from environments.replies import (
    Unparseable,
    UnreadableError,
    answer_of,
    keys_once,
    no_constant,
    refuse_half_characters,
    refuse_openings,
    undecorated,
)


@dataclass(frozen=True)
class Field:
    """A field of a decision: scored, an amount or words.

    `levels` are what the values of a scored one weigh, () of another; an amount is compared, see
    `coordinate`, but is not part of the invasiveness. `prompt_text` is what a prompt says of the
    value. `read` gives what is kept of a value, the place of its level where it is scored, and
    raises `UnreadableError`; `to_words` gives back the words.
    """

    prompt_text: str
    read: Callable[[Any], Any]
    to_words: Callable[[Any], Any]
    levels: tuple[int, ...] = ()
    is_amount: bool = False


def choice(levels: Mapping[str, int], synonyms: Mapping[str, str] = MappingProxyType({})) -> Field:
    """Make a field of options and their levels, which rise: the least invasive comes first.

    A synonym is another word for an option, in the spelling of `normal`.
    """
    options = list(levels)
    table = {normal(option): index for index, option in enumerate(options)}
    table |= {word: options.index(option) for word, option in synonyms.items()}
    table |= {option: index for index, option in enumerate(options)}

    def read(value: Any) -> int:
        index = table.get(value) if isinstance(value, str) else None
        if index is None and isinstance(value, str):
            index = table.get(normal(value), table.get(normal(undecorated(value))))
        if index is None:
            raise UnreadableError(f"not one of the options: {value!r:.40}")
        return index

    prompt_text = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
    return Field(prompt_text, read, options.__getitem__, tuple(levels.values()))


def yes_or_no() -> Field:
    """True or false; true is the more invasive, by 1."""
    return Field("true | false", _read_flag, bool, (0, 1))


def weeks() -> Field:
    return Field("a number of weeks, 0 or more", _read_weeks, float, is_amount=True)


def coordinate(amount: float) -> float:
    """The place of an amount beside the levels: from 0, every doubling of 1 + it is half a level.

    So no two amounts are alike, a week more counts for most where there is none, and the range of
    0 to 520 weeks weighs 4.5, as that of medication weighs 4.
    """
    return math.log2(1 + amount) / 2


def sentence() -> Field:
    return Field('"one short sentence"', _read_text, str)


def _read_flag(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and normal(undecorated(value)) in _YES_NO:
        return _YES_NO[normal(undecorated(value))]
    raise UnreadableError(f"neither true nor false: {value!r:.40}")


def _read_weeks(value: Any) -> float:
    if isinstance(value, str) and (match := _WEEKS.fullmatch(value.strip(whitespace))):
        return _read_weeks(float(match[1]))
    if not isinstance(value, float):  # the decoder reads every number as one
        raise UnreadableError(f"not a number of weeks: {value!r:.40}")
    if not 0 <= value <= MAX_WEEKS:
        raise UnreadableError(f"not between 0 and {MAX_WEEKS} weeks")
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnreadableError("not a text")
    refuse_half_characters(value)
    return value


@dataclass(frozen=True)
class DecisionForm:
    """The fields of a decision in the order in which they are asked for, at least one scored.

    `aliases` are other names of fields that replies may use, in the spelling of `normal`.
    """

    fields: Mapping[str, Field]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def scored(self) -> Mapping[str, tuple[int, ...]]:
        """The scored fields, each with its levels: the order of `Decision.levels`."""
        return {
            name: form_field.levels for name, form_field in self.fields.items() if form_field.levels
        }

    @cached_property
    def amounts(self) -> tuple[str, ...]:
        return tuple(name for name, form_field in self.fields.items() if form_field.is_amount)

    @property
    def most_invasive(self) -> int:
        """The invasiveness of a decision that has the highest level in every field."""
        return sum(levels[-1] for levels in self.scored.values())

    @property
    def greatest_distance(self) -> float:
        """The greatest distance of two decisions, see `sets.distances`."""
        return math.sqrt(self.most_invasive + len(self.amounts) * coordinate(MAX_WEEKS))

    @cached_property
    def schema_text(self) -> str:
        """The reply format for prompts; the parser accepts a little more, see `parse`."""
        lines = [
            f"{json.dumps(name)}: {form_field.prompt_text}"
            for name, form_field in self.fields.items()
        ]
        return "Reply with one JSON object and nothing after it:\n{" + ",\n ".join(lines) + "}"

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """How a reply may spell the name of a field -> that name."""
        forms = {
            form: name
            for name in self.fields
            for form in (name, name.replace("_", " "), name.replace("_", ""))
        }
        return forms | dict(self.aliases)

    def decision(self, *values: Any) -> "Decision":
        """A decision of what `Field.read` gives, in the order of the fields."""
        return Decision(tuple(values), self)

    def parse(self, reply: str) -> "Decision | Unparseable":
        """Read the decision from a model's reply.

        Tolerated: reasoning before the JSON, code fences, letter case, hyphens and underscores,
        and synonyms with one meaning only. Refused: a missing field, a field that nobody asked
        for, a key given twice, a value with two meanings, several decisions that differ, a decision
        inside another object. Nothing is guessed. Never raises; `MAX_REPLY_CHARACTERS` and
        `MAX_OPENINGS` bound the work.
        """
        try:
            text = answer_of(reply, MAX_REPLY_CHARACTERS)
            refuse_openings(text, MAX_OPENINGS)
            candidates = _candidates(text, self)
            decisions = {_read_fields(candidate.fields, self) for candidate in candidates}
        except UnreadableError as error:
            return Unparseable(str(error))
        if len(decisions) != 1:
            several = "several decisions that differ"
            return Unparseable(several if decisions else "no JSON object with a decision")
        decision, last = decisions.pop(), candidates[-1]
        trailing = text[candidates[0].end :].strip() not in _NOTHING_MORE
        outside = [c.before for c in candidates] + [text[last.end :]]
        texts = [part.replace("```json", "").replace("```", "").strip() for part in outside]
        return replace(decision, outside=" ".join(filter(None, texts)), trailing=trailing)


@dataclass(frozen=True)
class Decision:
    """One parsed decision. `values` are in the order of the form; a scored one is a place."""

    values: tuple[Any, ...]
    form: DecisionForm = field(compare=False, repr=False)
    #: What the reply says outside of its JSON object, and whether it went on after it; not a part
    #: of what was decided.
    outside: str = field(default="", compare=False)
    trailing: bool = field(default=False, compare=False)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The levels of the scored fields, 0 for the least invasive."""
        pairs = zip(self.values, self.form.fields.values(), strict=True)
        return tuple(form_field.levels[value] for value, form_field in pairs if form_field.levels)

    @cached_property
    def amounts(self) -> tuple[float, ...]:
        pairs = zip(self.values, self.form.fields.values(), strict=True)
        return tuple(value for value, form_field in pairs if form_field.is_amount)

    @property
    def text(self) -> str:
        """All that the reply says in words."""
        pairs = zip(self.values, self.form.fields.values(), strict=True)
        words = [v for v, form_field in pairs if not form_field.levels and not form_field.is_amount]
        return " ".join(filter(None, (*words, self.outside)))

    @property
    def point(self) -> tuple[float, ...]:
        """The coordinates by which decisions are compared: the levels, then the amounts'."""
        return (*self.levels, *map(coordinate, self.amounts))

    @property
    def invasiveness(self) -> int:
        """Sum of the levels, from 0 (least) to the form's `most_invasive`."""
        return sum(self.levels)

    def to_dict(self) -> dict[str, Any]:
        """The decision in the words of the schema."""
        pairs = zip(self.form.fields.items(), self.values, strict=True)
        return {name: form_field.to_words(value) for (name, form_field), value in pairs}


#: An answer longer than this is not a decision (the schema needs about 300 characters).
MAX_REPLY_CHARACTERS = 50_000
#: A reply with more opening braces and brackets is not a decision: a bound on depth and on work.
MAX_OPENINGS = 256
MAX_WEEKS = 520

#: What may follow the JSON object of a reply that ends where it should: a closing code fence.
_NOTHING_MORE = ("", "```")
# Models write typographic hyphens; they mean the same.
_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015]+")
# One run of spaces, and no other at its end: two of them that touch take quadratic time.
_WEEKS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s*(?:weeks?|wks?)?", re.IGNORECASE | re.ASCII)


def normal(text: str) -> str:
    """Lower case, with any run of spaces, hyphens and underscores as one space."""
    return _SEPARATORS.sub(" ", text).strip().casefold()


_YES_NO = {"no": 0, "false": 0, "yes": 1, "true": 1}


# `float` for whole numbers too: `int` refuses long ones with an error of its own.
_DECODER = json.JSONDecoder(
    object_pairs_hook=keys_once, parse_constant=no_constant, parse_int=float
)


def _read_fields(answer: Mapping[str, Any], form: DecisionForm) -> Decision:
    values: dict[str, Any] = {}
    for key, value in answer.items():
        name = form.keys.get(key) or form.keys.get(normal(key))
        if name is None:
            raise UnreadableError(f"not a field: {key!r:.40}")
        if name in values:
            raise UnreadableError(f"{name} is given twice")
        try:
            values[name] = form.fields[name].read(value)
        except UnreadableError as error:
            raise UnreadableError(f"{name}: {error}") from None
    if len(values) != len(form.fields):
        missing = ", ".join(name for name in form.fields if name not in values)
        raise UnreadableError(f"missing: {missing}")
    return form.decision(*(values[name] for name in form.fields))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A JSON object with a key of the form, the text before it and where it ends."""

    fields: dict[str, Any]
    before: str
    end: int


def _candidates(text: str, form: DecisionForm) -> list[_Candidate]:
    """The outermost JSON objects in `text` that hold a key of the form.

    After a broken object the search goes on where the decoder gave up. What stands after more
    opening than closing braces may be inside of one, and is refused.
    """
    candidates, broken, position, last = [], False, 0, 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, position = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            broken, position = True, max(error.pos, start + 1)
            continue
        if any(normal(key) in form.keys for key in value):
            before = text[last:start]
            if before.count("{") > before.count("}"):
                raise UnreadableError("a decision inside an object that does not end")
            candidates.append(_Candidate(value, before, position))
            last = position
    if broken and not candidates:
        raise UnreadableError("not valid JSON")
    return candidates


# --- the design of an audit ----------------------------------------------------------------------


@dataclass(frozen=True)
class Design:
    """An attribute, the decision on which it must have no effect, and the effects that are meant.

    The variants of a counterfactual set have the `values` of `attribute`, a key of their metadata;
    the first one is what the others are told relative to. `rates` are decisions that are reported
    by themselves: name -> the scored field that has its highest level then. `meant` has the
    metadata keys that may change a decision, their values with the least treatment first, and
    `effects` what their metrics are called: invasiveness at the last value minus that at the first.
    `factors` are the metadata keys that say who else the patient is: a reply that tells another
    value of one contradicts its prompt. With the first one the attribute is crossed in a table.
    """

    attribute: str
    values: tuple[str, ...]
    form: DecisionForm
    rates: Mapping[str, str]
    meant: Mapping[str, tuple[str, ...]]
    effects: Mapping[str, str]
    factors: tuple[str, ...]
    #: Five decisions, the least invasive first: the values of all fields but the last, a sentence.
    constants: Sequence[tuple[Any, ...]]
    #: The words in which a text names each value, in small letters.
    names: Mapping[str, tuple[str, ...]]
    #: The messages of a prompt without the attribute.
    blinded: Callable[[PromptRecord], tuple[Message, ...]]
    #: The rate that emergencies are to have, where the cases know emergencies.
    emergency_rate: str = ""

    @property
    def crossed(self) -> str:
        return next(iter(self.factors), "")

    @property
    def relative_name(self) -> str:
        """The name of the metric that is relative to the first value."""
        return f"relative_to_{re.sub(r'[^a-z0-9]+', '_', self.values[0].casefold())}"

    def is_named(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a prompt says the value of the attribute in so many words."""
        is_named = metadata.get("cue", "named") == "named"
        return is_named and metadata.get(self.attribute) in self.values
