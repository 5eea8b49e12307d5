"""What --resume may change, seen from the configuration alone."""

import json
from pathlib import Path

import pytest

from data_prep.files import write_json, write_text
from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.run.directory import RunDirectory
from equipoise.run.resume import (
    Resumption,
    _may_change,
    check_resume,
    has_result,
    record_changes,
    set_result_aside,
)
from equipoise.run.seals import check_files, record_files
from equipoise.terminal.console import Reporter
from equipoise.terminal.exits import Stopped
from equipoise.train.start import resumed
from tests.refusals import refusal

TRAIN_PROMPTS = 1_000


def start(root: Path, *words: str, scale: str = "local") -> RunDirectory:
    """A run directory as a start with these words leaves it."""
    run = RunDirectory(root)
    root.mkdir()
    loaded = load_config(
        "fairness", parse_flags("x", [f"--config=nemo_configs/{scale}.yaml", *words])
    )
    write_text(run.config, loaded.to_yaml())
    run.ledger.create({"hashes": {}, "seconds": {}, "command": ["python", "first"]})
    write_json(root / "prompts.manifest.json", {"prompts": {"train": TRAIN_PROMPTS}})
    return run


def trained(run: RunDirectory, step: int, *, finished: bool = False) -> RunDirectory:
    (run.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    run.history.write_text("step\n")
    if finished:
        run.evaluation("final").parent.mkdir()
        run.evaluation("final").write_text("{}")
        run.final_checkpoint.mkdir()
        run.comparison.write_text("{}")
        run.report.write_text("old")
    return run


def asked(run: RunDirectory, *words: str) -> Resumption:
    options = parse_flags("x", [f"--resume={run.root}", *words])
    return check_resume("fairness", options, load_config("fairness", options))


def contents(run: RunDirectory) -> dict[str, bytes]:
    """The files of a result."""
    parts = (run.comparison, run.report, run.evaluation("final").parent, run.final_checkpoint)
    files = [file for part in parts for file in (part, *part.rglob("*")) if file.is_file()]
    assert len(files) >= 3
    return {str(file): file.read_bytes() for file in files}


def kept(run: RunDirectory, *words: str) -> list[str]:
    said: list[str] = []
    record_changes(asked(run, *words), said.append)
    return said


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return start(tmp_path / "run", "--iterations=100")


@pytest.mark.parametrize(
    ("word", "difference"),
    [
        ("env.fairness.reward=distance", "reward: the run has distribution, asked for is distance"),
        ("--learning-rate=0.5", "lr: the run has 0.0001, asked for is 0.5"),
        ("--seed=7", "grpo.seed: the run has 42, asked for is 7"),
        ("--batch-size=32", "grpo.num_prompts_per_step: the run has 64, asked for is 32"),
        ("--lora-rank=4", "lora_cfg.dim: the run has 32, asked for is 4"),
        ("--num-samples=96", "equipoise.data.num_samples: the run has 2048, asked for is 96"),
        ("--model-name=other", "policy.model_name: the run has local, asked for is other"),
        ("--run-name=other", "equipoise.run_name: the run has None, asked for is other"),
        ("loss_fn.ratio_clip_c=3", "ratio_clip_c: the run has None, asked for is 3.0"),
        ("policy.hf_config_overrides.a=1", "overrides.a: the run has None, asked for is 1"),
        ("equipoise.evaluation.generations=2", "generations: the run has 80, asked for is 2"),
        ("policy.scheduler=null", "policy.scheduler: the run has"),
    ],
)
def test_what_decides_the_training_is_refused_with_the_difference(run, word, difference):
    with refusal("resume.fixed-keys", difference) as error:
        asked(run, word)
    assert "the run has None, asked for is None" not in error.value.message


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--no-wandb",),
        ("--wandb-project=mine",),
        ("equipoise.threads=2",),
        ("equipoise.max_failure_rate=0.5", "checkpointing.save_period=5"),
        ("equipoise.stop_without_signal=false",),
        ("equipoise.export=hf",),
        ("policy.train_micro_batch_size=32", "equipoise.evaluation.batch_size=8"),
        ("grpo.seed=42", "env.fairness.reward=distribution"),
    ],
)
def test_what_decides_no_training_may_change(run, words):
    assert asked(run, *words).target == 100


def test_the_budget_and_the_place_of_a_judge_may_change():
    for key in ("url", "api_key_env", "limits.concurrency", "budget.tokens", "cache_dir"):
        assert _may_change(f"env.dharma.judge.endpoint.{key}", frozenset(), "local")
    for key in ("env.dharma.judge.endpoint.model", "env.dharma.reward", "env.dharma"):
        assert not _may_change(key, frozenset(), "local")


def test_nothing_is_kept_of_a_resumption_without_changes_but_that_it_was(run):
    config = run.config.read_text()
    assert kept(run) == []
    entry = json.loads(run.provenance.read_text())["resumed"][0]
    assert (entry["changes"], entry["kept_in"], entry["from_step"]) == ({}, None, 0)
    assert run.config.read_text() == config
    assert not run.earlier.exists()


def test_every_change_is_written_down(run):
    before = run.config.read_text()
    assert "equipoise.threads: the run has 1, asked for is 2" in kept(run, "equipoise.threads=2")[0]
    kept(run, "equipoise.threads=3")
    first, second = json.loads(run.provenance.read_text())["resumed"]
    assert first["changes"] == {"equipoise.threads": {"before": 1, "after": 2}}
    assert second["changes"] == {"equipoise.threads": {"before": 2, "after": 3}}
    assert (run.root / first["kept_in"] / "config.yaml").read_text() == before
    assert asked(run).changes == ()
    assert json.loads(run.provenance.read_text())["command"] == ["python", "first"]


def test_a_configuration_that_was_edited_by_hand_is_no_way_around(run):
    record_files(run, run.config)
    run.config.write_text(run.config.read_text().replace("lr: 0.0001\n", "lr: 0.0007\n"))
    with refusal("resume.changed-folder", "config.yaml was changed"):
        asked(run, "equipoise.threads=2")


def test_a_changed_configuration_is_sealed_again(run):
    record_files(run, run.config)
    kept(run, "equipoise.threads=2")
    assert asked(run).changes == ()


class TestAnotherLength:
    def test_the_schedule_follows_and_is_stated(self, run):
        trained(run, 100, finished=True)
        said = kept(run, "--iterations=200")
        assert "from step 100 to 200" in said[0]
        assert "learning rate 5e-05 at first, 5e-07 at last" in said[0]
        scheduler = asked(run).loaded.config.policy.scheduler
        assert scheduler is not None
        assert scheduler[0]["kwargs"]["total_iters"] == 200

    def test_the_old_result_moves_when_a_new_one_takes_its_place(self, run):
        trained(run, 100, finished=True)
        run.added.mkdir()
        before = contents(run)
        kept(run, "--iterations=200")
        assert contents(run) == before, "nothing has been trained yet"
        assert not has_result(run), "the engine is to train"
        said: list[str] = []
        set_result_aside(run, said.append)
        assert said == [f"the result before these steps is kept in {run.earlier / '1'}"]
        names = {path.name for path in (run.earlier / "1").iterdir()}
        assert names == {
            *("config.yaml", "training_history.csv", "final", "final_checkpoint"),
            *("comparison.json", "report.html", "added"),
        }
        assert not run.final_checkpoint.exists()
        assert not run.evaluation("final").exists()
        assert run.history.exists()
        set_result_aside(run, said.append)
        assert len(said) == 1, "a new result stays where it is"
        run.final_checkpoint.mkdir()
        assert has_result(run)

    def test_a_kill_while_it_moves_loses_nothing(self, run, monkeypatch):
        trained(run, 100, finished=True)
        kept(run, "--iterations=200")
        rename = Path.rename

        def killed(path, target):
            if path == run.final_checkpoint:
                raise KeyboardInterrupt
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            set_result_aside(run, print)
        monkeypatch.undo()
        check_files(run, lasting=("final", "final_checkpoint"), warn=pytest.fail)
        assert not has_result(run)
        set_result_aside(run, lambda _: None)
        assert {"final", "final_checkpoint"} <= {p.name for p in (run.earlier / "1").iterdir()}

    def test_an_interruption_before_the_first_step_says_where_the_result_is(self, run):
        trained(run, 100, finished=True)
        record_files(run, run.final_checkpoint, run.evaluation("final").parent, run.comparison)
        before = contents(run)
        with (
            pytest.raises(Stopped, match="is still in") as stopped,
            resumed(asked(run, "--iterations=200"), Reporter()),
        ):
            raise Stopped  # while the model is made
        assert f"--resume {run.root} continues it" in str(stopped.value)
        assert "nothing is kept" not in str(stopped.value)
        assert contents(run) == before
        again = asked(run)
        assert (again.planned, again.target, again.changes) == (200, 200, ())

    def test_a_second_extension_keeps_the_first_one_s_result(self, run):
        trained(run, 100, finished=True)
        config = run.config.read_text()
        kept(run, "--iterations=200")
        kept(run, "--iterations=300")
        set_result_aside(run, lambda _: None)
        assert (run.earlier / "1" / "final_checkpoint").is_dir()
        assert (run.earlier / "1" / "config.yaml").read_text() == config
        assert not (run.earlier / "2" / "final_checkpoint").exists()

    def test_a_run_that_was_stopped_may_become_shorter_down_to_what_is_done(self, run):
        trained(run, 40)
        assert asked(run, "--iterations=40").target == 40
        with refusal("resume.no-more-steps", "40", "39"):
            asked(run, "--iterations=39")

    def test_a_finished_run_does_not_become_shorter(self, run):
        trained(run, 100, finished=True)
        with refusal("resume.no-more-steps", "100"):
            asked(run, "--iterations=50")

    def test_a_finished_run_without_checkpoints_has_nothing_to_go_on_from(self, run):
        trained(run, 100, finished=True)
        (run.checkpoints / "checkpoint-100").rmdir()
        with refusal("resume.no-checkpoint"):
            asked(run, "--iterations=200")

    def test_added_steps_at_rate_0_are_refused_before_anything_moves(self, tmp_path):
        linear = (
            "policy.scheduler=[{name: torch.optim.lr_scheduler.LinearLR, kwargs: "
            "{start_factor: 1.0, end_factor: 0.0, total_iters: 100}}]"
        )
        run = trained(start(tmp_path / "run", "--iterations=100", linear), 100, finished=True)
        config = run.config.read_text()
        with refusal("resume.ended-schedule", "101", "200"):
            kept(run, "--iterations=200")
        assert run.final_checkpoint.exists()
        assert run.config.read_text() == config
        said = kept(run, "--iterations=200", linear.replace("100", "200"))
        assert "learning rate 5e-05 at first" in said[0]

    def test_fewer_passes_over_the_prompts_are_another_length_too(self, run):
        """1,000 prompts in steps of 64: at most 15 steps in one pass."""
        assert asked(run, "grpo.max_num_epochs=1").target == 15


class TestOnNemoRl:
    def test_the_length_may_change_and_the_schedule_stays(self, tmp_path):
        run = trained(
            start(tmp_path / "run", "--engine=nemo_rl", scale="small"), 100, finished=True
        )
        assert "learning rate 2e-05 at first, 2e-05 at last" in kept(run, "--iterations=150")[0]

    def test_its_checkpoints_hold_the_schedule_so_another_is_refused(self, tmp_path):
        words = ("--engine=nemo_rl", "policy.model_name=org/model")
        run = start(tmp_path / "run", *words, scale="local")
        assert "total_iters: ${" not in run.config.read_text()
        constant = "policy.scheduler=null"
        with refusal("resume.fixed-keys", "policy.scheduler: the run has"):
            asked(run, "--iterations=200", constant)
        with refusal("resume.ended-schedule", "101", "200"):
            kept(trained(run, 100, finished=True), "--iterations=200")
