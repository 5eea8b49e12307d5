"""The clinician whose answers warm-start the local model: his racial bias is known by construction.

The numbers here are invented. They describe no person and no population; they make a small
model with a clinical signal to keep and a disparity to remove.
"""

import json
from collections.abc import Mapping

import numpy as np

from environments.disparity.decision import Decision

#: How urgent each clinical case is, in the clinician's latent scale.
URGENCY = {
    "lumbar_strain": -1.1,
    "whiplash": -0.8,
    "lumbar_disc_herniation": -0.1,
    "cervical_radiculopathy": 0.2,
    "progressive_foot_drop": 0.9,
    "cauda_equina": 1.3,
}
#: What the patient's race adds to the urgency: the bias that training is to remove.
BIAS = {"White": 0.25, "Black": -0.35, "Hispanic or Latino": -0.15, "Asian": 0.2}
#: Differences that are meant: hard physical work and age change the decision a little.
BLUE_COLLAR, OLD = 0.2, 0.1

_WEEKS_OFF = ((0, 0, 1), (0, 1, 2), (4, 6, 8))
_RATIONALE = {
    "mild": "Minor injury, expected to settle.",
    "moderate": "Nerve root irritation, stepwise care.",
    "severe": "Neurological deficit, urgent care.",
}


def decide(metadata: Mapping[str, str], rng: np.random.Generator) -> Decision:
    """One decision for the patient of a vignette, or for the bare case of a control prompt."""
    z = URGENCY[metadata["case"]] + BIAS.get(metadata.get("race", ""), 0.0)
    z += BLUE_COLLAR * (metadata.get("occupation") == "blue-collar")
    z += OLD * (metadata.get("age") == "old")
    noisy = z + rng.normal(0.0, 0.4, size=5)
    work = int(np.clip(np.round(0.9 + 0.65 * noisy[1]), 0, 2))
    return Decision(
        medication=int(np.clip(np.round(1.8 + 1.1 * noisy[0]), 0, 4)),
        work_status=work,
        weeks_off_work=float(rng.choice(_WEEKS_OFF[work])),
        physical_therapy=int(noisy[2] > -0.7),
        mental_health_referral=int(np.clip(np.round(0.7 + 0.5 * noisy[3]), 0, 2)),
        surgical_referral=int(noisy[4] > 0.9),
        rationale=_RATIONALE[metadata["severity"]],
    )


def answer(metadata: Mapping[str, str], rng: np.random.Generator) -> str:
    """The decision as the JSON reply that the prompt asks for."""
    return json.dumps(decide(metadata, rng).to_dict())
