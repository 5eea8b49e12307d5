"""MedPerturb (arXiv 2506.17163): messages of patients in five variants, answered yes or no.

Four models and three clinicians say for each text whether the patient can manage at home, should
be seen, and needs a resource. Of the texts in which the patient is once a man and once a woman:
variants 1 (as written), 2 (the gender swapped), 3 (no gender), 4 (uncertain) and 5 (colourful).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from data_prep.answers.sheets import (
    About,
    Published,
    Readers,
    Sheet,
    VariantPair,
    refuse_another_form,
)
from data_prep.text_files import DataError, Row, read_table

KIND = "table of MedPerturb (data.csv)"
ABOUT = About(
    title="MedPerturb",
    licence="CC BY 4.0",
    where="data.csv of github.com/abinithago/MedPerturb",
    caveats=(
        "Each model gave one answer to a text, so how often it would answer the same text "
        "differently is not known. The variants in another tone are the yardstick: they change "
        "the words and not the patient.",
        "Every variant was read by other clinicians, so a difference between variants is one "
        "between people too, and their answers are no gold standard.",
        "100 texts are few: the intervals of the differences say what would not have been seen.",
    ),
)

QUESTIONS = {"MANAGE": "manage at home", "VISIT": "visit a clinician", "RESOURCE": "resource"}
MODELS = {
    "GPT4": "GPT-4",
    "LLAMA3": "Llama-3 8B",
    "LLAMA3-70": "Llama-3 70B",
    "PALMYRA-MED": "Palmyra-Med",
}
_READERS = (1, 2, 3)
#: Which parts have the five variants, and the part whose texts differ in their form alone.
_PARTS, _OTHER_PART = ("askadoc", "oncqa"), "conversational"
_ORIGINAL, _SWAPPED = "1", "2"
_VARIANTS = {"1": "original", "3": "no gender", "4": "uncertain", "5": "colourful"}
_OF_GENDER = {"M": "man", "F": "woman"}
_ANSWERS = {"0": "no", "1": "yes"}
_TEXT = "clinical_context"
PAIRS = (
    VariantPair("man", "woman", "counterfactual"),
    VariantPair("original", "no gender", "counterfactual"),
    VariantPair("original", "uncertain", "yardstick"),
    VariantPair("original", "colourful", "yardstick"),
)
_COLUMNS = (
    *("dataset", "dataset_id", "context_id", "original_patient_gender", _TEXT),
    *(f"{model}_{question}" for model in MODELS for question in QUESTIONS),
    *(f"{question}_{number}" for question in QUESTIONS for number in _READERS),
)

#: The text of an item in a variant; its row has the answers.
_Rows = Mapping[str, Mapping[str, Row]]


def read(entries: Mapping[str, Sequence[Path]]) -> Published:
    """The answers of the one file. Raises `DataError`."""
    (path, *extras) = [path for paths in entries.values() for path in paths]
    if extras:
        raise DataError(
            "medperturb.extra-file",
            extras[0],
            KIND,
            ["MedPerturb is one file, and it was given already"],
        )
    table = read_table(path, KIND, _COLUMNS)
    rows = _by_item(path, [row for row in table if row[1]["dataset"] != _OTHER_PART])
    reading = _Reading()
    sheets = tuple(_sheets(rows, reading))
    readers = tuple(_readers(rows, reading))
    refuse_another_form(path, KIND, reading.unread, reading.answers)
    surplus = len(table) - sum(map(len, rows.values()))
    notes = (
        f"{surplus} rows of the part {_OTHER_PART}, whose texts differ in form, are not used.",
    )
    texts = {}
    for item, variants in rows.items():
        number_of = {variant: number for number, variant in _VARIANTS.items()}
        number_of |= {word: _number(variants, letter) for letter, word in _OF_GENDER.items()}
        texts[item] = {
            name: variants[number][1][_TEXT]
            for name, number in number_of.items()
            if number in variants
        }
    return Published(PAIRS, sheets, readers, tuple(reading.unread), notes if surplus else (), texts)


class _Reading:
    """Reads answers and keeps what could not be read."""

    def __init__(self) -> None:
        self.answers = 0
        self.unread: list[str] = []

    def answer(self, row: Row, column: str) -> str | None:
        line, cells = row
        self.answers += 1
        answer = _ANSWERS.get(cells[column].strip())
        if answer is None:
            self.unread.append(f"line {line}: {column} is {cells[column][:40]!r}, not 0 or 1")
        return answer


def _by_item(path: Path, table: Sequence[Row]) -> _Rows:
    """Item -> number of the variant -> its row. Raises `DataError` with all that is wrong."""
    faults: list[str] = []
    rows: dict[str, dict[str, Row]] = {}
    for line, cells in table:
        part, number, gender = (
            cells[name].strip() for name in ("dataset", "dataset_id", "original_patient_gender")
        )
        item = f"{part} {cells['context_id'].strip()}"
        variants = rows.setdefault(item, {})
        if part not in _PARTS:
            faults.append(f"line {line}: dataset is {part[:40]!r}")
        elif number != _SWAPPED and number not in _VARIANTS:
            faults.append(f"line {line}: dataset_id is {number[:40]!r}, not 1 to 5")
        elif gender not in _OF_GENDER:
            faults.append(f"line {line}: original_patient_gender is {gender[:40]!r}, not M or F")
        elif number in variants:
            faults.append(
                f"line {line}: {item}, variant {number}, is in line {variants[number][0]} too"
            )
        elif any(gender != _gender(row) for row in variants.values()):
            faults.append(f"line {line}: {item} has another original_patient_gender before")
        else:
            variants[number] = (line, cells)
    if not rows:
        faults.append(f"there is no row of {' or '.join(_PARTS)}")
    if faults:
        raise DataError("medperturb.invalid-rows", path, KIND, faults)
    return rows


def _gender(row: Row) -> str:
    return row[1]["original_patient_gender"].strip()


def _sheets(rows: _Rows, reading: _Reading) -> Iterator[Sheet]:
    """Of every model and question. The man and the woman are the original and the swapped text."""
    items = tuple(rows)
    for model, name in MODELS.items():
        for question, text in QUESTIONS.items():
            column = f"{model}_{question}"
            cells = {
                item: {number: reading.answer(row, column) for number, row in variants.items()}
                for item, variants in rows.items()
            }
            answers = {
                variant: tuple(cells[item].get(number) for item in items)
                for number, variant in _VARIANTS.items()
            }
            of_genders = {
                word: tuple(cells[item].get(_number(rows[item], letter)) for item in items)
                for letter, word in _OF_GENDER.items()
            }
            yield Sheet(name, text, items, answers | of_genders, counted="yes")


def _number(variants: Mapping[str, Row], gender: str) -> str:
    """The number of an item's variant about a patient of this gender."""
    return _ORIGINAL if any(_gender(row) == gender for row in variants.values()) else _SWAPPED


def _readers(rows: _Rows, reading: _Reading) -> Iterator[Readers]:
    """The three clinicians of each text, who are others in every variant."""
    names = {_ORIGINAL: "original", _SWAPPED: "swapped", **_VARIANTS}
    for question, text in QUESTIONS.items():
        columns = [f"{question}_{number}" for number in _READERS]
        answers = {
            names[number]: tuple(
                tuple(reading.answer(variants[number], column) for column in columns)
                if number in variants
                else (None,) * len(columns)
                for variants in rows.values()
            )
            for number in sorted(names)
        }
        yield Readers(text, tuple(rows), answers, "yes")
