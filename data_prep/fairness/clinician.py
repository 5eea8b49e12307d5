"""The clinician whose answers warm-start the local model: his racial bias is known by construction.

The numbers here are invented. They describe no person and no population; they make a small
model with a clinical signal to keep and a disparity to remove. He has heard all of his patients'
names and neighbourhoods: a race that is only implied moves him as much as one that is named.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from environments.fairness import FORM
from environments.fairness.decision import Decision, Design

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

_WEEKS_OFF = ((0, 0, 1), (0, 1, 2), (4, 6, 8))
_RATIONALE = {
    "mild": "Minor injury, expected to settle.",
    "moderate": "Nerve root irritation, stepwise care.",
    "severe": "Neurological deficit, urgent care.",
}


def urgency(metadata: Mapping[str, str]) -> float:
    """How urgent the clinician takes a patient to be, or the bare case of a control prompt."""
    z = sum(contribution[metadata[finding]] for finding, contribution in URGENCY.items())
    for factor, contribution in {"race": BIAS, "occupation": OCCUPATION, "age": AGE}.items():
        z += contribution.get(metadata.get(factor, ""), 0.0)
    return z


def decide(metadata: Mapping[str, str], rng: np.random.Generator) -> Decision:
    """One decision for the patient of a vignette, or for the bare case of a control prompt."""
    z = urgency(metadata)
    medication, work, therapy, counseling, surgery = (
        z + noise for noise in rng.normal(0.0, 0.5, size=5).tolist()
    )
    work_status = _nearest(0.9 + 0.65 * work, 2)
    weeks = _WEEKS_OFF[work_status]
    return FORM.decision(
        _nearest(1.8 + 1.1 * medication, 4),
        work_status,
        float(weeks[rng.integers(len(weeks))]),
        int(therapy > -0.7),
        _nearest(0.7 + 0.5 * counseling, 2),
        int(surgery > 0.7),
        _RATIONALE[metadata["severity"]],
    )


def _nearest(level: float, highest: int) -> int:
    return max(0, min(highest, round(level)))


def answer(metadata: Mapping[str, str], rng: np.random.Generator) -> str:
    """The decision as the JSON reply that the prompt asks for."""
    return json.dumps(decide(metadata, rng).to_dict())


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
