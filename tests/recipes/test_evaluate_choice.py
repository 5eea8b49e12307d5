"""`equipoise evaluate` on others' test sets: asked like any task, and never trained on."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting, evaluations, tasks
from tests.environments.chat.conftest import Server
from tests.equipoise.report.test_report import Page
from tests.recipes.audits import SMOKE, started

FEW = ("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=100")


class Doctor:
    """Right about men, wrong about women."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.behaviour = self.reply

    async def reply(self, _: web.Request, body: dict) -> web.StreamResponse:
        asked = body["messages"][-1]["content"]
        letter = "A" if " man " in asked else "B"
        return web.json_response(Server.completion(f"It depends.\nAnswer: {letter}"))


@pytest.fixture
def doctor() -> Iterator[Doctor]:
    running = Doctor()
    yield running
    running.server.end()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "questions.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["male_sentence", "female_sentence", "options", "correct_option"])
        for n in range(12):
            texts = (f"Case {n}: a {who} in pain. What next?" for who in ("man", "woman"))
            writer.writerow([*texts, "['rest', 'ice']", 0])
    return path


def words(table: Path, folder: Path) -> tuple[str, ...]:
    source = ("equipoise.data.source=diversity_med_qa", f"equipoise.data.path={table}")
    place = (f"--output-dir={folder}", "--run-name=a", f"equipoise.cache_dir={folder / 'cache'}")
    return (SMOKE, *source, *place, *FEW, "equipoise.data.num_samples=null")


def test_a_model_is_asked_and_its_gap_shown(doctor: Doctor, table: Path, tmp_path: Path) -> None:
    row = f"--model=tested=m@{doctor.server.url}"
    started(
        "evaluate",
        "choice",
        *words(table, tmp_path),
        row,
        "equipoise.evaluation.generations=2",
    )
    folder = tmp_path / "audits" / "a" / "choice" / "tested"
    told = json.loads((folder / "baseline" / "evaluation.json").read_text())
    assert (told["n_prompts"], told["n_rollouts"], told["n_failed"]) == (24, 48, 0)
    metrics = told["metrics"]
    assert metrics["flip_rate"]["value"] == 1.0
    assert metrics["accuracy_gap"]["value"] == 1.0 and metrics["accuracy_gap"]["p"] < 0.05
    assert metrics["accuracy"]["value"] == 0.5 and metrics["parse_rate"]["value"] == 1.0
    assert told["by_variant"]["woman"]["accuracy"]["value"] == 0.0
    page = (folder / "report.html").read_text()
    assert "flip rate" in page and "By variant" in page
    flips = Page(page).text.split("12 of 12 sets that flip, of 12 in all")[1]
    first = flips.split("question 2: man and woman")[0]
    assert "Case 0: a man in pain" in first and "Case 0: a woman in pain" in first
    assert "answer: A (2)" in first and "answer: B (2)" in first


def test_it_needs_a_source_and_is_no_part_of_all(table: Path, tmp_path: Path) -> None:
    model = "--model=m@http://127.0.0.1:9"
    place = (SMOKE, f"--output-dir={tmp_path}", "--dry-run")
    said = started("evaluate", "choice", *place, model, code=2)
    assert "equipoise.data.source" in said and "equipoise.data.path" in said
    missing = ("equipoise.data.source=q_pain", f"equipoise.data.path={tmp_path}")
    said = started("evaluate", "choice", *place, model, *missing, code=2)
    assert "data_acute_cancer.csv" in said and "cannot be read" in said
    assert "choice:" not in started("evaluate", *place[1:], "--help")
    said = started("evaluate", "choice", *words(table, tmp_path), "--model=local", code=2)
    assert "data-module.no-local-model" in said


def test_nothing_trains_on_it() -> None:
    said = started("probe", "choice", code=2)
    assert "config.unknown-task" in said


@pytest.mark.parametrize("scale", ["local", "small"])
@pytest.mark.parametrize("task", evaluations())
def test_every_evaluation_is_a_valid_configuration_where_models_are_evaluated(
    task: str, scale: str
) -> None:
    source = ("equipoise.data.source=q_pain", "equipoise.data.path=/data/q_pain")
    settings = (Setting("--model", "policy.model_name", "my/model"),)
    options = Options((CONFIG_FOLDER / f"{scale}.yaml",), settings, source)
    loaded = load_config(task, options)
    assert loaded.environment_class.name == task == loaded.config.equipoise.task
    assert loaded.config.equipoise.evaluation.generations > 1
    assert task not in tasks()
