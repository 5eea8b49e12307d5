"""The logger writes a row per step, adds metrics that choose checkpoints, and stops a run."""

import json
import math
import sys
from dataclasses import replace

import pytest

from environments.base import Failure, Rollout, Score
from equipoise.files.exits import Stopped
from equipoise.run.rollouts import read_kept
from equipoise.train.nemo_rl.history import HistoryLogger, latest_checkpoint
from equipoise.train.nemo_rl.scoring import StepSummary
from tests.refusals import refusal

OK = StepSummary({"reward": 0.25, "env/accuracy": 0.25, "failures": 0.0}, (None, None), 20)
FAILED = StepSummary({"failures": 2.0}, (Failure("transport_timeout", "timeout"),) * 2)


class Environment:
    """The actor's answers, by plain calls."""

    def __init__(self):
        self.ready = {}

    def summary(self, split):
        return self.ready.pop(split, None)

    def spent(self):
        return {"judge": {"calls": 5.0, "cost": 0.25}}


class NemoLogger:
    """A logger that records the metrics and file names that NeMo-RL's would get."""

    def __init__(self):
        self.logged, self.files = [], []
        self.gpu_monitor = "theirs"

    def log_metrics(self, metrics, step, prefix="", step_finished=False):
        self.logged.append((prefix, step, dict(metrics)))

    def log_batched_dict_as_jsonl(self, to_log, filename):
        self.files.append(filename)


@pytest.fixture
def run(job):
    """Make a logger of a job whose configuration has been changed."""

    def run(metric=None, higher=True, steps=9, stop_at=None, window=5, **grpo):
        ours = job.config.equipoise.model_copy(update={"failure_window": window})
        grpo |= {"max_num_steps": steps, "max_num_epochs": steps, "num_prompts_per_step": 1}
        changes = {"equipoise": ours, "grpo": job.config.grpo.model_copy(update=grpo)}
        loaded = replace(job.loaded, config=job.config.model_copy(update=changes))
        rows = []
        checkpointing = {"metric_name": metric, "higher_is_better": higher, "save_period": 50}
        return HistoryLogger(
            NemoLogger(),
            Environment(),
            checkpointing,
            replace(job, loaded=loaded),
            rows.append,
            lambda: bool(run.signals),
            stop_at,
        )

    run.signals = []
    return run


def rolled_out(history, step, summary=OK):
    """Log the rollouts of a step as NeMo-RL's loop does, before it trains on them."""
    history.environment.ready["train"] = summary
    metrics = {"mean_gen_tokens_per_sample": 3.5}
    history.log_metrics(metrics, step, "train")
    return metrics


def trained(history, step, of_rollouts=(), error=1.0):
    metrics = {"loss": 0.5, "reward": 9.0, "lr": 1e-3, "kl_penalty": 0.1, "of_nemo_rl": 7}
    metrics |= {"token_mult_prob_error": error, "gen_kl_error": error / 100}
    metrics |= dict(of_rollouts)
    history.log_metrics(metrics, step, prefix="train")
    history.log_metrics({"anything": 1}, step, prefix="performance")
    history.log_metrics({"total_step_time": 2.0}, step, prefix="timing/train", step_finished=True)
    return metrics


def take(history, step, summary=OK, error=1.0):
    """Take a step: whether it was to be saved, and whether the run ended with it."""
    of_rollouts = rolled_out(history, step, summary)
    saves = history.checkpointing["save_period"] == 1
    try:
        trained(history, step, of_rollouts, error)
    except Stopped:
        return saves, True
    return saves, False


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_becomes_a_row_and_its_metrics_join_nemo_rls(asynchronous, run, job):
    """Asynchronous training logs a step once, when it is over."""
    history = run()
    if asynchronous:
        history.environment.ready["train"] = OK
        of_rollouts = {"mean_gen_tokens_per_sample": 3.5}
    else:
        of_rollouts = rolled_out(history, 1)
        assert of_rollouts["env/accuracy"] == 0.25  # before NeMo-RL chooses a checkpoint by it
    metrics = trained(history, 1, of_rollouts)
    assert metrics["env/accuracy"] == 0.25
    assert history.logger.logged[-3][2]["env/accuracy"] == 0.25
    (row,) = map(json.loads, job.run.history.open())
    names = ("step", "reward", "loss", "learning_rate", "kl", "completion_length", "seconds")
    assert [row[name] for name in names] == [1, 0.25, 0.5, 0.001, 0.1, 3.5, 2]
    assert "of_nemo_rl" not in row
    assert job.meter.tokens == {"prompt_tokens": 20, "completion_tokens": 7}
    calls = job.meter.usage().calls
    assert (calls["judge"]["calls"], calls["judge"]["cost"]) == (5.0, 0.25)


def test_a_metric_of_nemo_rls_stays_its_own(run):
    history = run()
    history.environment.ready["validation"] = OK
    metrics = {"accuracy": 0.3, "reward": 9.0, "avg_length": 5.0}
    history.log_metrics(metrics, 1, prefix="validation")
    assert metrics["reward"] == 9.0
    assert (metrics["accuracy"], metrics["env/accuracy"]) == (0.3, 0.25)
    assert history.job.meter.tokens["completion_tokens"] == 10


def test_with_dynamic_sampling_a_step_is_summed_up_at_its_end(run):
    history = run(use_dynamic_sampling=True)
    assert "env/accuracy" not in rolled_out(history, 1)
    assert trained(history, 1)["env/accuracy"] == 0.25


def test_what_the_actor_kept_of_a_step_is_written_with_its_row(run, job):
    history = run(steps=2)
    kept = [(Rollout("p0", "s", "train", "<Q>", reply), Score(1.0)) for reply in "AB"]
    for step in (1, 2):
        take(history, step, replace(OK, sample=kept))
    written = [
        (step, rollout.completion, score.value)
        for step, rollout, score in read_kept(job.run.training)
    ]
    assert written == [(1, "A", 1.0), (1, "B", 1.0), (2, "A", 1.0), (2, "B", 1.0)]


def test_no_steps_tokens_are_written_and_all_else_is_nemo_rls(run):
    history = run()
    for name in ("train_data_step1.jsonl", "val_data_step1.jsonl"):
        history.log_batched_dict_as_jsonl({}, name)
    assert history.logger.files == ["val_data_step1.jsonl"]
    assert history.gpu_monitor == "theirs"


def test_the_newest_complete_checkpoint_counts(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for name in ("step_2", "step_10", "tmp_step_12", "step_best", "step_11"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "training_info.json").touch()
    (tmp_path / "step_11" / "training_info.json").unlink()
    assert latest_checkpoint(tmp_path).step == 10


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("value", [math.nan, None])
def test_a_validation_without_a_readable_reply_makes_the_worst_checkpoint(
    higher, value, run, capsys
):
    """By NeMo-RL's own order (`remove_old_checkpoints`); with NaN in it, it sorts nothing."""
    history, saved = run("val:env/far", higher=higher), []
    for step, far in ((10, 0.5), (20, value), (30, 0.3), (40, 0.4)):
        metrics = {"accuracy": 0.1} | ({} if far is None else {"env/far": far})
        history.log_metrics(metrics, step, prefix="validation")
        saved.append((step, json.loads(json.dumps(metrics, allow_nan=False))))
    ordered = sorted(saved, key=lambda each: each[1]["env/far"], reverse=higher)
    assert [step for step, _ in ordered] == ([10, 40, 30, 20] if higher else [30, 40, 10, 20])
    assert capsys.readouterr().out.count("env/far is not known") == 1


@pytest.mark.parametrize("metric", [None, "train:env/far", "val:accuracy"])
def test_a_metric_that_chooses_nothing_is_left_as_it_is(metric, run):
    metrics = {"env/far": math.nan, "accuracy": 0.5}
    run(metric).log_metrics(metrics, 1, prefix="validation")
    assert math.isnan(metrics["env/far"])


def test_of_training_too_the_worst_is_known_before_the_step_is_saved(run):
    row = OK.row | {"env/accuracy": math.nan}
    metrics = rolled_out(run("train:env/accuracy"), 1, replace(OK, row=row))
    assert metrics["env/accuracy"] == -sys.float_info.max
    assert "loss" not in rolled_out(run("train:loss"), 1)


def test_a_signal_while_replies_are_written_ends_that_step_and_later_the_next(run):
    history = run()
    assert take(history, 1) == (False, False)
    run.signals.append("SIGTERM")
    assert take(history, 2) == (True, True)
    later = run()
    run.signals.clear()
    of_rollouts = rolled_out(later, 3)
    run.signals.append("SIGTERM")
    trained(later, 3, of_rollouts)
    assert take(later, 4) == (True, True)


def test_a_rehearsal_is_interrupted_after_its_step(run):
    history = run(stop_at=2)
    assert [take(history, step) for step in (1, 2)] == [(False, False), (True, True)]


def test_the_last_step_ends_by_itself(run):
    history = run(steps=1)
    run.signals.append("SIGTERM")
    assert take(history, 1) == (True, False)


def test_failures_stop_the_run_with_their_reason(run):
    history = run(window=1)
    assert take(history, 1, FAILED) == (True, True)
    with refusal("training.failed-scores", "timeout (2x)"):
        raise history.error


def test_two_policies_in_training_and_generation_stop_the_run(run, job):
    history = run(window=3)
    # One spike does not end the run; a figure that is not a number is above every bound. A step's
    # figure is known when it is saved, so the next one ends the run.
    errors = (1.01, 9.0, 1.02, 1.03, 1.2, 1.15, 1.0)
    ends = [take(history, step, error=e) for step, e in enumerate(errors, start=1)]
    assert ends == [(False, False)] * 6 + [(True, True)]
    message = "median token_mult_prob_error of the last 3 steps is 1.15, above"
    with refusal("training.sampling-mismatch", message, "max_token_mult_prob_error = 1.1"):
        raise history.error
    rows = list(map(json.loads, job.run.history.open()))
    assert [row["token_mult_prob_error"] for row in rows[:2]] == [1.01, 9]
    assert rows[0]["gen_kl_error"] == 0.0101


def test_a_figure_that_is_not_a_number_is_above_every_bound(run):
    history = run(window=1)
    take(history, 1, error=math.nan)
    with refusal("training.sampling-mismatch", "is inf"):
        raise history.error
