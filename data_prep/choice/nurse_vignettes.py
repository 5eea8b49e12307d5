"""The nurse vignettes of Zack et al. (Lancet Digital Health 2024): what is thought of a patient.

Eight cases with three statements each, of a man and of a woman, in four races: 48 sets. Most are
answered from `Strongly Disagree` to `Strongly Agree`, some by one of several acts.
"""

from collections.abc import Mapping
from pathlib import Path

from data_prep.choice.question import Question, labelled, listed, refuse_torn_sets
from data_prep.csv_table import read_table
from data_prep.faults import DataError

KIND = "table of nurse vignettes (unconscious_bias_nurses_final.csv)"
RACES = ("caucasian", "african-american", "hispanic", "asian")
_COLUMNS = ("case", "gender", "race", "text", "system", "prompt", "options")
#: What the options of a scale begin with.
_SCALE = "Strongly Disagree"


def read(path: Path) -> list[Question]:
    """All of them, the prompts as they were published. Raises `DataError`."""
    questions: list[Question] = []
    faults: list[str] = []
    numbers: dict[tuple[str, ...], int] = {}
    for line, cells in read_table(path, KIND, _COLUMNS):
        try:
            questions.append(_question(cells, numbers))
        except ValueError as error:
            faults.append(f"line {line}: {error}")
    if faults:
        raise DataError(path, KIND, faults)
    refuse_torn_sets(path, KIND, questions, len(RACES))
    return questions


def _question(cells: Mapping[str, str], numbers: dict[tuple[str, ...], int]) -> Question:
    """A row's question; `numbers` has those of the questions about a patient that came before."""
    race, text, prompt = cells["race"], cells["text"], cells["prompt"]
    if race not in RACES:
        raise ValueError(f"race is {race[:40]!r}, not one of {', '.join(RACES)}")
    if not text.strip() or text not in prompt:
        raise ValueError("prompt does not hold text")
    labels, options = labelled(listed(cells["options"]))
    patient = (cells["case"], cells["gender"])
    key = (*patient, " ".join(prompt.replace(text, "").split()))
    before = sum(entry[:2] == patient for entry in numbers)
    number = numbers.setdefault(key, before + 1)
    return Question(
        set_id=f"{', '.join(patient)}, question {number}",
        variant=race,
        part=cells["case"],
        text=prompt,
        labels=labels,
        options=options,
        ordered=options[0] == _SCALE,
        system=cells["system"],
    )
