"""The environment's actor: on which node it starts, and what it knows when Ray restarts it."""

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
def settings(tmp_path):
    """`env.<name>` of what NeMo-RL reads."""
    return {
        "class_name": f"{__name__}.Compares",
        "settings": {},
        "cache_dir": str(tmp_path),
        "reference": str(tmp_path / "reference.jsonl"),
        "kept": {"most": 1, "seed": 7},
        "placement": {"node": "driver", "num_gpus": 0.0, "resources": {}},
    }


@pytest.fixture
def started(module, settings, monkeypatch):
    """Ray's options for the actor as NeMo-RL's `create_env` starts it."""
    asked = []

    def options(**options):
        return SimpleNamespace(remote=lambda **arguments: asked.append((options, arguments)))

    def start(**placement):
        environment = {**settings, "placement": settings["placement"] | placement}
        module.EnvironmentActor.options(runtime_env={"py_executable": "p"}).remote(environment)
        return asked[-1][0]

    monkeypatch.setattr(module, "_Actor", SimpleNamespace(options=options))
    return start


class TestPlacement:
    """Ray puts an actor that asks for nothing on any node of the cluster."""

    def test_it_is_beside_the_driver_and_nowhere_else(self, started):
        strategy = started()["scheduling_strategy"]
        assert (strategy.node_id, strategy.soft) == (HERE, False)

    def test_it_needs_no_cpu_for_nemo_rls_workers_may_hold_them_all(self, started):
        assert started()["num_cpus"] == 0
        assert started()["runtime_env"] == {"py_executable": "p"}

    def test_it_can_be_where_a_resource_is(self, started):
        options = started(node="any", resources={"judge": 0.5})
        assert "scheduling_strategy" not in options
        assert options["resources"] == {"judge": 0.5}


class TestARestart:
    """Ray builds the actor again from its first arguments, and nobody calls it before a step."""

    @pytest.fixture
    def build(self, module, settings):
        arguments = {name: value for name, value in settings.items() if name != "placement"}
        return lambda: module._Actor.__ray_metadata__.modified_class(**arguments)

    def test_ray_restarts_it_and_tries_calls_again(self, module):
        options = module._Actor._default_options
        assert (options["max_restarts"], options["max_task_retries"]) == (-1, -1)

    def test_it_has_its_reference_again(self, build, settings, tmp_path):
        first = build()
        reference = [Rollout(f"p{n}", f"p{n}", "train", "Q", "A") for n in range(3)]
        write_rollouts(tmp_path / "reference.jsonl", reference)
        first.load_reference()
        before = self.step(first)
        assert self.step(build()) == before == [1.0, 0.0]

    def step(self, actor):
        return actor.step(*self.replies()).rewards.tolist()

    @staticmethod
    def replies():
        logs = [
            [{"role": "user", "content": "Q"}, {"role": "assistant", "content": reply}]
            for reply in "AB"
        ]
        info = {"prompt_id": "p", "set_id": "p", "split": "train", "metadata": {}}
        return logs, [info] * 2
