"""The prompts of an audit, the models it asks, and the tasks that it leaves out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from environments.base import UNPARSEABLE, PromptRecord, Rollout, Score
from equipoise.commands.evaluate import EvaluateOptions, new_root
from equipoise.commands.prepare import find_task
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, tasks
from equipoise.evaluate import evaluate
from equipoise.evaluate.gate import plan_gate
from equipoise.evaluate.plan import (
    Audit,
    GatePlan,
    Subject,
    TaskAudit,
    prompts_of,
    read_plan,
    select_prompts,
)
from equipoise.files.disk import write_json
from equipoise.files.errors import EquipoiseError
from equipoise.models.task import prompts_here
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Display
from equipoise.run.rollouts import write_rollouts
from tests.refusals import refusal

ACTIONS = evaluate.Actions(Display(), print, lambda *_: "")
LOCAL, REAL = Subject("local", "local"), Subject("real", "org/real")


def audit(*subjects: Subject, names: Sequence[str] = ("dharma",)) -> Audit:
    return Audit(tuple(names), subjects, config_files=(str(CONFIG_FOLDER / "small.yaml"),))


def task_audit(subject: Subject, folder: Path, **settings: object) -> TaskAudit:
    return TaskAudit(replace(audit(subject), **settings), "dharma", folder)


def test_a_few_prompts_are_of_each_stratum_as_many_prompts_are() -> None:
    def record(n: int) -> PromptRecord:
        scope = "rare" if n % 4 == 0 else "usual"
        return PromptRecord(f"{n}", "task", (), f"{n // 2}", "test", {"scope": scope})

    records = [replace(record(n), set_id=f"{n}") for n in range(80)]
    for seed in range(5):
        chosen = select_prompts(records, "test", 8, seed, "scope")
        assert Counter(r.metadata["scope"] for r in chosen) == {"rare": 2, "usual": 6}
    assert len(select_prompts(records, "test", 8, 0, "")) == 8


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        *(("fairness", {"num_samples": 192}), ("dharma", {"num_samples": 240})),
        *(("pubmedqa", {"source": "synthetic", "num_samples": 300}), ("rag", {"num_samples": 200})),
    ],
)
def test_every_task_names_what_its_prompts_are_drawn_by(task: str, settings: Any) -> None:
    prompts = find_task(task)
    records = prompts.build_prompts(prompts.PromptSettings(**settings))
    stratum = load_config(
        task, Options((CONFIG_FOLDER / "local.yaml",))
    ).environment_class.presentation.one_of_each
    shares = Counter(r.metadata[stratum] for r in records if r.split == "test")
    chosen = Counter(r.metadata[stratum] for r in select_prompts(records, "test", 16, 0, stratum))
    assert len(shares) > 1
    for name, count in shares.items():
        expected = chosen.total() * count / shares.total()
        assert abs(chosen[name] - expected) <= 4, name  # a counterfactual set at most


def test_one_task_that_cannot_be_had_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def prepare(of_task: TaskAudit, *_: object) -> Sequence[PromptRecord]:
        if of_task.task == "rag":
            raise EquipoiseError("data.missing", "no such data set", "Fetch it.")
        asked.append(of_task.task)
        return ()

    monkeypatch.setattr(evaluate, "_prepare", prepare)
    monkeypatch.setattr(evaluate, "_evaluate_subject", lambda *_: None)
    monkeypatch.setattr(evaluate, "_usage_of", lambda *_: None)
    three = audit(REAL, names=("pubmedqa", "rag", "fairness"))
    with refusal("audit.failed-rows", "rag: no such data set"):
        list(evaluate.run_audit(three, tmp_path, ACTIONS))
    assert asked == ["pubmedqa", "fairness"]
    only = audit(REAL, names=("rag",))
    with refusal("data.missing"):
        list(evaluate.run_audit(only, tmp_path, ACTIONS))


def test_the_folder_of_results_is_that_of_the_key_or_the_flag(tmp_path: Path) -> None:
    key = (f"equipoise.output_dir={tmp_path}",)
    assert new_root(EvaluateOptions(run_name="a", assignments=key)) == tmp_path / "audits" / "a"
    flagged = EvaluateOptions(run_name="a", assignments=key, output_dir=tmp_path / "b")
    assert new_root(flagged) == tmp_path / "b" / "audits" / "a"


def test_the_shipped_plan_is_taken_by_an_evaluation(tmp_path: Path) -> None:
    planned = plan_gate(None, {})
    write_json(tmp_path / "plan.json", asdict(GatePlan(planned)))
    plan = read_plan(tmp_path / "plan.json", "all")
    assert plan == {name: (task.prompts, task.replies) for name, task in planned.items()}
    assert sorted(plan) == tasks() and not any(task.unknown for task in planned.values())
    planned_audit = task_audit(LOCAL, tmp_path, plan={"dharma": (39, 7)})
    loaded = planned_audit.load_plain(LOCAL)
    assert loaded.config.equipoise.evaluation.generations == 7
    asked = prompts_of(loaded, prompts_here(loaded, to_train=False), planned_audit.audit)
    assert len(asked) == 39
    write_json(tmp_path / "plan.json", asdict(GatePlan({"rag": planned["rag"]})))
    with refusal("audit.unplanned-task", "dharma"):
        read_plan(tmp_path / "plan.json", "dharma")


def test_replies_that_cannot_be_read_are_shown_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(evaluate._LOG, "warning", said.append)
    run = RunDirectory(tmp_path)
    rollouts = [Rollout(f"{n}", f"{n}", "test", "", "I cannot say.", {}) for n in range(4)]
    unread = Score(0.0, evidence={UNPARSEABLE: "no JSON"})
    for number, warned in ((1, False), (3, True)):
        said.clear()
        scores = [unread] * number + [Score(1.0)] * (4 - number)
        write_rollouts(run.rollouts("baseline"), rollouts, scores)
        evaluate.warn_unreadable(run)
        shown = ["--few-shot" in text and "I cannot say." in text for text in said]
        assert shown == [True] * warned
