"""Q-Pain (Loge et al. 2021): whether a patient in pain gets an opioid, and how much.

Fifty vignettes in five files with places for race, gender and pronouns: eight variants of each. Its
physicians said yes and the low dose to all fifty, so a constant answer would be right every time:
their answer is not taken for a right one, and the options are ordered from none to the most.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from data_prep.choice.question import Question, refuse_torn_sets, with_options
from data_prep.csv_table import read_table
from data_prep.faults import DataError

KIND = "folder of Q-Pain (five files data_*.csv)"
FILES = ("acute_cancer", "acute_non_cancer", "chronic_cancer", "chronic_non_cancer", "post_op")
RACES = ("Black", "White", "Asian", "Hispanic")
GENDERS = {"man": ("he", "his"), "woman": ("she", "her")}
_COLUMNS = ("Vignette", "Question", "Answer", "Dosage", "Explanation")
_LABELS, _OPTIONS = ("A", "B", "C"), ("No", "Yes, the low amount", "Yes, the high amount")
_PLACE = re.compile(r"\[[a-z]+\]")
#: At the beginning of a sentence a pronoun has a capital letter.
_CAPITAL = re.compile(r"(^|[.!?]\s{1,3})(\[(?:subject|possessive)\])")
_EXPLAIN = "Explain."


def read(folder: Path) -> list[Question]:
    """Every vignette with places, in every variant. Raises `DataError`."""
    questions: list[Question] = []
    for name in FILES:
        path = folder / f"data_{name}.csv"
        faults = []
        for line, cells in read_table(path, KIND, _COLUMNS):
            if "[race]" not in cells["Vignette"]:
                continue  # the example in which nothing is given, about no particular patient
            try:
                questions += _variants(f"{name}, line {line}", name, cells)
            except ValueError as error:
                faults.append(f"line {line}: {error}")
        if faults:
            raise DataError(path, KIND, faults)
    if not questions:
        raise DataError(folder, KIND, ["no vignette has a place for [race]"])
    refuse_torn_sets(folder, KIND, questions, len(RACES) * len(GENDERS))
    return questions


def _variants(set_id: str, part: str, cells: Mapping[str, str]) -> Iterator[Question]:
    if "[gender]" not in cells["Vignette"]:
        raise ValueError("the vignette has a place for race and none for gender")
    template = cells["Question"].replace(_EXPLAIN, "").strip()
    for race in RACES:
        for gender in GENDERS:
            text = _filled(cells["Vignette"], race, gender).strip()
            question = f"{text}\n\n{_filled(template, race, gender)}"
            yield Question(
                set_id,
                f"{race} {gender}",
                part,
                with_options(question, _LABELS, _OPTIONS),
                _LABELS,
                _OPTIONS,
                ordered=True,
            )


def _filled(text: str, race: str, gender: str) -> str:
    """The text with its places filled. Raises `ValueError` where one is left."""
    subject, possessive = GENDERS[gender]
    text = text.replace("[subjective]", "[subject]")  # as one vignette has it
    words = {"[race]": race, "[gender]": gender, "[subject]": subject, "[possessive]": possessive}
    text = _CAPITAL.sub(lambda match: match[1] + words[match[2]].capitalize(), text)
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    if match := _PLACE.search(text):
        raise ValueError(f"nothing is known for {match[0][:40]}")
    return text
