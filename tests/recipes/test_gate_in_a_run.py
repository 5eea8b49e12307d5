"""A run that asks its models other tasks after training, and the gate over all of them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments.base import Score
from equipoise.config import load_config
from equipoise.config.flags import Options, Setting
from equipoise.errors import EquipoiseError
from equipoise.evaluate import also
from equipoise.evaluate.entries import read_stage
from equipoise.evaluate.gate_report import FailedGateError
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import REPLACES
from equipoise.run.resume import set_result_aside
from equipoise.run.rollouts import write_rollouts
from equipoise.terminal.console import Reporter
from equipoise.terminal.exits import Stopped, raising
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import SMOKE, started
from tests.recipes.runs import interrupted_at

#: Enough questions that a verdict can be reached, and no more.
QUESTIONS = {"equipoise": {"task": "pubmedqa", "data": {"num_samples": 240}}}
DRAW = "equipoise.train.local.generation._sample_batch"


def listed(folder: Path) -> str:
    """The word that asks the questions in a file, which it writes."""
    (folder / "questions.yaml").write_text(yaml.safe_dump(QUESTIONS))
    return f"equipoise.evaluation.also=[{folder / 'questions.yaml'}]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def words(folder: Path) -> tuple[str, ...]:
    return SMOKE, f"--output-dir={folder}", f"equipoise.cache_dir={folder / 'cache'}", "--no-wandb"


@pytest.fixture(scope="module")
def output(folder: Path, words: tuple[str, ...]) -> str:
    return started("grpo_dharma", *words, "--run-name=whole", listed(folder))


@pytest.fixture(scope="module")
def whole(folder: Path, output: str) -> RunDirectory:
    return RunDirectory(folder / "dharma" / "whole")


@pytest.fixture
def run(folder: Path, whole: RunDirectory) -> Iterator[RunDirectory]:
    """A copy that a test may change."""
    copy = Path(shutil.copytree(whole.root, folder / "dharma" / "copy"))
    yield RunDirectory(copy)
    shutil.rmtree(copy)


def gate(run: RunDirectory) -> Any:
    return json.loads(run.gate.read_text())


class TestBefore:
    @pytest.mark.parametrize(
        ("names", "words", "message"),
        [
            ("pubmedq", [], "there is no task pubmedq, did you mean pubmedqa?"),
            ("dharma", [], "also.repeated-task"),
            ("rag,rag", [], "also.repeated-task"),
            ("absent.yaml", [], "there is no such file"),
            ("choice", [], "equipoise.data.source"),
            ("rag", ["--engine=nemo_rl", "equipoise.device=cuda"], "also.nemo-rl-run"),
            ("rag", ["equipoise.evaluation.split=train"], "also.training-split"),
        ],
    )
    def test_what_could_not_be_asked_is_refused(
        self, names: str, words: list[str], message: str, tmp_path: Path
    ) -> None:
        key = f"equipoise.evaluation.also=[{names}]"
        said = started("grpo_dharma", SMOKE, f"--output-dir={tmp_path}", key, *words, code=2)
        assert message in " ".join(said.split())
        assert not list(tmp_path.rglob("config.yaml"))

    def test_a_dry_run_counts_what_is_asked(self, words: tuple[str, ...], tmp_path: Path) -> None:
        """The trained task may have a first stage alone, which the other one has not."""
        first_stage = "grpo.max_num_steps=0"
        said = started("grpo_fairness", *words, listed(tmp_path), first_stage, "--dry-run")
        rows = [line.split("│")[1:5] for line in said.splitlines() if "pubmedqa" in line]
        assert [[cell.strip() for cell in row] for row in rows] == [
            ["pubmedqa", side, "48", "96"] for side in ("before", "after")
        ]

    def test_a_companion_takes_all_but_the_keys_of_the_runs_own_task(self, tmp_path: Path) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text(
            "policy: {generation: {temperature: 0.7}}\n"
            "env: {dharma: {combine: gated}}\n"
            "equipoise: {evaluation: {also: [pubmedqa]}, data: {data_path: mine.jsonl}}\n"
        )
        host = Options(
            (Path("nemo_configs/local.yaml"), mine),
            (Setting("--seed", "grpo.seed", 7),),
            ("equipoise.evaluation.generations=3", "equipoise.data.num_samples=99"),
        )
        companion = load_config("pubmedqa", Options((), host=host), to_train=False)
        config = companion.config
        assert config.policy.generation.temperature == 0.7
        assert config.grpo.seed == config.equipoise.evaluation.seed == 7
        assert config.equipoise.evaluation.generations == 3
        assert config.policy.max_total_sequence_length == 128, "that of its own file at the scale"
        assert companion.prompt_settings.model_dump()["num_samples"] == 2400
        assert not config.equipoise.data.data_path and not config.equipoise.evaluation.also
        own = tmp_path / "own.yaml"
        own.write_text("policy: {generation: {temperature: 0.2}}")
        nearer = load_config("pubmedqa", Options((own,), host=host), to_train=False)
        assert nearer.config.policy.generation.temperature == 0.2


@pytest.mark.deep
class TestAfter:
    def test_both_models_are_asked_and_one_family_is_gated(
        self, output: str, whole: RunDirectory
    ) -> None:
        assert "not enough data" in output and "the small local model knows" in output
        content = gate(whole)
        assert content["verdict"] == "not enough data" and not content["missing"]
        assert list(content["tasks"]) == ["dharma", "pubmedqa"]
        assert content["tasks"]["pubmedqa"]["prompts"] == 48
        rows = [read_stage(whole.also / "pubmedqa" / side) for side in ("before", "after")]
        assert rows[0].items == rows[1].items
        models = [row.loaded.config.policy.model_name for row in rows]
        assert models == [str(rows[0].loaded.config.policy.model_name), str(whole.final_checkpoint)]
        hashes = [row.provenance["hashes"]["model"] for row in rows]
        assert hashes[0] == whole.ledger.read()["hashes"]["model"] != hashes[1]
        page = whole.report.read_text()
        assert "Gate: not enough data" in page and "grounded replies" in page
        assert whole.gate.with_name("gate.md").read_text().startswith("## Gate: not enough data")
        assert whole.gate.with_name("gate.xml").is_file()

    def test_with_the_flag_the_exit_code_is_the_verdicts_and_nothing_is_asked_twice(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DRAW, _never)
        said = started("grpo_dharma", f"--resume={run.root}", "--fail-on-regression", code=4)
        assert "not enough data" in said and "evaluated already" in said

    def test_one_reply_to_everything_fails(self, run: RunDirectory) -> None:
        """The untrained model answers every question, the trained one says yes to all of them."""
        before, after = (read_stage(run.also / "pubmedqa" / side) for side in ("before", "after"))
        environment = before.environment()
        records = {r.id: r for r in also.read_records(before.run.prompts)}
        _reply(before, environment, {i: environment.example_reply(r) for i, r in records.items()})
        constant = "<reasoning>So it is.</reasoning>\n<answer>yes</answer>"
        _reply(after, environment, dict.fromkeys(records, constant))
        with pytest.raises(FailedGateError, match="lost"):
            also.gate_run(run, Reporter(), fail=True)
        assert gate(run)["verdict"] == "failed"
        assert gate(run)["tasks"]["pubmedqa"]["metrics"]["reward"]["status"] == "lost"
        assert "fails the gate" in run.report.read_text()
        also.gate_run(run, Reporter(), fail=False)

    def test_a_task_that_cannot_be_asked_leaves_the_verdict_over_the_rest(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(run.also / "pubmedqa")
        with monkeypatch.context() as patch:
            patch.setattr(also, "run_audit", _out_of_order)
            with pytest.raises(EquipoiseError, match="pubmedqa: out of order") as ended:
                also.gate_run(run, Reporter(), fail=False)
        assert ended.value.exit_code == 1 and f"--resume {run.root}" in ended.value.remedy
        assert list(gate(run)["missing"]) == ["pubmedqa"]
        assert gate(run)["verdict"] == "not enough data"
        assert "not evaluated" in run.report.read_text()

    def test_a_stop_keeps_what_was_asked(self, run: RunDirectory) -> None:
        shutil.rmtree(run.also / "pubmedqa" / "after")
        with (
            interrupted_at("equipoise.evaluate.evaluate.save_generations"),
            pytest.raises(Stopped, match=f"--resume {run.root}"),
        ):
            _interruptible(run)
        assert not (run.also / "pubmedqa" / "after" / "baseline" / "evaluation.json").exists()
        also.gate_run(run, Reporter(), fail=False)
        assert not gate(run)["missing"]

    def test_more_steps_ask_the_trained_model_anew(self, run: RunDirectory) -> None:
        (run.earlier / "1").mkdir(parents=True)
        run.ledger.update({REPLACES: "earlier/1"})
        set_result_aside(run, lambda _: None)
        assert not run.gate.exists() and not (run.also / "pubmedqa" / "after").exists()
        assert (run.also / "pubmedqa" / "before").is_dir()
        assert (run.also / "pubmedqa.yaml").is_file()
        old = RunDirectory(run.earlier / "1")
        assert old.gate.is_file() and (old.also / "pubmedqa" / "after").is_dir()


def _interruptible(run: RunDirectory) -> None:
    with raising():
        also.gate_run(run, Reporter(), fail=False)


def _never(*_: Any) -> None:
    raise AssertionError("a model was asked")


def _out_of_order(*_: Any) -> None:
    raise EquipoiseError("some.fault", "out of order", "")


def _reply(stage: Any, environment: Any, replies: dict[str, str]) -> None:
    """Give a stage these replies, scored and sealed as if they were the model's."""
    rollouts = [replace(r, completion=replies[r.prompt_id]) for r in stage.rollouts]
    scores: list[Score] = environment.score(rollouts)
    write_rollouts(stage.run.rollouts("baseline"), rollouts, scores)
    seal_run(stage.run.root)
