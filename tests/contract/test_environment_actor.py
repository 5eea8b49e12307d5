"""The environment's actor in a Ray of two nodes.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_environment_actor.py
"""

import pytest

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Rollout
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts
from tests.contract.rehearsal import needs_checkout, needs_extra
from tests.environments.fairness.samples import decision_reply

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Two nodes on this machine; the driver is on the first."""
    from equipoise.files.nemo_rl import find_installation
    from equipoise.train.nemo_rl.process import before_nemo_rl

    find_installation().make_importable()
    before_nemo_rl()
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    yield ray
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def start(ray, tmp_path):
    """Starts an actor as a run does; all are killed at the end."""
    actors = []

    def start():
        from equipoise.train.nemo_rl.actor import start_environment

        values = {"equipoise.cache_dir": str(tmp_path), "grpo.num_generations_per_prompt": 2}
        values |= {"policy.train_global_batch_size": 128}
        write_rollouts(RunDirectory(tmp_path).reference, rollouts())
        settings = [Setting("", key, value) for key, value in values.items()]
        loaded = load_config("fairness", Options((CONFIG_FOLDER / "local.yaml",), (*settings,)))
        actors.append(start_environment(loaded, RunDirectory(tmp_path)))
        return actors[-1]

    yield start
    for actor in actors:
        ray.kill(actor)


def node_of(ray, actor):
    def node(_self):
        import ray

        return ray.get_runtime_context().get_node_id()

    return ray.get(actor.__ray_call__.remote(node))


def rollouts(generations=2):
    """Replies to one counterfactual set and to a control prompt."""
    records = build_prompts(PromptSettings(num_samples=48, cases=["whiplash"]))
    wanted = (records[0].set_id, records[-1].set_id)
    return [
        Rollout(r.id, r.set_id, r.split, "Q", decision_reply(level), r.metadata)
        for r in records
        if r.set_id in wanted
        for level in range(generations)
    ]


def request():
    """Conversations and metadata of a call: the set's replies, without those to the control."""
    batch = [r for r in rollouts() if r.split != "control"]
    logs = [
        [{"role": "user", "content": r.prompt}, {"role": "assistant", "content": r.completion}]
        for r in batch
    ]
    keys = ("prompt_id", "set_id", "split", "metadata")
    infos = [{key: getattr(r, key) for key in keys} | {"tokens": 9} for r in batch]
    return logs, infos


def step(ray, actor):
    """The rewards of one call."""
    return ray.get(actor.step.remote(*request())).rewards.tolist()


def test_it_runs_on_the_drivers_node(ray, start):
    here = ray.get_runtime_context().get_node_id()
    assert {node_of(ray, start()) for _ in range(3)} == {here}


def test_restarted_by_ray_it_has_its_reference_again(ray, start):
    actor = start()
    before = step(ray, actor)
    ray.kill(actor, no_restart=False)
    assert step(ray, actor) == before


def test_it_hands_what_is_kept_of_a_step_to_the_driver(ray, start):
    actor = start()
    rewards = step(ray, actor)
    summary = ray.get(actor.summary.remote("train"))
    sets = {rollout.set_id for rollout, _ in summary.sample}
    assert len(sets) == 1
    assert [score.value for _, score in summary.sample] == pytest.approx(rewards)  # are float32
    assert [rollout for rollout, _ in summary.sample] == [r for r in rollouts() if r.set_id in sets]
