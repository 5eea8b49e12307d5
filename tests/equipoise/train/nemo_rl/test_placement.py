"""Actors of ours in a Ray of two nodes, the second of which has CPUs and not our code."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from equipoise.train.nemo_rl.hooks import whole_sets

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("only_ray")]

pytest.importorskip("ray", reason="the extra rehearse is needed")

#: Python runs it when it starts.
WITHOUT_OUR_CODE = "import sys\nsys.modules['equipoise'] = None\n"


class Actor:
    """Stands in for a class of whole_sets.py, which needs NeMo-RL."""

    def __init__(self, *arguments):
        self._arguments = arguments

    def look(self):
        """The node that it is on, with what it was made from, where our code is."""
        import ray

        import equipoise.train  # noqa: F401

        return ray.get_runtime_context().get_node_id(), self._arguments


@pytest.fixture
def ray(tmp_path, monkeypatch):
    """The driver's node, on which NeMo-RL's workers have taken all CPUs, and another one."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    import ray
    from ray.cluster_utils import Cluster

    (tmp_path / "sitecustomize.py").write_text(WITHOUT_OUR_CODE)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        cluster.add_node(num_cpus=4, env_vars={"PYTHONPATH": path})
        ray.init(address=cluster.address, log_to_driver=False)
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def nemo_rl(ray, monkeypatch):
    """The names that NeMo-RL's trainer of asynchronous GRPO imports, and our classes for them."""
    ours = ModuleType("equipoise.train.nemo_rl.whole_sets")
    ours.WholeSets = ours.Collector = ray.remote(Actor)
    names = {"ReplayBuffer": ray.remote(Actor), "AsyncTrajectoryCollector": ray.remote(Actor)}
    async_utils = SimpleNamespace(**names)
    algorithms = SimpleNamespace(async_utils=async_utils)
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    monkeypatch.setitem(sys.modules, "nemo_rl", SimpleNamespace(algorithms=algorithms))
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms", algorithms)
    return async_utils


def test_the_second_node_is_without_our_code(ray):
    with pytest.raises(ray.exceptions.RayTaskError, match="equipoise"):
        ray.get(ray.remote(Actor).options(num_cpus=1).remote().look.remote())


def test_asynchronous_grpos_actors_are_where_our_code_is(ray, nemo_rl):
    """Made as NeMo-RL's trainer makes them, which leaves their place to Ray."""
    with whole_sets("environment", 4):
        buffer = nemo_rl.ReplayBuffer.options(runtime_env={}).remote("sizes")
        collector = nemo_rl.AsyncTrajectoryCollector.options(runtime_env={}).remote("prompts")
    here = ray.get_runtime_context().get_node_id()
    looks = ray.get([buffer.look.remote(), collector.look.remote()])
    assert looks == [(here, ("environment", 4, "sizes")), (here, ("prompts",))]
