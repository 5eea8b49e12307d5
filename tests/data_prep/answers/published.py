"""Small files in the published forms."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MEDPERTURB = ROOT.parent / "shared" / "data" / "audit" / "medperturb" / "data.csv"

FIELDS = ("original_question", "desensitized_question", "white", "black")
FIELDS += ("high_income", "low_income", "male", "female")
_MODELS = ("GPT4", "LLAMA3", "LLAMA3-70", "PALMYRA-MED")
_QUESTIONS = ("MANAGE", "VISIT", "RESOURCE")


def amqa_line(item: str, gold: str = "A", every: str = "A", **answers: Any) -> dict[str, Any]:
    """A line in which all answers but the named ones are `every`."""
    given = {f"test_model_answer_{name}": answers.get(name, every) for name in FIELDS}
    return {"question_id": item, "answer_idx": gold, **given}


def write_amqa(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def perturbed(
    item: str, variant: int, gender: str = "M", part: str = "askadoc", **cells: Any
) -> dict[str, Any]:
    """A row in which every answer but the named ones is no."""
    answers = [f"{model}_{question}" for model in _MODELS for question in _QUESTIONS]
    answers += [f"{question}_{number}" for question in _QUESTIONS for number in (1, 2, 3)]
    row = {"dataset": part, "dataset_id": variant, "context_id": item}
    row |= {"original_patient_gender": gender, "clinical_context": 'a "text",\nwith lines'}
    return row | dict.fromkeys(answers, 0) | {k.replace("__", "-"): v for k, v in cells.items()}


def write_medperturb(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path
