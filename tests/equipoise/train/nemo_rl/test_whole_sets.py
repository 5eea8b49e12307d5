"""Asynchronous GRPO on whole sets, with stand-ins for NeMo-RL's buffer and collector."""

from types import SimpleNamespace

import pytest
import torch

from tests.equipoise.train.nemo_rl.stand_ins import import_ours

SET, GENERATIONS = 2, 3


@pytest.fixture
def module(monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra rehearse is needed")
    monkeypatch.setattr(ray, "get", lambda value: value)
    return import_ours("whole_sets", monkeypatch)


class Environment:
    """An actor that gives each reply the number in it."""

    def __init__(self):
        self.calls = []
        self.step = SimpleNamespace(remote=self.score)

    def score(self, conversations, metadata):
        self.calls.append([info["prompt_id"] for info in metadata])
        rewards = [float(messages[-1]["content"]) for messages in conversations]
        return SimpleNamespace(rewards=torch.tensor(rewards))


@pytest.fixture
def environment():
    return Environment()


@pytest.fixture
def buffer(module, environment):
    return module.WholeSetsImpl(environment, SET, max_size=4)


def group(set_id, prompt, first=0.0):
    """What NeMo-RL's collector puts into the buffer: the generations of one prompt."""
    replies = [str(first + number) for number in range(GENERATIONS)]
    info = {"set_id": set_id, "prompt_id": f"{set_id}{prompt}"}
    batch = {
        "message_log": [[{"role": "assistant", "content": reply}] for reply in replies],
        "extra_env_info": [info] * GENERATIONS,
        "total_reward": None,
    }
    return {"batch": batch, "rollout_metrics": {}}


def take(buffer, groups, step=1):
    words = {"num_prompt_groups": groups, "current_weight_version": step, "max_age_steps": 1}
    return buffer.sample(**words)


def test_a_part_of_a_set_is_not_in_the_buffer(buffer):
    assert buffer.add(group("a", "x"), 0, 1) == "success"
    assert buffer.size() == 0
    buffer.add(group("b", "y"), 0, 1)
    assert buffer.size() == 0
    buffer.add(group("a", "y"), 0, 2)
    assert buffer.size() == 0, "it is for another step"
    buffer.add(group("a", "y"), 0, 1)
    assert buffer.size() == SET


def test_a_step_is_scored_by_one_call_and_every_group_gets_its_rewards(buffer, environment):
    for set_id, prompt, first in (("b", "x", 10), ("a", "x", 0), ("a", "y", 5), ("b", "y", 20)):
        buffer.add(group(set_id, prompt, first), 0, 1)
    groups = take(buffer, 4)["trajectories"]
    (call,) = environment.calls
    assert call[::GENERATIONS] == ["ax", "ay", "bx", "by"]
    assert [g["batch"]["total_reward"][0].item() for g in groups] == [0, 5, 10, 20]
    assert groups[1]["rollout_metrics"]["mean_total_reward"] == 6


def test_a_whole_set_that_does_not_fit_waits(buffer):
    for prompt in "xy":
        buffer.add(group("a", prompt), 0, 1)
        buffer.add(group("b", prompt), 0, 1)
    buffer.add(group("c", "x"), 0, 1)
    assert buffer.add(group("c", "y"), 0, 1) == "full"
    take(buffer, 2)
    assert buffer.add(group("d", "x"), 0, 2) == "success"
    assert buffer.add(group("d", "y"), 0, 2) == "success"


def test_a_step_that_nothing_will_fill_is_an_error(module, buffer):
    buffer.add(group("a", "x"), 0, 1)
    assert take(buffer, 2) is None
    buffer.end()
    with pytest.raises(module.PromptsSpentError, match="used up before the last step"):
        take(buffer, 2)


def test_what_is_on_its_way_comes_before_the_end_is_told(module):
    told = []
    buffer = SimpleNamespace(end=SimpleNamespace(remote=lambda: told.append(collector.pending)))
    collector = module.CollectorImpl(buffer)
    collector.start_collection([1, 2, 3])
    assert told == [0]


def test_a_step_lacking_a_group_is_generated_for_again(module):
    """NeMo-RL generates for later steps alone."""
    assert module.CollectorImpl(None)._calculate_target_weights(4) == [4, 5]
