"""The small model of the fairness task, which imitates the invented clinician."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from data_prep.fairness.cases import INJURIES, ClinicalCase, clinical_cases, injuries_named
from data_prep.fairness.clinician import answer, answer_on_own_case
from data_prep.fairness.patients import CUES, FACTORS, Cue, Patient, patient_sets
from data_prep.fairness.vignettes import control, vignettes
from data_prep.faults import UnsuitablePromptsError
from data_prep.imitation import imitating_model
from data_prep.warm_start import WarmStart
from environments.addresses import AbsolutePath
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.fairness.own_cases import read_own_cases

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate "
    "an invented clinician whose racial bias was written down beforehand. It exists to show and "
    "to test the pipeline on a machine without a GPU. Its bias, and what training does to it, "
    "say nothing of any clinical model, of any patient or of any population."
)


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates the invented clinician."""

    steps: int = Field(900, ge=1)
    control_share: float = Field(default=0.05, ge=0, le=1, description="answers to control prompts")
    implied_share: float = Field(
        default=0.4, ge=0, le=1, description="of the vignettes, in a run whose prompts imply race"
    )
    cases_file: AbsolutePath | None = Field(
        None, description="your own cases, to which a cold start shows replies of their form"
    )


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model for these prompts, from `cache` if it is there.

    Raises `UnsuitablePromptsError` for other clinical cases than those made here.
    """
    return imitating_model(imitated_replies(records, settings), settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, each with a fresh answer.

    They are drawn from all cases of the records' injuries, all patients and all words that name or
    imply a race, without the cases that are held out (where patients are held out: without these
    patients of the case). So the model is as good when a run uses few vignettes, it knows every
    word that it is evaluated on, and no prompt of an evaluation split was ever shown to it.

    Of a user's own cases they are those of the records that are trained on. Raises
    `UnsuitablePromptsError` for other cases than these.
    """
    rng = np.random.default_rng(settings.seed)
    if settings.cases_file:
        return _replies_to_own_cases(records, settings.cases_file, settings, rng)
    injury_names = {injury.name for injury in INJURIES}
    if foreign_cases := {record.metadata["case"] for record in records} - injury_names:
        raise UnsuitablePromptsError(
            f"the local model of this task knows its own injuries alone, not {min(foreign_cases)!r}"
        )
    pool = _Pool.of(records, settings)
    prompts = [pool.draw(rng) for _ in range(settings.steps * settings.batch_size)]
    return [(record, answer(record.metadata, rng)) for record in prompts]


def _replies_to_own_cases(
    records: Sequence[PromptRecord],
    cases_file: Path,
    settings: LocalModelSettings,
    rng: np.random.Generator,
) -> list[tuple[PromptRecord, str]]:
    design = read_own_cases(cases_file).design()
    trained = [record for record in records if record.split == TRAIN_SPLIT]
    indices = rng.integers(len(trained), size=settings.steps * settings.batch_size)
    return [(trained[n], answer_on_own_case(trained[n].metadata, design, rng)) for n in indices]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Cases and patients for the warm start's prompts."""

    cases: Sequence[ClinicalCase]
    patients: Sequence[Sequence[Patient]]
    not_together: frozenset[tuple[str, str]]  # a case and a set of patients
    settings: LocalModelSettings
    implied: bool

    @classmethod
    def of(cls, records: Sequence[PromptRecord], settings: LocalModelSettings) -> "_Pool":
        held_out = [r.metadata for r in records if r.metadata.get("hold_out")]
        combinations = {m["combination"] for m in held_out if m["hold_out"] != "new patient"}
        pairs = {(m["combination"], _factors(m)) for m in held_out}
        injuries = injuries_named(sorted({record.metadata["case"] for record in records}))
        cases = [case for injury in injuries for case in clinical_cases(injury)]
        return cls(
            [case for case in cases if case.name not in combinations],
            list(patient_sets()),
            frozenset(pairs),
            settings,
            any(record.metadata.get("cue") == "implied" for record in records),
        )

    def draw(self, rng: np.random.Generator) -> PromptRecord:
        """One prompt: a control, or a vignette of a patient that may be shown."""
        case = self.cases[int(rng.integers(len(self.cases)))]
        patients = self.patients[int(rng.integers(len(self.patients)))]
        if (case.name, _factors(patients[0])) in self.not_together:
            return self.draw(rng)
        patient = patients[int(rng.integers(len(patients)))]
        cue, word = self._race(patient["race"], rng)
        [record] = vignettes("warm start", case, [patient], cue, [word])
        is_control = rng.random() < self.settings.control_share
        return control(record, case) if is_control else record

    def _race(self, race: str, rng: np.random.Generator) -> tuple[Cue, str]:
        """A word for the race, and what kind of word it is."""
        if not self.implied or rng.random() >= self.settings.implied_share:
            return "named", race
        cue = list(CUES)[rng.integers(len(CUES))]
        around, words = CUES[cue]
        return cue, around.format(words[race][rng.integers(len(words[race]))])


def _factors(patient: Patient) -> str:
    return "/".join(patient[name] for name in FACTORS if name != "race")
