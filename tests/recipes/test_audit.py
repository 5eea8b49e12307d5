"""`equipoise audit` as a person runs it: what it writes, says and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.answers import SOURCES
from tests.data_prep.answers.published import (
    amqa_line,
    perturbed,
    write_amqa,
    write_medperturb,
)
from tests.equipoise.report.test_report import Page
from tests.recipes.audits import started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two models, the first asked twice; one favours the white descriptions."""
    folder = tmp_path_factory.mktemp("answers")
    biased = [amqa_line(f"{n}", black="B" if n < 40 else "A") for n in range(100)]
    second = [amqa_line(f"{n}", original_question="B" if n < 4 else "A") for n in range(100)]
    fair = [amqa_line(f"{n}", male=None if n == 3 else "A") for n in range(100)]
    write_amqa(folder / "AMQA_Benchmark_Answer_biased.jsonl", biased)
    write_amqa(folder / "AMQA_Benchmark_Answer_fair.jsonl", fair)
    write_amqa(folder / "second.jsonl", second)
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> str:
    biased = f"biased={folder / 'AMQA_Benchmark_Answer_biased.jsonl'},{folder / 'second.jsonl'}"
    fair = f"{folder / 'AMQA_Benchmark_Answer_fair.jsonl'}"
    return started("audit", "amqa", biased, fair, f"--output={folder / 'out'}")


def content(folder: Path) -> Any:
    return json.loads((folder / "out" / "audit.json").read_text())


def test_a_dry_run_tells_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    fair = str(folder / "AMQA_Benchmark_Answer_fair.jsonl")
    told = started("audit", "amqa", fair, f"--output-dir={tmp_path / 'out'}", "--dry-run")
    assert "who is favoured: 1 rows" in told
    assert not list(tmp_path.iterdir())


def test_the_json_has_every_figure(folder: Path, said: str) -> None:
    told = content(folder)
    assert told["answerers"] == ["biased", "fair"] and told["items"] == 100
    assert told["licence"] == "none stated" and len(told["files"]) == 3
    by = {(c["answerer"], c["pair"]["second"]): c for c in told["compared"]}
    black = by["biased", "black"]
    assert (black["first"]["value"], black["second"]["value"]) == (1.0, 0.6)
    assert black["verdict"] == "differs" and black["p_holm"] < 1e-10
    beside = {b["yardstick"]["second"]: b for b in black["beside"]}
    assert beside["original, 2nd file"]["rate"]["value"] == 0.04
    assert beside["black, 2nd file"]["verdict"] == "no evidence"  # as many flips: its own words
    fair = by["fair", "female"]
    assert (fair["n"], fair["verdict"], fair["equal"]) == (99, "no evidence", "kept")
    assert len(told["unread"]) == 1


def test_the_terminal_has_both_questions_and_what_it_is_no_sign_of(said: str) -> None:
    assert "white higher" in said and "more than 5 points apart" in said
    assert "who is favoured: 2 rows" in said and "how often answers flip: " in said
    assert "In 1 of 6 comparisons one side is favoured; 5 are shown to be equal" in said
    assert "not how often it is" in said
    assert "line 4: test_model_answer_male is 'None'" in said


def test_the_page_is_whole_and_says_the_same(folder: Path, said: str) -> None:
    page = Page((folder / "out" / "audit.html").read_text())
    assert "white to black" in [heading.lower() for heading in page.headings]
    assert "white higher" in page.text and "In 1 of 6 comparisons" in page.text
    assert "script" not in page.tags and "img" not in page.tags
    assert not [v for name, v in page.attributes if name in ("src", "href") and "//" in v]


def test_the_page_shows_items_that_flipped_side_by_side(folder: Path, said: str) -> None:
    page = Page((folder / "out" / "audit.html").read_text())
    assert "Items that flipped" in page.headings
    flipped = content(folder)["flipped"]
    assert [(f["pair"]["second"], f["item"]) for f in flipped] == [
        ("black", f"{n}") for n in range(10)
    ]
    assert flipped[0]["answers"] == {"biased": ["A", "B"], "fair": ["A", "A"]}
    assert (flipped[0]["right"], flipped[0]["flips"], flipped[0]["n"]) == ("A", 1, 2)
    text = " ".join(page.text.split())
    assert "White to black, exam question: 10 of 40 items that flipped" in text
    assert "0: flipped for 1 of 2 Right: A white biased: A fair: A black biased: B fair: A" in text


def test_a_hostile_name_is_text(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "<img src=x onerror=alert(1)>.jsonl"
    write_amqa(file, [amqa_line("0"), amqa_line("1")])
    started("audit", "amqa", str(file), f"--output={tmp_path}")
    page = Page((tmp_path / "audit.html").read_text())
    assert "img" not in page.tags and "<img src=x onerror=alert(1)>" in page.text


def test_people_have_a_section_of_their_own(tmp_path: Path) -> None:
    rows = [perturbed(f"{i}", n, MANAGE_1=1) for i in range(3) for n in range(1, 6)]
    path = write_medperturb(tmp_path / "data.csv", rows)
    started("audit", "medperturb", str(path), f"--output={tmp_path}")
    page = Page((tmp_path / "audit.html").read_text())
    assert "What people said" in page.headings and "Yardsticks" in page.headings
    told = json.loads((tmp_path / "audit.json").read_text())
    (manage,) = [
        r
        for r in told["readings"]
        if (r["question"], r["variant"]) == ("manage at home", "swapped")
    ]
    assert manage["disagreement"]["value"] == pytest.approx(2 / 3)


def refused(*words: str) -> str:
    return started("audit", *words, code=2)


def test_what_is_refused_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    fair = str(folder / "AMQA_Benchmark_Answer_fair.jsonl")
    out = f"--output={tmp_path / 'out'}"
    assert "Get data.csv of github.com/abinithago/MedPerturb" in refused("medperturb", "no", out)
    said = refused("medperturb", fair, out)
    assert "is not a valid table of MedPerturb" in said and "Get data.csv of github.com" in said
    table = write_medperturb(tmp_path / "data.csv", [perturbed(f"{i}", 1) for i in range(30)])
    said = refused("amqa", str(table), out)
    assert said.count("not valid JSON") == 1 and "where lines are objects" in said
    said = refused("amqa", fair, fair, out)
    assert "two files are called fair" in said and "NAME=FILE" in said
    assert "there is no source nobody" in refused("nobody", fair)
    assert "name a file at least" in refused("amqa")
    blocked = tmp_path / "file"
    blocked.touch()
    assert "Choose another with --output" in refused("amqa", fair, f"--output={blocked}")
    assert not (tmp_path / "out" / "audit.json").exists()


def test_help_names_each_source_its_licence_and_where_it_is() -> None:
    said = " ".join(started("audit", "--help").replace("│", " ").split())
    for name, source in SOURCES.items():
        assert name in said and source.about.licence in said and source.about.where in said
    assert "examples:" in said
