"""A user's own cases: one YAML file with texts, attribute, factors and decision makes a design.

`nemo_configs/cases/` has an example, docs/own-data.md says what each key is. The texts have fields
in braces: `{person}` is filled with the wording of a value, `{Person}` with the same as a sentence
begins.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, Message, PromptRecord
from environments.fairness.decision import DecisionForm, Design, choice, normal, sentence, yes_or_no
from environments.yaml_file import AbsolutePath, FaultsError, nearest, read_yaml_file

#: What the last field of every decision is called; it is asked for by itself.
RATIONALE = "rationale"
#: The metadata key that says what the attribute of a prompt of a user's own cases is.
ATTRIBUTE = "attribute"
#: Metadata keys with a meaning of their own, which no attribute and no factor may take.
_TAKEN = (
    *(ATTRIBUTE, "case", "severity", "combination", "emergency", "cue", "hold_out", "blind"),
    RATIONALE,
)
_SEVERITIES = ("mild", "moderate", "severe")
#: The permutation test tables every order of the values: 120 for five.
_MOST_VALUES = 5
_PLACE = re.compile(r"\{([^{}]*)\}")

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=60, strip_whitespace=True)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=20_000, strip_whitespace=True)]
Level = Annotated[int, Field(ge=0, le=100)]
Wording = Mapping[str, str]


class Attribute(BaseModel, extra="forbid", frozen=True):
    """An attribute that must not matter. Each value is a word for `{name}`, or field -> words."""

    name: Name
    values: dict[Label, str | dict[Name, str]] = Field(min_length=2, max_length=_MOST_VALUES)
    #: The same fields, saying nothing of it; without it nothing can be blinded.
    blinded: str | dict[Name, str] | None = None


class Case(BaseModel, extra="forbid", frozen=True):
    """A clinical picture with fields to fill in."""

    text: Text
    severity: Literal["mild", "moderate", "severe"] | None = None


class OwnCases(BaseModel, extra="forbid", frozen=True):
    """The content of a file, whole: what cannot work is refused, all of it at once."""

    attribute: Attribute
    factors: dict[Name, dict[Label, str | dict[Name, str]]] = {}
    meant: list[Name] = []
    system: Text
    decision: dict[Name, Literal["yes or no"] | list[Label] | dict[Label, Level]] = Field(
        min_length=1
    )
    cases: dict[Label, Case] = Field(min_length=1)
    train: list[Label] = []
    validate_: list[Label] = Field([], alias="validate")

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        faults = [*self._faults_of_names(), *self._faults_of_words()]
        faults += [*self._faults_of_decision(), *self._faults_of_use()]
        if faults:
            raise FaultsError(faults)
        if faults := [*self._faults_of_texts()] or [*self._faults_of_prompts()]:
            raise FaultsError(faults)
        return self

    # --- what is wrong with a file --------------------------------------------------------------

    def _faults_of_names(self) -> Iterator[str]:
        names = [("attribute.name", self.attribute.name)]
        names += [(f"factors.{name}", name) for name in self.factors]
        for location, name in names:
            if name in _TAKEN:
                yield f"{location}: {name} has a meaning of its own: take another name"
        if self.attribute.name in self.factors:
            yield f"factors.{self.attribute.name}: is the attribute already"

    def _faults_of_words(self) -> Iterator[str]:
        fields: dict[str, str] = {}
        for owner, worded in self._worded.items():
            location = "attribute.values" if owner == self.attribute.name else f"factors.{owner}"
            if len(worded) < 2:
                yield f"{location}: one value alone: there is nothing to compare it with"
            field_names = set().union(*worded.values())
            for value, wording in worded.items():
                for missing in sorted(field_names - wording.keys()):
                    yield f"{location}.{value}: has no words for {missing}, as another value has"
            for field in sorted(field_names):
                if fields.setdefault(field, owner) != owner:
                    yield f"{location}: {field} is a field of {fields[field]} too"
        field_names = set().union(*self._worded[self.attribute.name].values())
        blinded = _wording(self.attribute.blinded, self.attribute.name)
        if blinded is not None and blinded.keys() != field_names:
            yield f"attribute.blinded: should have words for {', '.join(sorted(field_names))}"

    def _faults_of_decision(self) -> Iterator[str]:
        spellings: dict[str, str] = {}
        for name, options in self.decision.items():
            plain = name.replace("_", "")
            if name == RATIONALE:
                yield f"decision.{name}: is asked for anyway"
            if spellings.setdefault(plain, name) != name:
                yield f"decision.{name}: reads like {spellings[plain]}"
            if options == "yes or no":
                continue
            levels = _levels(options)
            if len(levels) < 2:
                yield f"decision.{name}: one level alone: there is nothing to decide"
            if len({normal(option) for option in levels}) < len(options):
                yield f"decision.{name}: two of its levels read alike"
            weights = list(levels.values())
            if any(high <= low for low, high in itertools.pairwise(weights)):
                weights_text = ", ".join(map(str, weights))
                yield (
                    f"decision.{name}: its levels weigh {weights_text}: order them from the least "
                    "to the most invasive, each above the one before"
                )
            elif weights[:1] != [0]:
                yield f"decision.{name}: the least invasive level should weigh 0"

    def _faults_of_use(self) -> Iterator[str]:
        for name in self.meant:
            if name not in self.factors:
                yield f"meant: {name} is not a factor{nearest(name, self.factors)}"
        for key, names in (("train", self.train), ("validate", self.validate_)):
            for name in names:
                if name not in self.cases:
                    yield f"{key}: {name} is not a case{nearest(name, self.cases)}"
        for name in sorted(set(self.train) & set(self.validate_)):
            yield f"validate: {name} is trained on"
        if not set(self.cases) - {*self.train, *self.validate_}:
            yield "train, validate: no case is left to be tested"
        graded = {name for name, case in self.cases.items() if case.severity}
        for name in self.cases:
            if graded and name not in graded:
                yield f"cases.{name}.severity: is missing, and other cases have one"

    def _faults_of_texts(self) -> Iterator[str]:
        """Fields that do not exist, and those that would make no difference."""
        worded = self._worded
        owners = {field: owner for owner, values in worded.items() for field in _first(values)}
        for placeholder in _PLACE.findall(self.system):
            yield f"system: {{{placeholder}}} is not filled in here: put it into the cases' texts"
        for name, case in self.cases.items():
            placeholders = [field[:1].lower() + field[1:] for field in _PLACE.findall(case.text)]
            for field in dict.fromkeys(placeholders):
                if field not in owners:
                    yield f"cases.{name}.text: {{{field}}} is not a field{nearest(field, owners)}"
            if _PLACE.sub("", case.text).count("{") or _PLACE.sub("", case.text).count("}"):
                yield f"cases.{name}.text: has a brace that belongs to no field"
            for owner, values in worded.items():
                fields = list(_first(values))
                if not set(fields) & set(placeholders):
                    places = " or ".join(f"{{{field}}}" for field in fields)
                    yield (
                        f"cases.{name}.text: nothing in it tells {owner}, so that its values make "
                        f"no difference: write {places}"
                    )

    def _faults_of_prompts(self) -> Iterator[str]:
        """Prompts that are there twice: they would show no difference."""
        prompts: dict[str, str] = {}
        for name, combination in self._combinations():
            label = ", ".join((name, *combination.values()))
            first_label = prompts.setdefault(self._text(name, combination), label)
            if first_label != label:
                yield f"cases: the same prompt twice: ({first_label}) and ({label})"

    # --- what it makes ---------------------------------------------------------------------------

    def design(self) -> Design:
        fields = {
            name: yes_or_no() if options == "yes or no" else choice(_levels(options))
            for name, options in self.decision.items()
        }
        form = DecisionForm({**fields, RATIONALE: sentence()})
        graded = any(case.severity for case in self.cases.values())
        meant = {name: tuple(self.factors[name]) for name in self.meant}
        return Design(
            attribute=self.attribute.name,
            values=tuple(self.attribute.values),
            form=form,
            rates={name: name for name in form.scored},
            meant={**({"severity": _SEVERITIES} if graded else {}), **meant},
            effects={
                **({"severity": "clinical_slope"} if graded else {}),
                **{name: f"{name}_effect" for name in meant},
            },
            factors=tuple(self.factors),
            constants=[
                tuple(round(share * (len(levels) - 1)) for levels in form.scored.values())
                for share in (0.0, 0.25, 0.5, 0.75, 1.0)
            ],
            names={value: tuple(normal(value).split(" or ")) for value in self.attribute.values},
            blinded=self._blinded,
        )

    def records(self, task: str) -> list[PromptRecord]:
        """Every case for every combination of the factors, in whole sets, each with its split."""
        form = self.design().form
        return [
            self._record(task, form, name, combination)
            for name, combination in self._combinations()
        ]

    def _record(
        self, task: str, form: DecisionForm, name: str, combination: Mapping[str, str]
    ) -> PromptRecord:
        case, value = self.cases[name], combination[self.attribute.name]
        set_id = "/".join((name, *(combination[factor] for factor in self.factors)))
        graded = {"severity": case.severity} if case.severity else {}
        split = VALIDATION_SPLIT if name in self.validate_ else TEST_SPLIT
        return PromptRecord(
            id=f"{set_id}/{value}",
            task=task,
            messages=(
                {"role": "system", "content": f"{self.system}\n{form.schema_text}"},
                {"role": "user", "content": self._text(name, combination)},
            ),
            set_id=set_id,
            split=TRAIN_SPLIT if name in self.train else split,
            metadata={ATTRIBUTE: self.attribute.name, "case": name, **graded, **combination},
        )

    def _blinded(self, record: PromptRecord) -> tuple[Message, ...]:
        """The messages with the words that tell nothing of the attribute, if the file has some."""
        words = _wording(self.attribute.blinded, self.attribute.name)
        metadata = record.metadata
        if words is None or metadata.get("case") not in self.cases:
            return record.messages
        text = self._text(str(metadata["case"]), {k: str(metadata[k]) for k in self._worded}, words)
        return (*record.messages[:-1], {**record.messages[-1], "content": text})

    def _combinations(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Combine cases with all values of the factors and the attribute, which varies fastest."""
        names = [*self.factors, self.attribute.name]
        values = [*self.factors.values(), self.attribute.values]
        for case in self.cases:
            for combination in itertools.product(*values):
                yield case, dict(zip(names, combination, strict=True))

    def _text(
        self, case: str, combination: Mapping[str, str], blinded: Wording | None = None
    ) -> str:
        words: dict[str, str] = {}
        for owner, value in combination.items():
            words |= self._worded[owner][value]
        words |= blinded or {}

        def fill(match: "re.Match[str]") -> str:
            field = match[1]
            if field in words:
                return words[field]
            text = words[field[:1].lower() + field[1:]]
            return text[:1].upper() + text[1:]

        return _PLACE.sub(fill, self.cases[case].text)

    @cached_property
    def _worded(self) -> Mapping[str, Mapping[str, Wording]]:
        """Attribute and factors -> value -> field -> words."""
        attributes = {**self.factors, self.attribute.name: self.attribute.values}
        return {
            owner: {value: _wording(words, owner) or {} for value, words in values.items()}
            for owner, values in attributes.items()
        }


def read_own_cases(path: Path) -> OwnCases:
    """A user's file. Raises `YamlFileError` with everything that is wrong with it."""
    return read_yaml_file(path, OwnCases)


def _refuse_unusable(path: Path) -> Path:
    read_own_cases(path)
    return path


#: A file of cases, refused where it cannot be used.
OwnCasesPath = Annotated[AbsolutePath, AfterValidator(_refuse_unusable)]


def _wording(words: str | Mapping[str, str] | None, owner: str) -> Wording | None:
    return {owner: words} if isinstance(words, str) else words


def _first(values: Mapping[str, Wording]) -> Wording:
    return next(iter(values.values()))


def _levels(options: Sequence[str] | Mapping[str, int]) -> Mapping[str, int]:
    """Option -> its level: a list weighs 0, 1, 2, ..."""
    if isinstance(options, Mapping):
        return options
    return {option: level for level, option in enumerate(options)}
