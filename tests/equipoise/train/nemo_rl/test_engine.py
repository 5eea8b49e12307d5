"""What the engine has around NeMo-RL's own script; stand-ins for its modules run here."""

import sys
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from equipoise.report.head import alerts
from equipoise.report.run_files import read_run
from equipoise.terminal.exits import Stopped
from equipoise.train.nemo_rl import engine
from equipoise.train.nemo_rl.scoring import StepSummary
from equipoise.train.nemo_rl.watch import Watch
from equipoise.train.stages.tracking import Tracker
from tests.equipoise.train.nemo_rl.stand_ins import Handle
from tests.equipoise.train.nemo_rl.test_hooks import grpo  # noqa: F401  a fixture
from tests.equipoise.train.nemo_rl.test_watch import Sample, Scorer
from tests.refusals import refusal

STEPS = 12
#: A checkpoint is there after so many of them, and the run is stopped.
FIRST = 5
SCRIPT = """
from nemo_rl.algorithms import grpo

grpo.grpo_train(policy=None, task_to_env={"toy": grpo.environment}, logger=grpo.Logger())
"""


class Drifting(Scorer):
    """An actor of whose steps each earns more than the last one and measures less."""

    def __init__(self, done):
        super().__init__()
        self.done = done

    def summary(self, split):
        self.done += 1
        return StepSummary({"reward": self.done / 2, "env/accuracy": -self.done / 3}, ())


@pytest.fixture
def nemo_rl(job, monkeypatch, grpo, tmp_path):  # noqa: F811
    """Trains a job from a step to another one as `run_grpo.py` does, and saves the last one."""
    ray = ModuleType("ray")
    ray.get, ray.shutdown = (lambda value: value), (lambda: None)
    ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="here")
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name in ("register", "prepare_process"):
        monkeypatch.setattr(engine, name, lambda *_: None)
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
    script = tmp_path / "run_grpo.py"
    script.write_text(SCRIPT)
    installation = SimpleNamespace(root=tmp_path, script=script, make_importable=lambda: None)

    def train(job, first, last):
        def grpo_train(policy, task_to_env, logger):
            if first == 1:
                Watch(job, STEPS, lambda row: None).before_first_step(Sample())
            for step in range(first, last + 1):
                grpo.TimeoutChecker().check_save()
                logger.log_metrics({"loss": 0.5}, step, "train")
                logger.log_metrics({"total_step_time": 1.0}, step, "timing/train")
            folder = job.run.checkpoints / f"step_{last}"
            folder.mkdir(parents=True)
            (folder / "training_info.json").write_text("{}")

        monkeypatch.setattr(grpo, "grpo_train", grpo_train)
        grpo.environment = Handle(Drifting(first - 1))
        engine.train(job, installation, tmp_path / "nemo_rl.yaml", engine.Rehearsal())

    return train


def test_an_alarm_of_a_step_reaches_terminal_wandb_and_report_once(
    nemo_rl, job, monkeypatch, capfd
):
    """Of a run that was stopped before that step, and goes by the steps of both its parts."""
    config = job.config.model_copy(
        update={
            "grpo": job.config.grpo.model_copy(
                update={"max_num_steps": STEPS, "max_num_epochs": 1000}
            ),
            "logger": job.config.logger.model_copy(update={"wandb_enabled": True}),
        }
    )
    loaded = replace(job.loaded, config=config, engine="nemo_rl")
    sent = []
    wandb = SimpleNamespace(run=SimpleNamespace(alert=lambda title, text: sent.append(text)))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    job = replace(job, loaded=loaded, tracker=Tracker(loaded, job.run))
    job.run.ledger.update({"run_id": "run7"})
    with pytest.raises(Stopped):
        nemo_rl(job, 1, FIRST)
    assert sent == []
    nemo_rl(job, FIRST + 1, STEPS)
    (text,) = sent
    assert text.startswith("Step 8: over 8 steps the reward rose and accuracy did not improve.")
    assert "".join(capfd.readouterr()).count(f"warning: {text}") == 1
    assert text in [alert.text for alert in alerts(read_run(job.run.root))]


class ActorDiedError(RuntimeError):
    """As Ray's, whose text is a traceback."""

    __module__ = "ray.exceptions"


def init_ray():
    """NeMo-RL's, where Ray's start fails."""
    raise Exception("The current node timed out during startup.")


def refuse(error):
    raise error


@pytest.mark.parametrize(
    ("fails", "code", "says"),
    [
        (init_ray, "nemo-rl.no-ray", "Exception: The current node timed out"),
        (partial(refuse, AssertionError("TP\n  must be 1")), "nemo-rl.refused", "TP must be 1"),
        (partial(refuse, ActorDiedError("Traceback\n x\nno heads")), "nemo-rl.refused", "no heads"),
    ],
)
def test_what_nemo_rl_refuses_is_one_error_and_its_traceback_is_in_the_log(
    fails, code, says, job, capfd
):
    with refusal(code, says), engine.one_error(Watch(job, STEPS, print)):
        fails()
    assert "Traceback" in capfd.readouterr().err


def test_a_bug_and_an_error_of_training_keep_their_tracebacks(job):
    watch = Watch(job, STEPS, print)
    with pytest.raises(TypeError), engine.one_error(watch):
        raise TypeError
    watch.begin(Scorer())
    with pytest.raises(ValueError, match="late"), engine.one_error(watch):
        raise ValueError("late")
