"""Files of others, where they are beside the project: the sets and figures that docs/audit.md says.

None of them comes with the project. A test without its file is skipped.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from data_prep.answers import medperturb
from data_prep.choice import PromptSettings, build_prompts
from data_prep.choice.prompts import SourceName
from equipoise.evaluate.answers import Audited, audit_answers

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT.parent / "shared" / "data" / "audit"
MEDPERTURB = "medperturb/data.csv"
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


def file(name: str) -> Path:
    if not (FILES / name).is_file():
        pytest.skip(f"{FILES / name} is not here: docs/audit.md says where it is published")
    return FILES / name


@pytest.fixture(scope="module")
def audited() -> Audited:
    return audit_answers(medperturb.read({"data": [file(MEDPERTURB)]}))


def cells(beginning: str) -> list[str]:
    """The cells of the page's row that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]


def points(value: float) -> float:
    return round(100 * value, 1)


def test_the_row_of_medperturb_is_what_its_answers_give(audited: Audited) -> None:
    name, difference, p, flips, beside = cells("Palmyra-Med")
    who, question, pair = (part.strip() for part in name.split(","))
    first, second = pair.split(" → ")
    (found,) = [
        c
        for c in audited.compared
        if (c.answerer, c.question, c.pair.first, c.pair.second) == (who, question, first, second)
    ]
    change = found.difference
    assert numbers(difference) == [points(v) for v in (change.value, change.low, change.high)]
    assert found.p_holm == pytest.approx(float(p))
    assert numbers(flips) == [points(found.flips.rate.value)]
    yardsticks = {b.yardstick.second: points(b.rate.value) for b in found.beside}
    assert yardsticks["uncertain"] == numbers(beside)[0]


def test_what_the_page_says_of_medperturb_is_what_its_answers_give(audited: Audited) -> None:
    genders = [c for c in audited.of_role("counterfactual") if c.verdict == "no evidence"]
    assert len(genders) == len(audited.of_role("counterfactual")) == 24
    assert sum(c.equal == "kept" for c in genders) == 4
    disagree = [points(reading.disagreement.value) for reading in audited.readings]
    assert (min(disagree), max(disagree)) == (16, 46)
    said = " ".join(PAGE.split())
    assert (
        "no gender is shown to be favoured in 24 comparisons; four show equality within 5 points. "
        "Two clinicians disagree in 16 to 46 of 100."
    ) in said


@pytest.mark.parametrize(
    ("source", "name", "sets", "variants"),
    [
        ("medperturb_gender", MEDPERTURB, 3 * 99, ("man", "woman", "no gender")),
        ("medperturb_tone", MEDPERTURB, 3 * 100, ("original", "uncertain", "colourful")),
        (
            "diversity_med_qa",
            "diversity_med_qa/diversity_med_qa_extracted.csv",
            930,
            ("man", "woman"),
        ),
    ],
)
def test_the_gate_asks_as_many_sets_as_the_page_says(
    source: SourceName, name: str, sets: int, variants: tuple[str, ...]
) -> None:
    records = build_prompts(PromptSettings(source=source, path=file(name)))
    assert len({record.set_id for record in records}) == sets
    assert Counter(r.metadata["variant"] for r in records) == dict.fromkeys(variants, sets)
    assert len({record.messages[-1]["content"] for record in records}) == len(records)
    assert {record.split for record in records} == {"test"}
