"""The order of a run around NeMo-RL's functions, its time in a Slurm job, and its refusals."""

import sys
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from equipoise.commands import stages
from equipoise.config.schema import GrpoConfig
from equipoise.files.exits import Stopped
from equipoise.run.job import FINAL
from equipoise.run.rollouts import write_generations
from equipoise.train.nemo_rl import recipe
from equipoise.train.nemo_rl.recipe import one_error, save_by, set_up, with_first_reference
from tests.equipoise.train.nemo_rl.stand_ins import Policy
from tests.refusals import refusal

STEPS = 4
ENDED = ["monitor ends", "checkpoints are whole", "vLLM ends", "workers end"]


@pytest.fixture
def nemo(job, monkeypatch):
    """Run a job on functions that note their calls; `saves` are the steps with a checkpoint."""
    length = {"max_num_steps": STEPS, "max_num_epochs": STEPS, "num_prompts_per_step": 1}
    grpo_config = job.config.grpo.model_copy(update=length)
    config = job.config.model_copy(update={"grpo": grpo_config})
    job = replace(job, loaded=replace(job.loaded, config=config))
    calls = []

    def note(name, result=None):
        return lambda *_, **__: (calls.append(name), result)[1]

    def grpo_train(logger, **_):
        calls.append("train")
        nemo.loop(logger)

    grpo = ModuleType("grpo")
    grpo.grpo_train = grpo_train
    grpo.refit_policy_generation = note("refit")
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms", SimpleNamespace(grpo=grpo))
    actor = SimpleNamespace(Calls=lambda _: None, start_environment=note("actor"))
    monkeypatch.setitem(sys.modules, "equipoise.train.nemo_rl.actor", actor)
    nemo = SimpleNamespace(
        calls=calls,
        policy=SimpleNamespace(shutdown=note("workers end")),
        generation=SimpleNamespace(finish_generation=note("finish"), shutdown=note("vLLM ends")),
        logger=SimpleNamespace(gpu_monitor=SimpleNamespace(stop=note("monitor ends"))),
        checkpointer=SimpleNamespace(shutdown=note("checkpoints are whole")),
        config=SimpleNamespace(
            checkpointing={"checkpoint_must_save_by": None, "save_period": 2},
            policy={"generation": {"colocated": {"enabled": True}}},
        ),
        loop=lambda history: None,
        **dict.fromkeys(("loader", "val_loader", "tokenizer", "loss", "state")),
    )
    monkeypatch.setattr(recipe, "_set_up", lambda *_: nemo)
    for stage in ("take_reference", "probe"):
        monkeypatch.setattr(stages, stage, lambda *_: None)
    monkeypatch.setattr(stages, "evaluate", note("before"))
    monkeypatch.setattr(stages, "begin_training", note("begin"))

    def after_training(job, _):
        calls.append("after")
        write_generations(job.run.generations(FINAL), [], [])

    monkeypatch.setattr(stages, "after_training", after_training)

    def run(*done, saves=STEPS):
        """`done` are the steps that are done as NeMo-RL starts, and as it starts again."""
        (folder := job.run.checkpoints / f"step_{saves}").mkdir(parents=True)
        (folder / "training_info.json").write_text("{}")
        starts = iter(done or (0,))
        stages.run_stages(job, lambda: set_up(job, None, next(starts), print, None))

    nemo.run = run
    return nemo


def test_a_run_is_evaluated_before_and_after_training(nemo):
    nemo.run()
    before = ["refit", "before", "begin", "finish"]
    assert nemo.calls == [*before, "actor", "train", "refit", "after", *ENDED]


def test_a_resumed_run_has_its_baseline(nemo):
    nemo.run(2)
    assert nemo.calls == ["begin", "actor", "train", "refit", "after", *ENDED]


def test_a_trained_run_is_not_trained_again(nemo):
    nemo.run(STEPS)
    assert nemo.calls == ["refit", "after", *ENDED]


def test_a_run_that_nemo_rl_ended_for_its_time_is_stopped(nemo):
    nemo.config.checkpointing["checkpoint_must_save_by"] = "00:04:00:00"
    nemo.loop = lambda history: setattr(history, "last_step", 2)
    with pytest.raises(Stopped):
        nemo.run(saves=2)
    assert "after" not in nemo.calls


def test_a_run_that_ended_before_its_last_step_for_no_known_reason_is_an_error(nemo):
    """V0.7.0 prints an error of asynchronous training, and returns."""
    nemo.loop = lambda history: setattr(history, "last_step", 3)
    with refusal("nemo-rl.early-end", "after step 3 of 4"):
        nemo.run(saves=2)


def test_asynchronous_training_ends_its_workers_and_another_start_evaluates(nemo, job, monkeypatch):
    monkeypatch.setattr(GrpoConfig, "is_asynchronous", True)
    nemo.config.grpo = {"async_grpo": {"max_trajectory_age_steps": 2}}
    grpo = sys.modules["nemo_rl.algorithms"].grpo

    def async_grpo_train(max_trajectory_age_steps, dataloader, logger, **_):
        nemo.calls.append(("train", max_trajectory_age_steps))

    grpo.async_grpo_train = async_grpo_train
    nemo.run(0, STEPS)
    trained = nemo.calls.index(("train", 2)) + 1
    assert nemo.calls[trained:] == [*ENDED, "refit", "after", *ENDED]


def test_a_stop_by_failures_is_their_error(nemo):
    def loop(history):
        history.error = ValueError("failures")
        raise Stopped

    nemo.loop = loop
    with pytest.raises(ValueError, match="failures"):
        nemo.run(saves=2)
    assert nemo.calls[-4:] == ENDED


def test_a_slurm_job_saves_before_its_end():
    end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 300 + 26 * 3600 + 61)}
    assert save_by(None, end) in ("00:00:00:93661", "00:00:00:93660")
    assert save_by("00:03:00:00", end) == "00:03:00:00"
    assert save_by(None, {}) is None
    assert save_by(None, {"SLURM_JOB_END_TIME": "0"}) == "00:00:00:0"


class ActorDiedError(Exception):
    """As Ray's, whose text is a traceback."""

    __module__ = "ray.exceptions"


def refuse(error):
    raise error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Exception("The current node timed out"), "Exception: The current node timed out"),
        (AssertionError("TP\n  must be 1"), "TP must be 1"),
        (ActorDiedError("Traceback\n x\nno heads"), "no heads"),
    ],
)
def test_what_nemo_rl_refuses_is_one_error_and_its_traceback_is_in_the_log(error, says, capfd):
    with refusal("nemo-rl.refused", says), one_error():
        raise error
    assert "Traceback" in capfd.readouterr().err


def test_a_bug_keeps_its_traceback():
    with pytest.raises(TypeError), one_error():
        raise TypeError


def test_a_version_that_lacks_what_is_called_is_refused(job, monkeypatch):
    monkeypatch.setattr(recipe, "unmet", lambda: iter(["nemo_rl.x lacks y (recipe.py)"]))
    with refusal("nemo-rl.other-version", "nemo_rl.x lacks y", "v0.7.0"):
        set_up(job, None, 0, print, None).__enter__()


def test_a_resumed_run_has_the_reference_of_its_first_start(tmp_path, monkeypatch):
    """On workers that load a checkpoint before they copy the reference."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=list))
    monkeypatch.chdir(tmp_path)  # NeMo-RL names a checkpoint from the driver's folder
    torch.save(torch.ones(2), "weights")
    words = {"cluster": "cluster", "config": {"dtensor_cfg": {"enabled": True}}, "tokenizer": "t"}
    paths = {"weights_path": "weights", "optimizer_path": "optimizer"}
    moved = Policy(**words, **paths).worker
    assert moved.reference_model_state_dict["weights"].tolist() == [1.0, 1.0]
    build = with_first_reference(Policy)
    assert build(**words).worker.weights.tolist() == [0.0, 0.0]
    resumed = build(**words, **paths).worker
    assert resumed.weights.tolist() == [1.0, 1.0]
    assert resumed.optimizer_path == str(tmp_path / "optimizer")
    assert resumed.reference_model_state_dict["weights"].tolist() == [0.0, 0.0]
    megatron = words | {"config": {"dtensor_cfg": {"enabled": False}}}
    assert build(**megatron, **paths).worker.weights.tolist() == [1.0, 1.0]
