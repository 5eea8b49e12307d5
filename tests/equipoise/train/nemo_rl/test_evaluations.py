"""Replies by NeMo-RL's rollouts, in parts that a kill leaves."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from equipoise.files.exits import Stopped
from equipoise.train.nemo_rl import recipe
from equipoise.train.nemo_rl.recipe import PARTS, NemoPolicy
from tests.refusals import refusal


class Rollouts:
    """`nemo_rl.experience.rollouts`: replies with the number of their call, or the likeliest."""

    def __init__(self, loses=()):
        self.calls, self.loses = [], loses

    def run_multi_turn_rollout(self, generation, batch, tokenizer, environments, **words):
        self.calls.append(words)
        reply = "likeliest" if words["greedy"] else f"{len(self.calls)}"
        logs = [[{**row["message_log"][0]}] for row in batch]
        for number, log in enumerate(logs):
            if number not in self.loses:
                log.append({"role": "assistant", "content": reply, "token_ids": [1]})
        infos = [row["extra_env_info"] for row in batch]
        ((_, environment),) = environments.items()
        assert environment.step.remote(logs, infos) == [0.0] * len(batch)
        return {"message_log": logs, "extra_env_info": infos}, {}

    def run_async_multi_turn_rollout(self, *args, **words):
        return self.run_multi_turn_rollout(*args, **words, asynchronous=True)


@pytest.fixture
def policy(job, monkeypatch):
    """Make a policy that draws parts of three."""

    def change(model, **values):
        return model.model_copy(update=values)

    def datum(record, task, tokenizer, max_length, idx):
        log = [{"role": "user", "content": "<Q>", "token_ids": [1] * 4}]
        names = ("set_id", "split", "metadata")
        info = {name: getattr(record, name) for name in names} | {"prompt_id": record.id}
        return {"message_log": log, "extra_env_info": info}

    monkeypatch.setattr(recipe, "datum", datum)
    monkeypatch.setattr(recipe, "single_turn_return", lambda rewards, metadata: rewards)
    collate = SimpleNamespace(rl_collate_fn=list)
    monkeypatch.setitem(sys.modules, "nemo_rl.data.collate_fn", collate)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda value: value))

    def policy(rollouts, step=0, stop=lambda: False, asynchronous=False):
        monkeypatch.setitem(sys.modules, "nemo_rl.experience", SimpleNamespace(rollouts=rollouts))
        ours, policy = job.config.equipoise, job.config.policy
        vllm = change(policy.generation.vllm_cfg, async_engine=asynchronous)
        policy = change(policy, generation=change(policy.generation, vllm_cfg=vllm))
        ours = change(ours, evaluation=change(ours.evaluation, batch_size=3))
        config = change(job.config, equipoise=ours, policy=policy)
        changed = replace(job, loaded=replace(job.loaded, config=config))
        nemo = SimpleNamespace(generation=None, tokenizer=None)
        return NemoPolicy(changed, nemo, print, stop, None, step)

    return policy


def test_every_prompt_is_sampled_in_its_order(policy, job):
    trained = policy(rollouts := Rollouts())
    drawn = trained.draw(job.records, 2, "baseline")
    assert [r.prompt_id for r in drawn] == [f"p{n}" for n in range(5) for _ in range(2)]
    assert [r.completion for r in drawn] == list("1112223334")
    assert job.meter.tokens == {"prompt_tokens": 40, "completion_tokens": 10}
    assert {r.completion for r in trained.draw(job.records, 1, "greedy")} == {"likeliest"}
    assert len(trained.last) == 2 and "asynchronous" not in rollouts.calls[0]


def test_an_asynchronous_engine_has_a_function_of_its_own(policy, job):
    policy(rollouts := Rollouts(), asynchronous=True).draw(job.records, 1, "baseline")
    assert {call["asynchronous"] for call in rollouts.calls} == {True}


def test_what_was_drawn_before_a_kill_is_not_drawn_again(policy, job):
    signals = iter([False, False, True])
    first, second = Rollouts(), Rollouts()
    with pytest.raises(Stopped):
        policy(first, stop=lambda: next(signals)).draw(job.records, 2, "baseline")
    assert len(first.calls) == 2
    (job.run.root / PARTS / "0-baseline" / ".000000006.jsonl.partial").write_text("{")
    drawn = policy(second).draw(job.records, 2, "baseline")
    assert len(second.calls) == 2
    assert [r.completion for r in drawn] == list("1112221112")
    assert policy(Rollouts()).draw(job.records, 2, "baseline") == drawn
    later = policy(Rollouts(), step=4).draw(job.records, 2, "baseline")
    assert [r.completion for r in later] == list("1112223334")


def test_a_reply_that_was_not_generated_ends_the_run(policy, job):
    with refusal("nemo-rl.missing-replies", "1 of 3"):
        policy(Rollouts(loses=(1,))).draw(job.records, 2, "baseline")
