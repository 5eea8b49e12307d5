"""The environment's actor as NeMo-RL's own `create_env` starts it, in a Ray of two nodes.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_environment_actor.py
"""

import inspect
import json
from pathlib import Path

import pytest

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Rollout
from environments.fairness import FairnessSettings
from equipoise.run.rollouts import write_rollouts
from tests.contract.rehearsal import needs_checkout, needs_extra

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]
NAME = "fairness"
BESIDE_DRIVER = {"node": "driver", "num_gpus": 0.0, "resources": {}}


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Two nodes on this machine; the driver is on the first, the second is a judge's."""
    from equipoise.config.nemo_rl.installation import find_installation
    from equipoise.train.nemo_rl.engine import prepare_process, register

    find_installation().make_importable()
    prepare_process()
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1, resources={"judge": 1})
    ray.init(address=cluster.address, log_to_driver=False)
    register(NAME)
    yield ray
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def settings(tmp_path):
    """What the configuration's `env.fairness` is, without its placement."""
    return {
        "class_name": "environments.fairness.FairnessEnvironment",
        "settings": FairnessSettings().model_dump(mode="json"),
        "cache_dir": str(tmp_path),
        "reference": str(tmp_path / "reference.jsonl"),
        "kept": {"most": 1, "seed": 7},
    }


@pytest.fixture
def start(ray, settings):
    """Starts an actor; all are killed at the end."""
    actors = []

    def start(**placement):
        from nemo_rl.environments.utils import create_env

        actors.append(create_env(NAME, {**settings, "placement": BESIDE_DRIVER | placement}))
        return actors[-1]

    yield start
    for actor in actors:
        ray.kill(actor)


def node_of(ray, actor):
    def node(_self):
        import ray

        return ray.get_runtime_context().get_node_id()

    return ray.get(actor.__ray_call__.remote(node))


def decision(weeks):
    """A reply that the environment reads."""
    return json.dumps(
        {
            "medication": "OTC only",
            "work_status": "full duty",
            "weeks_off_work": weeks,
            "physical_therapy": False,
            "mental_health_referral": "none",
            "surgical_referral": False,
            "rationale": "Rest.",
        }
    )


def rollouts(generations=2):
    """Replies to one counterfactual set and to a control prompt."""
    records = build_prompts(PromptSettings(num_samples=48, cases=["whiplash"]))
    wanted = (records[0].set_id, records[-1].set_id)
    return [
        Rollout(r.id, r.set_id, r.split, "Q", decision(weeks), r.metadata)
        for r in records
        if r.set_id in wanted
        for weeks in range(generations)
    ]


def request():
    """Conversations and metadata of a call: the set's replies, without those to the control."""
    batch = [r for r in rollouts() if r.split != "control"]
    logs = [
        [{"role": "user", "content": r.prompt}, {"role": "assistant", "content": r.completion}]
        for r in batch
    ]
    infos = [
        {"prompt_id": r.prompt_id, "set_id": r.set_id, "split": r.split, "metadata": r.metadata}
        for r in batch
    ]
    return logs, infos


def step(ray, actor):
    """The rewards of one call."""
    return ray.get(actor.step.remote(*request())).rewards.tolist()


def test_it_runs_on_the_drivers_node(ray, start):
    here = ray.get_runtime_context().get_node_id()
    assert {node_of(ray, start()) for _ in range(3)} == {here}


def test_it_can_be_placed_on_a_node_with_a_named_resource(ray, start):
    here = ray.get_runtime_context().get_node_id()
    assert node_of(ray, start(node="any", resources={"judge": 0.5})) != here


def test_the_buffer_of_asynchronous_grpo_is_beside_the_driver(ray, start):
    """NeMo-RL's own class, made as its trainer makes it."""
    from nemo_rl.algorithms import async_utils
    from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBufferImpl

    from equipoise.train.nemo_rl.hooks import whole_sets

    names = inspect.signature(ReplayBufferImpl).parameters
    settings = {name: False for name in names if name.startswith("drop_incomplete")}
    with whole_sets(start(), 4):
        made = [
            async_utils.ReplayBuffer.options(runtime_env={}).remote(max_size=8, **settings)
            for _ in range(2)
        ]
    here = ray.get_runtime_context().get_node_id()
    assert {node_of(ray, actor) for actor in made} == {here}
    for actor in made:
        ray.kill(actor)


def test_it_says_what_it_cannot_see(ray, start, tmp_path):
    (tmp_path / "there").touch()
    paths = [str(tmp_path / "there"), str(tmp_path / "elsewhere")]
    assert ray.get(start().unseen.remote(paths)) == paths[1:]


def test_restarted_by_ray_it_has_its_reference_again(ray, start, settings):
    actor = start()
    with pytest.raises(ray.exceptions.RayTaskError, match="set_reference"):
        step(ray, actor)
    write_rollouts(Path(settings["reference"]), rollouts())
    ray.get(actor.load_reference.remote())
    before = step(ray, actor)
    ray.kill(actor, no_restart=False)
    assert step(ray, actor) == before


def test_it_hands_what_is_kept_of_a_step_to_the_driver(ray, start, settings):
    write_rollouts(Path(settings["reference"]), rollouts())
    actor = start()
    rewards = step(ray, actor)
    summary = ray.get(actor.summary.remote("train"))
    sets = {rollout.set_id for rollout, _ in summary.sample}
    assert len(sets) == 1
    assert [score.value for _, score in summary.sample] == rewards
    assert [rollout for rollout, _ in summary.sample] == [r for r in rollouts() if r.set_id in sets]
