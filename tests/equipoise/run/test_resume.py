"""`--resume` may change the number of steps, and refuses every other key."""

import json
import shutil
from pathlib import Path

import pytest

from environments.base import PromptRecord
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.disk import remove_abandoned, write_json, write_text
from equipoise.files.records import write_prompts
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from equipoise.run.seals import Manifest, open_run, seal
from equipoise.run.start import check_resume, grow, reached_step
from tests.refusals import refusal

ASK = ({"role": "user", "content": "Why?"},)
RECORDS = [PromptRecord(f"p{n}", "fairness", ASK, f"p{n}", "train") for n in range(1_000)]
PROMPTS = ("prompts.jsonl", "prompts.manifest.json")


def start(root, *words, scale="local"):
    """A run directory as a start with these words leaves it."""
    run = RunDirectory(root)
    root.mkdir()
    loaded = load_config(
        "fairness", parse_flags("x", [f"--config=nemo_configs/{scale}.yaml", *words])
    )
    write_text(run.config, loaded.to_yaml())
    run.ledger.create(Provenance(command=("python", "first")))
    write_prompts(run.prompts, RECORDS, {})
    seal(run)
    return run


def trained(run, step, *, finished=False):
    (run.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    run.history.write_text("")
    if finished:
        write_json(run.evaluation("final"), {})
        write_json(run.final_checkpoint / "config.json", {})
        write_json(run.comparison, {})
        seal(run)
    return run


def result(run):
    return run.evaluation("final").parent, run.final_checkpoint, run.comparison


def asked(run, *words):
    loaded = load_config("fairness", parse_flags("x", [f"--resume={run.root}", *words]))
    check_resume(loaded)
    return loaded


@pytest.fixture
def run(tmp_path):
    return start(tmp_path / "run", "--iterations=100")


KEYS = {
    "--learning-rate=0.5": "policy.optimizer.kwargs.lr",
    "--run-name=other": "equipoise.run_name",
    "--no-wandb": "logger.wandb_enabled",
}


@pytest.mark.parametrize(
    "word", [*KEYS, "env.fairness.reward=distance", "equipoise.threads=2", "grpo.max_num_epochs=1"]
)
def test_every_key_but_the_number_of_steps_is_refused_by_name(run, word):
    with refusal("resume.fixed-keys", KEYS.get(word, word.partition("=")[0])):
        asked(run, word)


class TestMoreSteps:
    def test_the_result_of_fewer_goes_and_the_schedule_follows(self, run):
        trained(run, 100, finished=True)
        said: list[str] = []
        grow(run, asked(run, "--iterations=200"), said.append)
        assert said == ["training goes on from step 100 to 200; the result of 100 steps is removed"]
        assert not any(part.exists() for part in result(run))
        assert reached_step(run) == 100 and run.history.exists()
        scheduler = asked(run).config.policy.scheduler
        assert scheduler is not None and scheduler[1]["kwargs"]["T_max"] == 200
        (grown,) = json.loads(run.provenance.read_text())["grown"]
        assert (grown["from_step"], grown["steps_before"], grown["steps"]) == (100, 100, 200)
        seal(run, run.config)
        assert Manifest.read(run.root).parts() == {"config.yaml", *PROMPTS}

    def test_a_kill_at_any_file_operation_leaves_a_run_that_grows_again(self, run, monkeypatch):
        trained(run, 100, finished=True)
        for number in range(99):
            copy = RunDirectory(run.root.with_name(f"copy{number}"))
            shutil.copytree(run.root, copy.root)
            if not killed_at(number, copy, asked(copy, "--iterations=200"), monkeypatch):
                break
            remove_abandoned(copy.root)
            for part in result(copy):  # whole, or gone
                assert not part.exists() or any(part.rglob("*")) or part.is_file()
            grow(copy, asked(copy, "--iterations=200"), lambda _: None)
            assert not any(part.exists() for part in result(copy))
            assert "max_num_steps: 200" in copy.config.read_text()
            seal(copy, copy.config)
            open_run(copy.root)
        assert number > 8

    def test_fewer_are_refused(self, run):
        with refusal("resume.fewer-steps", "100", "99"):
            asked(run, "--iterations=99")

    def test_a_finished_run_without_checkpoints_has_nothing_to_go_on_from(self, run):
        trained(run, 100, finished=True)
        (run.checkpoints / "checkpoint-100").rmdir()
        with refusal("resume.no-checkpoint"):
            asked(run, "--iterations=200")

    def test_steps_that_would_train_nothing_are_refused(self, tmp_path):
        linear = (
            "policy.scheduler=[{name: torch.optim.lr_scheduler.LinearLR, kwargs: "
            "{start_factor: 1.0, end_factor: 0.0, total_iters: 100}}]"
        )
        run = trained(start(tmp_path / "rate", "--iterations=100", linear), 100)
        with refusal("resume.ended-schedule", "101", "200"):
            asked(run, "--iterations=200")
        epochs = ("--iterations=10", "grpo.max_num_epochs=1")  # of 15 steps
        run = trained(start(tmp_path / "epochs", *epochs), 10)
        asked(run, "--iterations=15")
        run = trained(start(tmp_path / "ended", "--iterations=15", epochs[1]), 15)
        with refusal("resume.ended-schedule", "16", "20"):
            asked(run, "--iterations=20")


def killed_at(number, run, loaded, monkeypatch):
    """Whether growing came to its operation of this number, before which its process ended."""
    calls = []

    def counted(operation):
        def call(*words, **named):
            if len(calls) == number:
                raise KeyboardInterrupt
            calls.append(operation)
            return operation(*words, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            grow(run, loaded, lambda _: None)
            seal(run, run.config)
        except KeyboardInterrupt:
            return True
    return False
