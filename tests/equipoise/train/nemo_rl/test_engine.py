"""The engine passes on the alarms of a step; NeMo-RL itself is not imported here."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from equipoise.commands import stages
from equipoise.commands.tracking import Tracker
from equipoise.config.schema import PolicyConfig
from equipoise.files.exits import Stopped
from equipoise.report.head import alerts
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from equipoise.run.history import append_row
from equipoise.run.job import FINAL
from equipoise.run.ledger import Provenance
from equipoise.run.rollouts import write_generations
from equipoise.train.nemo_rl import engine, history
from equipoise.train.nemo_rl.history import go_back
from tests.equipoise.run.toy import Model

STEPS = 12
#: A checkpoint is there after so many of them, and the run is stopped.
FIRST = 5


@pytest.fixture
def nemo_rl(job, monkeypatch, tmp_path):
    """Trains a job to a step, of which each earns more than the last one and measures less."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    sys.modules["ray"].shutdown = lambda: None
    monkeypatch.setattr(engine, "before_nemo_rl", lambda: None)
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
    installation = SimpleNamespace(
        root=tmp_path, base_config=tmp_path / "base.yaml", make_importable=lambda: None
    )
    monkeypatch.setattr(engine, "find_installation", lambda: installation)

    class Policy:
        def __init__(self, job, path, done, on_row, stop_at):
            self.job, self.steps, self.on_row = job, done, on_row

        def sampler(self):
            return Model()

        def train(self):
            for step in range(self.steps + 1, self.last + 1):
                row = {"step": step, "reward": step / 2, "env/accuracy": -step / 3, "loss": 0.5}
                append_row(self.job.run.history, row)
                self.on_row(row)
            folder = self.job.run.checkpoints / f"step_{self.last}"
            folder.mkdir(parents=True)
            (folder / "training_info.json").write_text("{}")
            self.steps = self.last
            if self.last < self.job.steps:
                raise Stopped

    monkeypatch.setattr(stages, "begin_training", print)  # `Model` gives no signal
    monkeypatch.setattr(engine, "set_up", lambda *words: nullcontext(Policy(*words)))

    def train(job, last):
        Policy.last = last
        watch = partial(Tracker(job.loaded, job.run).watching, job)
        stages.run_stages(job, partial(engine.open_policy, job, watch))

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
    job = replace(job, loaded=loaded)
    job.run.ledger.update(Provenance(run_id="run7"))
    with pytest.raises(Stopped):
        nemo_rl(job, FIRST)
    assert sent == []
    nemo_rl(job, STEPS)
    (text,) = sent
    assert text.startswith("Step 8: over 8 steps the reward rose and accuracy did not improve.")
    assert "".join(capfd.readouterr()).count(f"warning: {text}") == 1
    assert text in [alert.text for alert in alerts(read_run(job.run.root))]


@pytest.mark.parametrize("converts", [True, False])
def test_megatron_alone_converts_the_model(nemo_rl, job, monkeypatch, converts):
    told = []

    def converting(model, *_):
        told.append(model)
        return nullcontext()

    monkeypatch.setattr(PolicyConfig, "converts", converts)
    monkeypatch.setattr(engine, "converting", converting)
    nemo_rl(job, job.steps)
    assert told == [job.model_name] * converts


def test_a_run_goes_back_to_the_checkpoint_whose_step_is_in_the_history(tmp_path, monkeypatch):
    """NeMo-RL saves before it logs, and a kill may come between the two."""
    run, warnings = RunDirectory(tmp_path), []
    monkeypatch.setattr(history._LOG, "warning", warnings.append)
    assert go_back(run) == 0
    for step in (2, 4):
        (folder := run.checkpoints / f"step_{step}").mkdir(parents=True)
        (folder / "training_info.json").touch()
    for step in range(1, 5):
        append_row(run.history, {"step": step})
    assert go_back(run) == 4
    run.history.write_bytes(run.history.read_bytes()[:-4])
    assert go_back(run) == 2
    assert "the step is taken again" in warnings[0]
    assert not (run.checkpoints / "step_4").exists()


def test_a_resumed_run_has_its_reference_again(job, monkeypatch):
    """A kill may come between the trained model's replies and their scores."""
    taken = []
    monkeypatch.setattr(engine, "record_identity", lambda *_: None)
    monkeypatch.setattr(stages, "take_reference", taken.append)
    write_generations(job.run.generations(FINAL), [], [])
    job.run.final_checkpoint.mkdir()
    stages.run_nemo_rl(job, None, None, rehearse=False)
    assert taken == [job]
