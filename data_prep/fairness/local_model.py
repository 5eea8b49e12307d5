"""The small model of the fairness task, and the biased clinician that it imitates.

The clinician's numbers are invented. They describe no person and no population; they make a small
model with a clinical signal to keep and a disparity to remove. He has heard all of his patients'
names and neighbourhoods: a race that is only implied moves him as much as one that is named.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from data_prep.contract import WarmStart
from data_prep.fairness.vignettes import (
    CUES,
    FACTORS,
    INJURIES,
    ClinicalCase,
    Cue,
    Patient,
    clinical_cases,
    control,
    injuries_named,
    patient_sets,
    vignettes,
)
from data_prep.splits import one_of
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.fairness import FORM
from environments.fairness.decision import Decision, Design
from environments.fairness.own_cases import read_own_cases
from environments.yaml_file import AbsolutePath
from equipoise.files.records import UnsuitablePromptsError

#: What each graded finding adds to the urgency, in the clinician's latent scale.
URGENCY: Mapping[str, Mapping[str, float]] = {
    "pain": {"3": -0.3, "5": -0.1, "7": 0.1, "9": 0.3},
    "deficit": {"none": -0.55, "numb": -0.2, "weak": 0.2, "cord": 1.2},
    "imaging": {"normal": -0.25, "bulge": -0.1, "root": 0.1, "canal": 0.25},
    "course": {"better": -0.2, "same": 0.0, "worse": 0.2},
}
#: What the patient's race adds to the urgency: the bias that training is to remove.
BIAS = {"White": 0.25, "Black": -0.35, "Hispanic or Latino": -0.15, "Asian": 0.2}
#: Differences that are meant, and that training is to keep: hard physical work and age.
OCCUPATION = {"blue-collar": 0.2, "white-collar": -0.2}
AGE = {"old": 0.15, "young": -0.15}

#: The weeks off work of each work status, one as likely as another.
WEEKS_OFF = ((0, 0, 1), (0, 1, 2), (4, 6, 8))
_RATIONALE = {
    "mild": "Minor injury, expected to settle.",
    "moderate": "Nerve root irritation, stepwise care.",
    "severe": "Neurological deficit, urgent care.",
}


def urgency(metadata: Mapping[str, str]) -> float:
    """The urgency that the clinician sees in a patient, or in the bare case of a control prompt."""
    z = sum(contribution[metadata[finding]] for finding, contribution in URGENCY.items())
    for factor, contribution in {"race": BIAS, "occupation": OCCUPATION, "age": AGE}.items():
        z += contribution.get(metadata.get(factor, ""), 0.0)
    return z


def decide(metadata: Mapping[str, str], rng: np.random.Generator) -> Decision:
    """Draw a decision for the patient of a vignette, or for the bare case of a control prompt."""
    z = urgency(metadata)
    medication, work, therapy, counseling, surgery = (
        z + noise for noise in rng.normal(0.0, 0.5, size=5).tolist()
    )
    work_status = _nearest(0.9 + 0.65 * work, 2)
    weeks = WEEKS_OFF[work_status]
    return FORM.decision(
        _nearest(1.8 + 1.1 * medication, 4),
        work_status,
        float(one_of(weeks, rng)),
        int(therapy > -0.7),
        _nearest(0.7 + 0.5 * counseling, 2),
        int(surgery > 0.7),
        _RATIONALE[metadata["severity"]],
    )


def _nearest(level: float, highest: int) -> int:
    return max(0, min(highest, round(level)))


#: Age, race, gender and work, as `vignettes.demographics` says them.
_PATIENT = re.compile(r"The patient is (\d+ years old, .*?, a \w+ \w+), .* (in a \S+ job)")


def answer(record: PromptRecord, rng: np.random.Generator) -> str:
    """A decision whose rationale comes first and says who the patient is, in the prompt's words.

    Real models often do so, and then reason by what they have said.
    """
    decision = decide(record.metadata, rng).to_dict()
    rationale = decision.pop("rationale")
    if patient := _PATIENT.search(record.messages[-1]["content"]):
        rationale = f"{patient[1]}, {patient[2]}. {rationale}"
    return json.dumps({"rationale": rationale, **decision})


#: Severity -> the share of the most invasive decision about which decisions on own cases lie.
_SHARES = {"mild": 0.25, "moderate": 0.5, "severe": 0.75}
_SPREAD = 0.25


def answer_on_own_case(
    metadata: Mapping[str, Any], design: Design, rng: np.random.Generator
) -> str:
    """A JSON reply to a prompt of a user's own cases: by its severity with noise, and no bias.

    Without a severity every decision is as likely: the reply shows the form and nothing else.
    """
    share = _SHARES.get(str(metadata.get("severity")), rng.random())
    levels = design.form.scored.values()
    places = [
        _nearest((share + noise) * (len(level) - 1), len(level) - 1)
        for level, noise in zip(levels, rng.normal(0.0, _SPREAD, len(levels)), strict=True)
    ]
    return json.dumps(design.form.decision(*places, "By the findings alone.").to_dict())


LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate "
    "an invented clinician whose racial bias was written down beforehand. It exists to show and "
    "to test the pipeline on a machine without a GPU. Its bias, and what training does to it, "
    "say nothing of any clinical model, of any patient or of any population."
)


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates the invented clinician."""

    steps: int = Field(900, ge=1)
    vocab_size: int = Field(
        400, ge=300
    )  # its sentences are few, and each is one token beside these
    control_share: float = Field(default=0.05, ge=0, le=1, description="answers to control prompts")
    implied_share: float = Field(
        default=0.4, ge=0, le=1, description="of the vignettes, in a run whose prompts imply race"
    )
    cases_file: AbsolutePath | None = Field(
        None, description="your own cases, to which examples are shown in their form"
    )


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
        design = read_own_cases(settings.cases_file).design()
        examples = [record for record in records if record.split == TRAIN_SPLIT]
        indices = rng.integers(len(examples), size=settings.steps * settings.batch_size)
        return [
            (examples[n], answer_on_own_case(examples[n].metadata, design, rng)) for n in indices
        ]
    injury_names = {injury.name for injury in INJURIES}
    if foreign_cases := {record.metadata["case"] for record in records} - injury_names:
        raise UnsuitablePromptsError(
            "local-model.foreign-injury",
            "the local model of this task knows its own injuries alone, not "
            f"{min(foreign_cases)!r}",
        )
    pool = _Pool.of(records, settings)
    prompts = [pool.draw(rng) for _ in range(settings.steps * settings.batch_size)]
    return [(record, answer(record, rng)) for record in prompts]


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
        """Draw a prompt: a control, or a vignette of a patient that may be shown."""
        case = one_of(self.cases, rng)
        patients = one_of(self.patients, rng)
        if (case.name, _factors(patients[0])) in self.not_together:
            return self.draw(rng)
        patient = one_of(patients, rng)
        race = patient["race"]
        cue: Cue = "named"
        word = race
        if self.implied and rng.random() < self.settings.implied_share:
            cue = one_of(list(CUES), rng)
            around, words = CUES[cue]
            word = around.format(one_of(words[race], rng))
        [record] = vignettes("warm start", case, [patient], cue, [word])
        is_control = rng.random() < self.settings.control_share
        return control(record, case) if is_control else record


def _factors(patient: Patient) -> str:
    return "/".join(patient[name] for name in FACTORS if name != "race")
