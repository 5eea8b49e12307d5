"""What is kept of a run: stages once each, a history row per step, a stop when it is time."""

import csv
import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from environments.base import Failure, Rollout, Score
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_kept, read_rollouts
from equipoise.run.seals import damage_of, is_sealed
from equipoise.train.nemo_rl.scoring import StepSummary
from equipoise.train.nemo_rl.watch import Watch, score_final
from tests.refusals import refusal

OK = StepSummary({"reward": 0.25, "env/accuracy": 0.25, "failures": 0.0}, (None, None))
FAILED = StepSummary({"failures": 2.0}, (Failure("transport_timeout", "timeout"),) * 2)


class Scorer:
    def __init__(self):
        self.ready, self.loaded, self.missing = {}, 0, []

    def summary(self, split):
        return self.ready.pop(split, None)

    def load_reference(self):
        self.loaded += 1

    def unseen(self, paths):
        return [path for path in paths if path in self.missing]

    def sources(self):
        return {"policy": "abc"}

    def spent(self):
        return {"judge": {"calls": 5.0, "cost": 0.25}}


@pytest.fixture
def scorer():
    return Scorer()


@pytest.fixture
def rows():
    return []


@pytest.fixture
def watch(job, rows, scorer):
    watch = Watch(job, steps=4, on_row=rows.append)
    watch.begin(scorer)
    return watch


class Sample:
    """Draws the same replies for every prompt and remembers what it was asked for."""

    def __init__(self, replies="ABA"):
        self.asked, self.replies = [], replies

    def __call__(self, records, generations, label):
        self.asked.append((label, [record.id for record in records], generations))
        return [
            Rollout(r.id, r.set_id, r.split, "<Q>", self.replies[n % len(self.replies)])
            for r in records
            for n in range(generations)
        ]


def test_reference_and_baseline_before_the_first_step_and_final_after_the_last(watch, job, scorer):
    sample = Sample()
    watch.before_first_step(sample)
    watch.after_last_step(sample)
    score_final(job)
    assert [(label, sorted(ids), n) for label, ids, n in sample.asked] == [
        ("reference", ["p0", "p1", "p2", "p3", "p4"], 2),
        ("baseline", ["p3", "p4"], 3),
        ("probe", ["p0", "p1"], 4),
        ("greedy", ["p3", "p4"], 1),
        ("final", ["p3", "p4"], 3),
        ("greedy", ["p3", "p4"], 1),
    ]
    assert scorer.loaded == 1
    assert len(job.environment.reference) == len(read_rollouts(job.run.reference)) == 10
    for stage in ("baseline", "final"):
        evaluation = json.loads(job.run.evaluation(stage).read_text())
        assert evaluation["metrics"]["accuracy"]["value"] == pytest.approx(2 / 3)
        assert evaluation["watched"] == {"metric": "accuracy", "better": "higher"}
    assert "reference" in json.loads(job.run.provenance.read_text())["hashes"]


def test_a_reference_is_shared_by_runs_of_one_model_alone(watch, job, scorer):
    """What the workers say of their own weights counts, not what the model is called here."""
    asked = []
    for name, weights in (("a", ["1"]), ("b", ["1"]), ("c", ["2"]), ("d", [None]), ("e", [None])):
        run = RunDirectory(job.run.root.with_name(name))
        run.ledger.create({"seconds": {}, "hashes": {}, "reference_policy": weights})
        sample, again = Sample(), Watch(replace(job, run=run), 4, lambda row: None)
        again.begin(scorer)
        again.before_first_step(sample)
        asked.append([stage for stage, *_ in sample.asked])
    every = ["reference", "baseline", "probe", "greedy"]
    assert asked == [every, every[1:], every, every, every]
    assert scorer.loaded == 5  # one that comes from the cache, too


def test_the_trained_model_is_scored_after_it_was_saved(watch, job):
    watch.before_first_step(Sample())
    watch.after_last_step(Sample())
    assert not job.run.evaluation("final").exists()
    resumed = replace(job, environment=type(job.environment)())
    score_final(resumed)
    accuracy = json.loads(job.run.evaluation("final").read_text())["metrics"]["accuracy"]["value"]
    assert accuracy == pytest.approx(2 / 3)
    score_final(resumed)  # nothing is left to do


def test_what_a_lost_model_wrote_is_drawn_again(watch, job):
    watch.before_first_step(Sample())
    watch.after_last_step(Sample("BBB"))
    watch.after_last_step(Sample("AAA"))
    score_final(job)
    for path in (job.run.rollouts("final"), job.run.greedy):
        assert {rollout.completion for rollout in read_rollouts(path)} == {"A"}
    assert damage_of(job.run, "final") == []


def test_an_actor_that_does_not_see_the_drivers_files_is_refused(job, scorer):
    scorer.missing = [str(job.run.root.resolve())]
    with refusal("nemo-rl.other-view", job.run.root):
        Watch(job, 4, lambda row: None).begin(scorer)


@pytest.mark.parametrize(("mine", "seen"), [("abc", True), ("xyz", False)])
def test_an_actor_that_reads_another_policy_is_refused(job, scorer, mine, seen, monkeypatch):
    monkeypatch.setattr(type(job.environment), "sources", lambda self: {"policy": mine}, False)
    refused = refusal("nemo-rl.other-view", "policy")
    with nullcontext() if seen else refused:
        Watch(job, 4, lambda row: None).begin(scorer)


@pytest.mark.parametrize(
    ("metric", "refused"),
    [("val:env/acuracy", True), ("val:env/accuracy", False), ("val:accuracy", False)],
)
def test_a_metric_that_the_task_lacks_is_refused_before_the_first_step(job, metric, refused):
    config = job.config
    chosen = config.checkpointing.model_copy(update={"metric_name": metric})
    config = config.model_copy(update={"checkpointing": chosen})
    watch = Watch(replace(job, loaded=replace(job.loaded, config=config)), 4, lambda row: None)
    watch.begin(Scorer())
    expected = refusal("nemo-rl.unknown-metric", "acuracy", "accuracy")
    with expected if refused else nullcontext():
        watch.before_first_step(Sample())


def test_metrics_of_training_are_known_before_the_step_is_saved(watch, scorer):
    scorer.ready["train"] = OK
    of_rollouts = {"reward": 9.0}
    watch.on_rollouts(of_rollouts)
    assert of_rollouts == {"reward": 9.0, "env/accuracy": 0.25, "failures": 0.0}
    assert not watch.should_stop()
    watch.on_metrics({"total_step_time": 1.0}, 1, "timing/train")
    of_validation = {"reward": 8.0}
    watch.on_rollouts(of_validation)
    assert of_validation == {"reward": 8.0}


def test_with_dynamic_sampling_a_step_is_summed_up_at_its_end(job, scorer):
    grpo = job.config.grpo.model_copy(update={"use_dynamic_sampling": True})
    config = job.config.model_copy(update={"grpo": grpo})
    watch = Watch(replace(job, loaded=replace(job.loaded, config=config)), 4, lambda row: None)
    watch.begin(scorer)
    scorer.ready["train"] = FAILED
    metrics = {}
    watch.on_rollouts(metrics)
    assert metrics == {}
    assert watch.should_stop()
    assert "timeout (2x)" in str(watch.monitor.error())


@pytest.mark.parametrize("early", [True, False])
def test_a_step_becomes_a_row_and_its_metrics_join_nemo_rls(early, watch, scorer, job, rows):
    scorer.ready["train"] = OK
    if early:
        watch.on_rollouts({})
    assert not watch.should_stop()
    metrics = {"loss": 0.5, "reward": 9.0, "lr": 1e-3, "kl_penalty": 0.1, "of_nemo_rl": 7}
    watch.on_metrics(metrics, 1, "train")
    watch.on_metrics({"total_step_time": 2.0}, 1, "timing/train")
    assert metrics["env/accuracy"] == 0.25
    assert metrics["reward"] == 9.0  # NeMo-RL's own stays
    (row,) = csv.DictReader(job.run.history.open())
    assert {name: row[name] for name in ("step", "reward", "loss", "learning_rate", "kl")} == {
        "step": "1",
        "reward": "0.25",
        "loss": "0.5",
        "learning_rate": "0.001",
        "kl": "0.1",
    }
    assert row["seconds"] == "2"
    assert "of_nemo_rl" not in row
    assert rows[0]["step"] == 1


def test_what_the_actor_kept_of_a_step_is_written_with_its_row(watch, scorer, job):
    kept = [(Rollout("p0", "s", "train", "<Q>", reply), Score(1.0)) for reply in "AB"]
    for step in (1, 2):
        scorer.ready["train"] = replace(OK, sample=kept)
        watch.should_stop()
        watch.on_metrics({"loss": 0.5}, step, "train")
        watch.on_metrics({"total_step_time": 2.0}, step, "timing/train")
    written = [
        (step, rollout.completion, score.value)
        for step, rollout, score in read_kept(job.run.training)
    ]
    assert written == [(1, "A", 1.0), (1, "B", 1.0), (2, "A", 1.0), (2, "B", 1.0)]


def test_the_steps_checkpoint_is_sealed_when_the_step_is_logged(watch, scorer, job):
    step = job.run.checkpoints / "step_1"
    step.mkdir(parents=True)
    (step / "training_info.json").write_text("{}")
    scorer.ready["train"] = OK
    watch.should_stop()
    watch.on_metrics({"loss": 0.5}, 1, "train")
    assert not is_sealed(step)
    watch.on_metrics({"total_step_time": 2.0}, 1, "timing/train")
    assert is_sealed(step)


def test_validation_metrics_can_choose_a_checkpoint(watch, scorer):
    scorer.ready["validation"] = OK
    metrics = {"accuracy": 0.3}
    watch.on_metrics(metrics, 1, "validation")
    assert metrics == {"accuracy": 0.3, "reward": 0.25, "env/accuracy": 0.25, "failures": 0.0}


def chosen_by(job, metric, *, higher):
    """A job whose checkpoints are chosen so."""
    checkpointing = {"metric_name": metric, "higher_is_better": higher}
    resolved = job.loaded.resolved | {
        "checkpointing": job.loaded.resolved["checkpointing"] | checkpointing
    }
    return replace(job, loaded=replace(job.loaded, resolved=resolved))


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("value", [math.nan, None])
def test_a_validation_without_a_readable_reply_makes_the_worst_checkpoint(
    higher, value, job, scorer, capsys
):
    """By NeMo-RL's own order (`remove_old_checkpoints`); with NaN in it, it sorts nothing."""
    watch = Watch(chosen_by(job, "val:env/far", higher=higher), 4, lambda row: None)
    history = []
    for step, far in ((10, 0.5), (20, value), (30, 0.3), (40, 0.4)):
        metrics = {"accuracy": 0.1} | ({} if far is None else {"env/far": far})
        watch.make_rankable(metrics, "val")
        history.append((step, json.loads(json.dumps(metrics, allow_nan=False))))
    ordered = sorted(history, key=lambda each: each[1]["env/far"], reverse=higher)
    assert [step for step, _ in ordered] == ([10, 40, 30, 20] if higher else [30, 40, 10, 20])
    assert capsys.readouterr().out.count("env/far is not known") == 1


def test_a_metric_that_chooses_nothing_is_left_as_it_is(job):
    watch = Watch(chosen_by(job, "train:env/far", higher=True), 4, lambda row: None)
    metrics = {"env/far": math.nan}
    watch.make_rankable(metrics, "val")
    assert math.isnan(metrics["env/far"])
    Watch(chosen_by(job, None, higher=True), 4, lambda row: None).make_rankable(metrics, "val")
    assert list(metrics) == ["env/far"]


def test_of_training_too_the_worst_is_known_before_the_step_is_saved(job, scorer):
    watch = Watch(chosen_by(job, "train:env/accuracy", higher=True), 4, lambda row: None)
    watch.begin(scorer)
    scorer.ready["train"] = replace(OK, row=OK.row | {"env/accuracy": math.nan})
    metrics = {"reward": 9.0}
    watch.on_rollouts(metrics)
    assert metrics["env/accuracy"] == -sys.float_info.max


def test_other_logs_are_left_alone(watch, job):
    metrics = {"anything": 1}
    watch.on_metrics(metrics, 1, "performance")
    watch.on_metrics(metrics, 1, "timing/train")
    assert metrics == {"anything": 1}
    assert not job.run.history.exists()


def logged(watch, step, error):
    metrics = {"loss": 0.5, "token_mult_prob_error": error, "gen_kl_error": error / 100}
    watch.on_metrics(metrics, step, "train")
    watch.on_metrics({"total_step_time": 2.0}, step, "timing/train")


def test_two_policies_in_training_and_generation_stop_the_run(job, scorer, capsys):
    ours = job.config.equipoise.model_copy(update={"failure_window": 3})
    config = job.config.model_copy(update={"equipoise": ours})
    watch = Watch(replace(job, loaded=replace(job.loaded, config=config)), 9, lambda row: None)
    watch.begin(scorer)
    stops = []
    # One spike is none; what is no number is above every bound.
    for step, error in enumerate((1.01, 9.0, 1.02, 1.03, 1.2, 1.3, math.nan), start=1):
        stops.append(watch.should_stop())
        logged(watch, step, error)
    assert stops == [False] * 6 + [True]  # NeMo-RL logs a step after it has asked
    assert watch.ended
    error = watch.mismatch.error()
    assert "median token_mult_prob_error of the last 3 steps is 1.3, above" in error.message
    assert "equipoise.max_token_mult_prob_error = 1.1" in error.message
    assert "A checkpoint was saved" in error.remedy
    warned = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert [line.split()[2] for line in warned] == ["2:", "5:"]
    rows = list(csv.DictReader(job.run.history.open()))
    assert [row["token_mult_prob_error"] for row in rows[:2]] == ["1.01", "9"]
    assert rows[0]["gen_kl_error"] == "0.0101"


def test_what_the_actor_asked_of_a_judge_is_counted(watch, job):
    watch.should_stop()
    calls = job.meter.usage()["calls"]
    assert (calls["judge"]["calls"], calls["judge"]["cost"]) == (5.0, 0.25)


def test_a_signal_and_a_rehearsal_stop_the_run(watch, job):
    assert not watch.should_stop()
    watch.stop_requested = lambda: True
    assert watch.should_stop()
    rehearsed = Watch(job, 4, lambda row: None, stop_after=2)
    assert [rehearsed.should_stop() for _ in range(3)] == [False, True, False]
