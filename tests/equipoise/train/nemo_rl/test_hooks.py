"""What is put into NeMo-RL while a run is watched, with a stand-in for its module."""

import inspect
import sys
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from environments.base import PromptRecord
from equipoise.config.nemo_rl.assumptions import TRAINER
from equipoise.errors import EquipoiseError
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from equipoise.terminal.exits import Stopped
from equipoise.train.nemo_rl import hooks, together
from equipoise.train.nemo_rl.scoring import metadata_of
from equipoise.train.nemo_rl.together import Collecting
from equipoise.train.nemo_rl.watch import Watch
from tests.equipoise.train.nemo_rl.test_watch import Scorer
from tests.refusals import refusal


class Monitor:
    """A thread that asks Ray for GPU metrics."""

    def __init__(self):
        self.ended = False

    def stop(self):
        self.ended = True


class Logger:
    def __init__(self):
        self.logged, self.gpu_monitor, self.files = [], Monitor(), []

    def log_batched_dict_as_jsonl(self, to_log, filename):
        self.files.append(filename)

    def log_metrics(self, metrics, step, prefix="", step_metric=None):
        self.logged.append((prefix, dict(metrics), step_metric))


class TimeoutChecker:
    def check_save(self):
        return False


def validate(policy, val_dataloader, step, logger=None):
    return {"accuracy": 0.5}, {}


def run_multi_turn_rollout(environment, greedy=False):
    assert greedy is (environment == "greedily")
    return {"message_log": [conversation(10, 3), conversation(10, 4)]}, {"turns": 1.0}


def run_async_multi_turn_rollout(task_to_env):
    """Each conversation ends by itself; the last to start is the first to end."""
    rows = [conversation(10, written) for written in (3, 4)]
    for row in reversed(rows):
        ended = task_to_env["toy"].step.remote([row], [{"prompt_id": "p"}])
        assert ended == ([0.0], [{"prompt_id": "p"}])
    batch = {"message_log": rows, "extra_env_info": [{"row": 0}, {"row": 1}], "total_reward": None}
    return batch, {"turns": 1.0, "mean_total_reward": 0.0}


def conversation(read, written):
    """As NeMo-RL leaves it: the templated prompt, the reply, what the environment observed."""
    roles = {"user": read, "assistant": written, "environment": 0}
    tokens = {role: {"token_ids": [0] * number} for role, number in roles.items()}
    return [{"role": role, "content": f"{role}", **ids} for role, ids in tokens.items()]


class Policy:
    pass


def grpo_train(policy, task_to_env, logger):
    logger.log_metrics({"loss": 1.0}, 1, "train", step_metric="x")
    return module().TimeoutChecker().check_save()


def module():
    return sys.modules["nemo_rl.algorithms.grpo"]


@pytest.fixture
def grpo(monkeypatch):
    fake, parent = ModuleType("nemo_rl.algorithms.grpo"), ModuleType("nemo_rl.algorithms")
    rollouts = (run_multi_turn_rollout, run_async_multi_turn_rollout)
    for thing in (Logger, TimeoutChecker, validate, *rollouts, Policy, grpo_train):
        setattr(fake, thing.__name__, thing)
    fake.async_grpo_train = grpo_train
    parent.grpo = fake
    for module in (ModuleType("nemo_rl"), parent, fake):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


@pytest.fixture
def watch(job):
    return Watch(job, steps=2, on_row=lambda row: None)


def test_everything_is_put_back_even_after_an_error(grpo, watch):
    before = dict(vars(grpo))
    with pytest.raises(RuntimeError), hooks.watched(watch):
        assert all(vars(grpo)[name] is not before[name] for name in TRAINER.names)
        raise RuntimeError
    assert dict(vars(grpo)) == before


def test_the_logger_adds_and_passes_on(grpo, watch, monkeypatch):
    def add(self, metrics, step, prefix):
        metrics["mine"] = step

    monkeypatch.setattr(Watch, "on_metrics", add)
    with hooks.watched(watch):
        logger = grpo.Logger()
        logger.log_metrics({"loss": 1.0}, 3, "train", step_metric="x")
    assert logger.logged == [("train", {"loss": 1.0, "mine": 3}, "x")]


def test_no_steps_tokens_are_written(grpo, watch):
    with hooks.watched(watch):
        logger = grpo.Logger()
        for name in ("train_data_step1.jsonl", "val_data_step1.jsonl"):
            logger.log_batched_dict_as_jsonl({"token_ids": [[1]]}, name)
    assert logger.files == ["val_data_step1.jsonl"]


def test_what_asks_ray_for_metrics_ends_with_the_training(grpo, watch):
    with suppress(RuntimeError), hooks.watched(watch):
        monitor = grpo.Logger().gpu_monitor
        assert not monitor.ended
        raise RuntimeError
    assert monitor.ended


def test_a_validation_is_logged_as_it_is_and_then_made_rankable(grpo, watch, monkeypatch):
    def mend(self, metrics, kind):
        metrics["mended"] = kind

    monkeypatch.setattr(Watch, "make_rankable", mend)
    with hooks.watched(watch):
        logger = grpo.Logger()
        metrics = {"accuracy": 0.5}
        logger.log_metrics(metrics, 3, "validation")
    assert logger.logged == [("validation", {"accuracy": 0.5}, None)]
    assert metrics["mended"] == "val"


def test_rollouts_come_with_the_environments_metrics(grpo, watch, monkeypatch):
    monkeypatch.setattr(Watch, "on_rollouts", lambda self, metrics: metrics.update(mine=2.0))
    with hooks.watched(watch):
        batch, metrics = grpo.run_multi_turn_rollout("x")
    assert list(batch) == ["message_log"]
    assert (metrics["turns"], metrics["mine"]) == (1.0, 2.0)
    assert watch.job.meter.tokens == {"prompt_tokens": 20, "completion_tokens": 7}


def test_likeliest_replies_are_asked_of_nemo_rl_where_validation_would_sample(grpo, watch):
    with hooks.watched(watch):
        with hooks._greedily(watch, "greedy"):
            grpo.run_multi_turn_rollout("greedily", greedy=False)
        for stage in ("baseline", "final"):
            with hooks._greedily(watch, stage):
                grpo.run_multi_turn_rollout(stage, greedy=False)
        grpo.run_multi_turn_rollout("training", greedy=False)


@pytest.fixture
def ray(monkeypatch):
    """Whose objects are their own references; an actor's return value is its rewards."""
    fake = ModuleType("ray")
    fake.put = fake.get = lambda value: value
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(together, "single_turn_return", lambda *returned: returned)


class Environment:
    """An actor that keeps what it was asked."""

    def __init__(self):
        self.calls = []

    @property
    def step(self):
        return SimpleNamespace(remote=self._step)

    def _step(self, messages, metadata):
        self.calls.append((messages, metadata))
        return SimpleNamespace(rewards=np.array([0.25, 0.75], dtype=np.float32))


def test_asynchronous_rollouts_are_scored_by_one_call_in_the_batchs_order(
    grpo, watch, monkeypatch, ray
):
    monkeypatch.setattr(Watch, "on_rollouts", lambda self, metrics: metrics.update(mine=2.0))
    environment = Environment()
    with hooks.watched(watch):
        batch, metrics = grpo.run_async_multi_turn_rollout(task_to_env={"toy": environment})
    ((messages, metadata),) = environment.calls
    assert metadata == [{"row": 0}, {"row": 1}]
    assert messages[1][1] == {"role": "assistant", "content": "assistant"}
    assert batch["total_reward"].tolist() == [0.25, 0.75]
    rewards = {"mean_total_reward": 0.5, "max_total_reward": 0.75, "min_total_reward": 0.25}
    assert metrics == {"turns": 1.0, **rewards, "mine": 2.0}
    assert watch.job.meter.tokens == {"prompt_tokens": 20, "completion_tokens": 7}


def test_evaluation_keeps_the_order_that_was_asked_for(ray):
    """Whatever the order in which rollouts come."""
    counts = []
    collector = hooks._Collector(counts.append)
    for row in (2, 0, 1):
        record = PromptRecord(f"p{row}", "toy", (), "s", "test")
        reply = [{"role": "user", "content": ""}, {"role": "assistant", "content": f"{row}"}]
        collector.step.remote([reply], [{**metadata_of(record), "row": row}])
    assert [rollout.completion for rollout in collector.rollouts] == ["0", "1", "2"]
    assert counts == [1, 2, 3]


def test_evaluation_ends_where_a_reply_was_not_generated(ray):
    record = PromptRecord("p", "toy", (), "s", "test")
    collector = hooks._Collector(lambda number: None)
    with refusal("nemo-rl.missing-replies", "1"):
        collector.step.remote([[{"role": "user", "content": ""}]], [metadata_of(record)])


def test_a_stop_is_time_to_save(grpo, watch):
    with hooks.watched(watch):
        assert not grpo.TimeoutChecker().check_save()
        watch.stop_requested = lambda: True
        assert grpo.TimeoutChecker().check_save()


def test_stages_are_sampled_around_the_first_and_the_last_step_alone(grpo, watch, monkeypatch):
    called = []
    monkeypatch.setattr(Watch, "before_first_step", lambda self, sample: called.append("before"))
    monkeypatch.setattr(Watch, "after_last_step", lambda self, sample: called.append("after"))
    with hooks.watched(watch):
        for step in range(3):
            assert grpo.validate(None, [], step=step) == ({"accuracy": 0.5}, {})
            called.append(step)
    assert called == ["before", 0, 1, "after", 2]


class TestAsynchronousGrpo:
    """Whose loop in NeMo-RL prints an error and ends as if it had finished."""

    @pytest.fixture
    def run(self, grpo, watch, monkeypatch):
        sets = []

        @contextmanager
        def whole_sets(environment, size):
            sets.append((environment, size))
            yield

        @contextmanager
        def deferring(warn):
            yield lambda: False

        monkeypatch.setattr(hooks, "whole_sets", whole_sets)
        monkeypatch.setattr(hooks, "deferring", deferring)
        monkeypatch.setattr(hooks, "_pin_cluster", lambda: None)
        monkeypatch.setattr(Watch, "begin", lambda self, scorer: None)

        def run(loop):
            grpo.async_grpo_train = loop
            with hooks.watched(watch):
                grpo.async_grpo_train("policy", task_to_env={"toy": "actor"})
            return sets

        return run

    def test_trains_on_whole_sets_and_asks_for_no_reward_of_one_rollout(self, run, watch):
        def loop(policy, task_to_env):
            assert isinstance(task_to_env["toy"], Collecting)
            watch.ended = True

        assert run(loop) == [("actor", 4)]

    @pytest.mark.parametrize("swallowed", [(), (Exception,)], ids=["raised", "swallowed"])
    @pytest.mark.parametrize("error", [EquipoiseError("x.no", "no", ""), OSError("disk full")])
    def test_an_error_of_ours_stays_what_it_is(self, run, monkeypatch, error, swallowed):
        def fail(self, sample):
            raise error

        def loop(policy, task_to_env):
            with suppress(*swallowed):
                module().validate(None, [], step=0)

        monkeypatch.setattr(Watch, "before_first_step", fail)
        with pytest.raises(type(error)) as caught:
            run(loop)
        assert caught.value is error

    def test_an_end_before_the_last_step_is_an_error(self, run):
        with refusal("nemo-rl.early-end"):
            run(lambda policy, task_to_env: None)

    def test_an_end_that_was_asked_for_is_none(self, run, watch):
        watch.stop_after = 1

        def loop(policy, task_to_env):
            assert module().TimeoutChecker().check_save()

        assert run(loop)

    def test_what_its_loop_raises_is_one_line_and_the_rest_is_in_the_log(self, run, capsys):
        class RayTaskError(Exception):
            """Its text is a traceback of another process."""

            cause = RuntimeError("the engine died\nat line 1")

        def loop(policy, task_to_env):
            raise RayTaskError("Traceback\n  in a worker")

        with refusal("nemo-rl.early-end") as caught:
            run(loop)
        assert caught.value.message.endswith(
            "last step, RuntimeError: the engine died at line 1; nemo_rl.log has more"
        )
        assert "in a worker" in capsys.readouterr().err


class Validation:
    """NeMo-RL's: has the environment step through each batch, and dies or is stopped on the way."""

    def __init__(self, dies_at=None):
        self.dies_at, self.batches = dies_at, []

    def __call__(self, val_dataloader, val_task_to_env, step, master_config, tokenizer, logger):
        if val_task_to_env is None:  # its own validation
            return {"accuracy": 0.5}, {}
        assert (master_config.grpo["max_val_samples"], logger) == (1, None)
        (batch,) = val_dataloader
        if len(self.batches) == self.dies_at:
            raise KeyboardInterrupt
        self.batches.append([info["prompt_id"] for info in batch])
        rows = [
            [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "AB"[n % 2]}]
            for n in range(len(batch))
        ]
        val_task_to_env["toy"].step.remote(rows, batch)
        return {}, {}


@pytest.fixture
def batched(monkeypatch):
    """A batch is its metadata."""

    def batch(records, task, tokenizer):
        return [{**metadata_of(record), "row": row} for row, record in enumerate(records)]

    monkeypatch.setattr(hooks, "_batch", batch)


class Config(SimpleNamespace):
    def model_copy(self, update):
        return Config(**update)


def validated(grpo, watch, validation, step=0):
    grpo.validate = with_signature = lambda **words: validation(**words)
    with_signature.__signature__ = inspect.signature(validation)
    with hooks.watched(watch):
        words = {"val_task_to_env": None, "tokenizer": None, "logger": None}
        grpo.validate(val_dataloader=[], step=step, master_config=Config(grpo={}), **words)
    return validation


class TestStagesInParts:
    """The job draws 10 rows of the reference and 6 of the baseline, 4 at once."""

    REFERENCE = (["p0", "p0", "p1", "p1"], ["p2", "p2", "p3", "p3"], ["p4", "p4"])
    BASELINE = (["p3", "p3", "p3", "p4"], ["p4", "p4"])
    GREEDY = (["p3", "p4"],)

    @pytest.fixture(autouse=True)
    def _begun(self, ray, batched, watch):
        watch.begin(Scorer())

    @pytest.mark.parametrize(("call", "left"), [(1, 0), (4, 3)])
    def test_a_stage_that_a_kill_cut_off_is_drawn_again(self, grpo, watch, call, left):
        with pytest.raises(KeyboardInterrupt):
            validated(grpo, watch, Validation(dies_at=call))
        drawn = validated(grpo, watch, Validation()).batches
        every = [*self.REFERENCE, *self.BASELINE]
        assert drawn[: 5 - left] == every[left:]
        assert len(read_rollouts(watch.job.run.reference)) == 10
        assert len(read_scored_rollouts(watch.job.run.rollouts("baseline"))[0]) == 6

    def test_a_signal_is_looked_at_between_batches(self, grpo, watch):
        calls = []

        def stop():
            calls.append(1)
            return len(calls) > 2

        watch.stop_requested = stop
        validation = Validation()
        with pytest.raises(Stopped):
            validated(grpo, watch, validation)
        assert validation.batches == list(self.REFERENCE[:2])

    def test_after_the_last_step_a_signal_waits(self, grpo, watch):
        """The model is not saved yet: what it wrote may be of one that a kill loses."""
        validated(grpo, watch, Validation())
        watch.stop_requested = lambda: True
        with pytest.raises(KeyboardInterrupt):
            validated(grpo, watch, Validation(dies_at=1), step=2)
        drawn = validated(grpo, watch, Validation(), step=2).batches
        assert drawn == [*self.BASELINE, *self.GREEDY]
