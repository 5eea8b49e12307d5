"""What is put into NeMo-RL while a run is watched, with a stand-in for its module."""

import sys
from types import ModuleType

import pytest

from environments.base import PromptRecord
from equipoise.engines.nemo_rl import hooks
from equipoise.engines.nemo_rl.scoring import metadata_of
from equipoise.engines.nemo_rl.watch import Watch
from equipoise.errors import EquipoiseError


class Logger:
    def __init__(self):
        self.logged = []

    def log_metrics(self, metrics, step, prefix="", step_metric=None):
        self.logged.append((prefix, dict(metrics), step_metric))


class TimeoutChecker:
    def check_save(self):
        return False


def validate(policy, val_dataloader, step, logger=None):
    return {"accuracy": 0.5}, {}


def run_multi_turn_rollout(environment):
    return {"message_log": [conversation(10, 3), conversation(10, 4)]}, {"turns": 1.0}


def conversation(read, written):
    """As NeMo-RL leaves it: the templated prompt, the reply, what the environment observed."""
    roles = {"user": read, "assistant": written, "environment": 0}
    return [{"role": role, "token_ids": [0] * tokens} for role, tokens in roles.items()]


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
    for thing in (Logger, TimeoutChecker, validate, run_multi_turn_rollout, Policy, grpo_train):
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
        assert all(vars(grpo)[name] is not before[name] for name in hooks._NAMES)
        raise RuntimeError
    assert dict(vars(grpo)) == before


def test_a_name_that_a_version_lacks_is_said(grpo, watch):
    del grpo.TimeoutChecker
    with pytest.raises(EquipoiseError, match="has no TimeoutChecker"), hooks.watched(watch):
        pass
    assert grpo.Logger is Logger


def test_the_logger_adds_and_passes_on(grpo, watch, monkeypatch):
    def add(self, metrics, step, prefix):
        metrics["mine"] = step

    monkeypatch.setattr(Watch, "on_metrics", add)
    with hooks.watched(watch):
        logger = grpo.Logger()
        logger.log_metrics({"loss": 1.0}, 3, "train", step_metric="x")
    assert logger.logged == [("train", {"loss": 1.0, "mine": 3}, "x")]


def test_rollouts_come_with_the_environments_metrics(grpo, watch, monkeypatch):
    monkeypatch.setattr(Watch, "on_rollouts", lambda self, metrics: metrics.update(mine=2.0))
    with hooks.watched(watch):
        batch, metrics = grpo.run_multi_turn_rollout("x")
    assert list(batch) == ["message_log"]
    assert (metrics["turns"], metrics["mine"]) == (1.0, 2.0)
    assert watch.job.meter.tokens == {"prompt_tokens": 20, "completion_tokens": 7}


def test_evaluation_keeps_the_order_that_was_asked_for(monkeypatch):
    """Whatever the order in which rollouts come."""
    ray = ModuleType("ray")
    ray.put = lambda value: value
    actor = ModuleType("equipoise.engines.nemo_rl.actor")
    actor.single_turn_return = lambda rewards, metadata: (rewards, metadata)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, actor.__name__, actor)
    counts = []
    collector = hooks._Collector(counts.append)
    for row in (2, 0, 1):
        record = PromptRecord(f"p{row}", "toy", (), "s", "test")
        reply = [{"role": "user", "content": ""}, {"role": "assistant", "content": f"{row}"}]
        collector.step.remote([reply], [{**metadata_of(record), "row": row}])
    assert [rollout.completion for rollout in collector.rollouts] == ["0", "1", "2"]
    assert counts == [1, 2, 3]


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
