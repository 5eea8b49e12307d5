"""The prompts of the fairness task: which vignettes a run uses, and what it never trains on.

What decides an answer is the combination of findings, so that is what is held out: the sets of
one combination are all in one split. Of an injury that is left out nothing is trained on at all,
and words that imply a race are others in training than in evaluation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from data_prep.contract import DataSettings
from data_prep.fairness.vignettes import (
    CUES,
    INJURIES,
    SETS_OF_PATIENTS,
    TASK,
    ClinicalCase,
    Cue,
    Injury,
    Patient,
    case_named,
    clinical_cases,
    control,
    cue_words,
    injuries_named,
    patient_sets,
    vignettes,
)
from data_prep.splits import (
    Fractions,
    sample_names,
    sample_sets,
    split_counts,
    split_sets,
    whole_sets,
)
from environments.base import CONTROL_SPLIT, TEST_SPLIT, TRAIN_SPLIT, PromptRecord
from environments.fairness import RACES
from environments.fairness.own_cases import ATTRIBUTE, OwnCasesPath, read_own_cases
from equipoise.files.disk import seeded_digest
from equipoise.files.records import named_faults

#: An injury that is left out is tested on one in so many of its cases: the local model's warm start
#: may see the others, as a pre-trained model has seen every injury.
_ONE_IN = 3

#: What of a set of an evaluation split was never trained on.
HoldOut = Literal["new patient", "new combination", "new injury"]

Choice = TypeVar("Choice", bound=str)


_SAID_BY_THE_FILE = {
    "cases": "take out of the file what is not to be asked",
    "leave_out": "cases that are neither in its train nor in its validate are tested alone",
    "implied_share": "words that imply a value are words of that value there",
    "fractions": "its train and validate say which cases are for what",
}
_NOT_LOCAL = (
    "the local model knows the cases that come with it and none of your own (cases_file); name "
    "another one with --model-name, such as smollm2"
)
_NOTHING_TO_TRAIN = (
    "{} names no case under `train`, so all of them are tested; name there what to train on, under "
    "`validate` what to choose a checkpoint by, and leave some cases to be tested. "
    "`equipoise evaluate` needs none"
)


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """Which vignettes a run uses. Every injury, or case that is named, has 2,304 of them."""

    num_samples: int | None = Field(None, description="vignettes in whole sets; null for all")
    cases: list[str] = Field(
        [], description="injuries, or single cases of them (whiplash/5-numb-root-worse); [] for all"
    )
    leave_out: list[str] = Field([], description="injuries to test on and never train on")
    implied_share: float = Field(
        0.0, ge=0, le=1, description="of the sets: race is never named but implied, by a name say"
    )
    fractions: Fractions = Fractions()
    seed: int = Field(0, ge=0, description="of sample, findings, words and splits")
    cases_file: OwnCasesPath | None = Field(
        None, description="your own cases, beside which num_samples and seed alone may be given"
    )

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.cases_file:
            return self
        sources = _sources(self)
        sets = SETS_OF_PATIENTS * len(sources)
        if self.num_samples is not None:
            sets = whole_sets(self.num_samples, len(RACES), sets)
        split_counts(sets, self.fractions.model_dump())
        return self

    @property
    def unread(self) -> Mapping[str, str]:
        """The keys that a file of the user's own cases sets itself."""
        return _SAID_BY_THE_FILE if self.cases_file else {}

    @property
    def no_local_model(self) -> str:
        """Refuse a user's own cases: the invented clinician it imitates knows none of them."""
        return _NOT_LOCAL if self.cases_file else ""

    @property
    def no_training(self) -> str:
        """Refuse a file of the user's own cases that names none to train on."""
        if self.cases_file is None or read_own_cases(self.cases_file).train:
            return ""
        return _NOTHING_TO_TRAIN.format(self.cases_file)

    @property
    def training_prompts(self) -> int | None:
        """The number that a file of the user's own cases gives; None without one."""
        if self.cases_file is None:
            return None
        return sum(record.split == TRAIN_SPLIT for record in _own_prompts(self.cases_file, self))

    @property
    def invented(self) -> bool:
        """All cases of the project are invented, so anyone may see them."""
        return self.cases_file is None


@dataclass(frozen=True, slots=True)
class _Source:
    """An injury, or a single case of one, with the cases that its 576 sets are given."""

    name: str
    cases: Sequence[ClinicalCase]
    hold_out: HoldOut


@dataclass(frozen=True, slots=True)
class _Draft:
    """A counterfactual set before it is known which split it is in."""

    case: ClinicalCase
    patients: tuple[Patient, ...]
    hold_out: HoldOut


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The vignettes with their splits, then one control prompt for each case that is tested.

    A user's own cases give all prompts of the file, without controls. Raises `ValueError` if too
    little is left to train on.
    """
    if settings.cases_file:
        return _own_prompts(settings.cases_file, settings)
    drafts = _drafts(_sources(settings), settings.seed)
    records = [
        record
        for set_id, draft in drafts.items()
        for record in vignettes(set_id, draft.case, draft.patients, "named", RACES)
    ]
    if settings.num_samples is not None:
        records = sample_sets(records, settings.num_samples, settings.seed)
    split_of = _splits(records, drafts, settings)
    finished = [
        record
        for set_id, split in split_of.items()
        for record in _finished(set_id, drafts[set_id], split, settings)
    ]
    tested = {drafts[r.set_id].case.name: r for r in finished if r.split == TEST_SPLIT}
    return finished + [control(r, drafts[r.set_id].case) for r in tested.values()]


def _own_prompts(path: Path, settings: PromptSettings) -> list[PromptRecord]:
    """Those of a file, or a sample of whole sets where there are more than are asked for."""
    records = read_own_cases(path).records(TASK)
    if settings.num_samples is None or settings.num_samples >= len(records):
        return records
    names = list(dict.fromkeys(record.set_id for record in records))
    number = max(1, settings.num_samples * len(names) // len(records))
    set_ids = sample_names(names, number, settings.seed)
    return [record for record in records if record.set_id in set_ids]


def _sources(settings: PromptSettings) -> list[_Source]:
    """The sources of vignettes, injuries first. Raises `ValueError` for unknown or double names."""
    left_out = injuries_named(settings.leave_out)
    single = [case_named(name) for name in dict.fromkeys(settings.cases) if "/" in name]
    injuries = injuries_named([name for name in settings.cases if "/" not in name])
    if not settings.cases:
        injuries = [injury for injury in INJURIES if injury not in left_out]
    trained = {injury.name for injury in injuries} | {case.injury.name for case in single}
    if overlap := sorted(trained & {injury.name for injury in left_out}):
        raise ValueError(f"{', '.join(overlap)} cannot be among the cases and left out")
    if overlap := sorted(
        {injury.name for injury in injuries} & {case.injury.name for case in single}
    ):
        raise ValueError(f"a single case of {', '.join(overlap)} is among all of its cases")
    if not trained:
        raise ValueError("every injury is left out: there is nothing to train on")
    return [
        *(_Source(i.name, _shuffled(i, settings.seed), "new combination") for i in injuries),
        *(_Source(case.name, [case], "new patient") for case in single),
        *(_Source(i.name, _shuffled(i, settings.seed)[::_ONE_IN], "new injury") for i in left_out),
    ]


def _shuffled(injury: Injury, seed: int) -> list[ClinicalCase]:
    return sorted(clinical_cases(injury), key=lambda case: seeded_digest(seed, case.name))


def _drafts(sources: Sequence[_Source], seed: int) -> dict[str, _Draft]:
    """Give every set of patients a case of its source, so that samples hold many cases."""
    drafts: dict[str, _Draft] = {}
    for source in sources:
        sets = {f"{source.name}/{n:03d}": patients for n, patients in enumerate(patient_sets())}
        ranked = sorted(sets, key=lambda set_id: seeded_digest(seed, set_id))
        case_of = {name: source.cases[n % len(source.cases)] for n, name in enumerate(ranked)}
        drafts |= {name: _Draft(case_of[name], sets[name], source.hold_out) for name in sets}
    return drafts


def _splits(
    records: Sequence[PromptRecord], drafts: dict[str, _Draft], settings: PromptSettings
) -> dict[str, str]:
    """The split of each set: every severity is cut alike, and no combination is cut at all."""
    split_of = dict.fromkeys((record.set_id for record in records), TEST_SPLIT)
    trained = {name: drafts[name] for name in split_of if drafts[name].hold_out != "new injury"}
    first = {r.set_id: r for r in records}
    # What is never cut: the sets of one combination; of a single case a set alone.
    units = [
        replace(first[n], set_id=n if draft.hold_out == "new patient" else draft.case.name)
        for n, draft in trained.items()
    ]
    cut = split_sets(units, settings.fractions.model_dump(), settings.seed, "severity")
    return split_of | {name: unit.split for name, unit in zip(trained, cut, strict=True)}


def _finished(
    set_id: str, draft: _Draft, split: str, settings: PromptSettings
) -> list[PromptRecord]:
    """The set as the run uses it: in its split, and race named or implied."""
    chance = int.from_bytes(seeded_digest(settings.seed, f"implied {set_id}")[:4]) / 2**32
    implied = chance < settings.implied_share
    cue: Cue = _pick(list(CUES), f"cue of {set_id}") if implied else "named"
    trained = split == TRAIN_SPLIT
    words = [
        _pick(cue_words(cue, race, settings.seed, trained=trained), f"{race} in {set_id}")
        for race in RACES
    ]
    held_out = {} if trained else {"hold_out": draft.hold_out}
    return [
        replace(record, split=split, metadata={**record.metadata, **held_out})
        for record in vignettes(set_id, draft.case, draft.patients, cue, words)
    ]


def _pick(choices: Sequence[Choice], name: str) -> Choice:
    return choices[int.from_bytes(seeded_digest(0, name)[:4]) % len(choices)]


# --- checks of prompts from any source -----------------------------------------------------------


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that the environment could not score, from any source."""
    variants = [record for record in records if record.split != CONTROL_SPLIT]
    keys: set[tuple[str, object]] = set()
    duplicates = []
    for record in variants:
        variant = (record.set_id, _value(record))
        duplicates += [record.id] if variant in keys else []
        keys.add(variant)
    valueless = [r.id for r in variants if not _is_known(r)]
    caseless = [r.id for r in records if not isinstance(r.metadata.get("case"), str)]
    name = next((_attribute(record) for record in variants), "race")
    attribute = f"race ({', '.join(RACES)})" if name == "race" else name
    return named_faults(
        {
            f"prompts have no {attribute} in their metadata": valueless,
            f"prompts have the {name} of another one of their set": [] if valueless else duplicates,
            "prompts name no clinical case in their metadata": caseless,
        }
    )


def _attribute(record: PromptRecord) -> str:
    return str(record.metadata.get(ATTRIBUTE, "race"))


def _value(record: PromptRecord) -> object:
    return record.metadata.get(_attribute(record))


def _is_known(record: PromptRecord) -> bool:
    """Whether a prompt tells its value; those of a user's own cases the environment knows."""
    value = _value(record)
    return isinstance(value, str) if ATTRIBUTE in record.metadata else value in RACES
