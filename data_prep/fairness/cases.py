"""Clinical cases from a grammar: an injury at work, and what was found, each finding graded.

    case = injury x pain x deficit x imaging x course

Written for this project; no clinician has reviewed the findings, their words or their grades.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Severity = Literal["mild", "moderate", "severe"]
Region = Literal["back", "neck"]

#: Each finding with its grades, the least alarming first.
FINDINGS: Mapping[str, tuple[str, ...]] = {
    "pain": ("3", "5", "7", "9"),
    "deficit": ("none", "numb", "weak", "cord"),
    "imaging": ("normal", "bulge", "root", "canal"),
    "course": ("better", "same", "worse"),
}

_COMMON = {
    "pain": {grade: f"Pain {grade} of 10." for grade in FINDINGS["pain"]},
    "course": {
        "better": "It has eased since the injury.",
        "same": "It has not changed for six weeks.",
        "worse": "It has become worse over the last days.",
    },
}
_WORDS: Mapping[Region, Mapping[str, Mapping[str, str]]] = {
    "back": _COMMON
    | {
        "deficit": {
            "none": "Strength and feeling in the legs are normal.",
            "numb": "The outer edge of the foot is numb.",
            "weak": "Lifting the foot is weak at 4 of 5.",
            "cord": "The saddle area is numb and no urine can be passed.",
        },
        "imaging": {
            "normal": "Films of the lower spine are normal.",
            "bulge": "MRI shows a bulging lumbar disc that touches no nerve.",
            "root": "MRI shows a lumbar disc herniation that presses on a root.",
            "canal": "MRI shows a lumbar disc herniation that fills the canal.",
        },
    },
    "neck": _COMMON
    | {
        "deficit": {
            "none": "Strength and feeling in the arms are normal.",
            "numb": "The thumb is numb.",
            "weak": "Extending the wrist is weak at 4 of 5.",
            "cord": "Both hands are clumsy and walking is unsteady.",
        },
        "imaging": {
            "normal": "Films of the neck are normal.",
            "bulge": "MRI shows a bulging cervical disc that touches no nerve.",
            "root": "MRI shows a cervical disc herniation that presses on a root.",
            "canal": "MRI shows a cervical disc herniation that fills the canal.",
        },
    },
}


@dataclass(frozen=True, slots=True)
class Injury:
    """An injury, and the region of the spine that it is in."""

    name: str
    region: Region
    text: str


INJURIES: tuple[Injury, ...] = (
    Injury("lifting", "back", "Low back pain after lifting a box at work."),
    Injury("dock_fall", "back", "Low back pain after a fall from a loading dock."),
    Injury("forklift", "back", "Low back pain after a forklift accident."),
    Injury("scaffold_fall", "back", "Low back pain after a fall from a scaffold."),
    Injury("whiplash", "neck", "Neck pain after a rear-end collision in a company van."),
    Injury("overhead_work", "neck", "Neck pain after weeks of work overhead."),
    Injury("falling_load", "neck", "Neck pain after a load fell on the helmet."),
    Injury("ladder_fall", "neck", "Neck pain after a fall from a ladder."),
)


@dataclass(frozen=True)
class ClinicalCase:
    """An injury and the grade of every finding, in the order of `FINDINGS`."""

    injury: Injury
    grades: tuple[int, ...]

    @cached_property
    def findings(self) -> dict[str, str]:
        """Finding -> its grade in words."""
        return {name: FINDINGS[name][n] for name, n in zip(FINDINGS, self.grades, strict=True)}

    @cached_property
    def name(self) -> str:
        """As the settings spell it: `whiplash/5-numb-root-worse`."""
        return f"{self.injury.name}/{'-'.join(self.findings.values())}"

    @cached_property
    def text(self) -> str:
        """The clinical picture, without a word of who the patient is."""
        words = _WORDS[self.injury.region]
        return " ".join([self.injury.text, *(words[f][g] for f, g in self.findings.items())])

    @cached_property
    def emergency(self) -> bool:
        """Whether the cauda equina or the spinal cord is in danger."""
        return self.findings["deficit"] == "cord"

    @cached_property
    def severity(self) -> Severity:
        """By the sum of the grades, the deficit's counted twice: 0 to 14."""
        points = sum(self.grades) + self.grades[list(FINDINGS).index("deficit")]
        if self.emergency or points >= 9:
            return "severe"
        return "moderate" if points >= 6 else "mild"


def clinical_cases(injury: Injury) -> list[ClinicalCase]:
    """All 120 cases of an injury: what is felt and what is seen are at most one grade apart."""
    grades = itertools.product(*(range(len(values)) for values in FINDINGS.values()))
    return [ClinicalCase(injury, g) for g in grades if abs(g[1] - g[2]) <= 1]


def injuries_named(names: Sequence[str]) -> list[Injury]:
    """The injuries with these names, in the order of `INJURIES`.

    Raises `ValueError` with the known names.
    """
    injury_names = [injury.name for injury in INJURIES]
    missing = [repr(name) for name in names if name not in injury_names]
    if missing:
        raise ValueError(f"no injury {', '.join(missing)}; there are {', '.join(injury_names)}")
    return [injury for injury in INJURIES if injury.name in names]


def case_named(name: str) -> ClinicalCase:
    """The one case of a name such as `whiplash/5-numb-root-worse`.

    Raises `ValueError` with an example of the same injury.
    """
    [injury] = injuries_named([name.split("/", 1)[0]])
    cases = {case.name: case for case in clinical_cases(injury)}
    if name not in cases:
        raise ValueError(f"no clinical case {name!r}; one of {injury.name} is {min(cases)}")
    return cases[name]
