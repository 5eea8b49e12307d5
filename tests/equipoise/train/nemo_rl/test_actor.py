"""The environment's actor: on which node it starts, and what it knows when Ray restarts it."""

import asyncio
from types import SimpleNamespace

import pytest

from environments.base import Rollout
from equipoise.run.rollouts import write_rollouts
from tests.equipoise.conftest import Toy
from tests.equipoise.train.nemo_rl.stand_ins import import_ours

HERE = "0" * 56  # as Ray names a node


class Compares(Toy):
    """As an environment that the actor can build."""

    class Settings:
        @staticmethod
        def model_validate(values):
            return values

    def __init__(self, settings):
        super().__init__()


@pytest.fixture
def module(monkeypatch):
    """The actor's, with Ray itself, of which nothing is started."""
    ray = pytest.importorskip("ray", reason="the extra rehearse is needed")
    context = SimpleNamespace(get_node_id=lambda: HERE)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return import_ours("actor", monkeypatch)


@pytest.fixture
def arguments(tmp_path):
    """Arguments of the actor's constructor."""
    return (f"{__name__}.Compares", {}, str(tmp_path), str(tmp_path / "reference.jsonl"), 2, 1, 7)


def test_it_is_beside_the_driver_and_needs_no_cpu(module, job, monkeypatch):
    """Ray puts an actor that asks for nothing on any node; NeMo-RL's workers may hold all CPUs."""
    start = SimpleNamespace(options=lambda **words: SimpleNamespace(remote=lambda *_: words))
    monkeypatch.setattr(module, "EnvironmentActor", start)
    options = module.start_environment(job.loaded, job.run)
    strategy = options["scheduling_strategy"]
    assert (strategy.node_id, strategy.soft, options["num_cpus"]) == (HERE, False, 0)


class TestARestart:
    """Ray builds the actor again from its first arguments, and nobody calls it before a step."""

    @pytest.fixture
    def build(self, module, arguments):
        return lambda: module.EnvironmentActor.__ray_metadata__.modified_class(*arguments)

    def test_ray_restarts_it_and_tries_calls_again(self, module):
        options = module.EnvironmentActor._default_options
        assert (options["max_restarts"], options["max_task_retries"]) == (-1, -1)

    def test_it_has_its_reference_again(self, build, tmp_path):
        first = build()
        reference = [Rollout(f"p{n}", f"p{n}", "train", "Q", "A") for n in range(3)]
        write_rollouts(tmp_path / "reference.jsonl", reference)
        first.load_reference()
        before = self.step(first)
        assert self.step(build()) == before == [1.0, 0.0]

    def step(self, actor):
        return asyncio.run(actor.step(*self.replies())).rewards.tolist()

    @staticmethod
    def replies():
        logs = [
            [{"role": "user", "content": "Q"}, {"role": "assistant", "content": reply}]
            for reply in "AB"
        ]
        info = {"prompt_id": "p", "set_id": "p", "split": "train", "metadata": {}, "tokens": 3}
        return logs, [info] * 2


def test_replies_that_come_alone_wait_for_their_set(module, arguments, tmp_path, monkeypatch):
    """And are scored as those that come together are; the summary has them all."""
    write_rollouts(tmp_path / "reference.jsonl", [Rollout("p", "p", "train", "Q", "A")])
    calls = iter(range(9))
    context = SimpleNamespace(get_task_id=lambda: next(calls))
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    actor = module.EnvironmentActor.__ray_metadata__.modified_class(*arguments)
    logs, infos = TestARestart.replies()

    async def ask():
        steps = [actor.step([log], [info]) for log, info in zip(logs, infos, strict=True)]
        return [answer.rewards.item() for answer in await asyncio.gather(*steps)]

    assert asyncio.run(ask()) == [1.0, 0.0]
    summary = actor.summary("train")
    assert (len(summary.errors), summary.prompt_tokens) == (2, 6)
