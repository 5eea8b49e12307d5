"""Evaluations by a validation of NeMo-RL's: what is drawn when, in parts that a kill leaves."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.base import Rollout
from equipoise.files.exits import Stopped
from equipoise.run.rollouts import read_rollouts
from equipoise.run.seals import damage_of
from equipoise.train.nemo_rl import evaluations
from equipoise.train.nemo_rl.evaluations import (
    PARTS,
    Sampler,
    after_last_step,
    before_first_step,
    is_drawn,
    score_final,
)
from tests.refusals import refusal


class Environment:
    """The actor's answers, by plain calls."""

    def __init__(self):
        self.loaded = 0

    def load_reference(self):
        self.loaded += 1


@pytest.fixture
def environment():
    return Environment()


class Replies:
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


# --- stages ---------------------------------------------------------------------------------------


def test_reference_and_baseline_before_the_first_step_and_final_after_the_last(job, environment):
    sample = Replies()
    before_first_step(job, sample, environment)
    assert not is_drawn(job)
    after_last_step(job, sample)
    assert is_drawn(job)
    score_final(job)
    assert is_drawn(job)
    assert [(label, sorted(ids), n) for label, ids, n in sample.asked] == [
        ("reference", ["p0", "p1", "p2", "p3", "p4"], 2),
        ("baseline", ["p3", "p4"], 3),
        ("probe", ["p0", "p1"], 4),
        ("greedy", ["p3", "p4"], 1),
        ("greedy", ["p3", "p4"], 1),
        ("final", ["p3", "p4"], 3),
    ]
    assert environment.loaded == 1
    assert len(job.environment.reference) == len(read_rollouts(job.run.reference)) == 10
    for stage in ("baseline", "final"):
        evaluation = json.loads(job.run.evaluation(stage).read_text())
        assert evaluation["metrics"]["accuracy"]["value"] == pytest.approx(2 / 3)
        assert evaluation["watched"] == {"metric": "accuracy", "better": "higher"}
    assert "reference" in json.loads(job.run.provenance.read_text())["hashes"]


def test_another_process_scores_what_the_trained_model_wrote(job, environment):
    before_first_step(job, Replies(), environment)
    after_last_step(job, Replies())
    assert not job.run.evaluation("final").exists()
    resumed = replace(job, environment=type(job.environment)())
    score_final(resumed)
    accuracy = json.loads(job.run.evaluation("final").read_text())["metrics"]["accuracy"]["value"]
    assert accuracy == pytest.approx(2 / 3)
    score_final(resumed)  # nothing is left to do


def test_what_a_lost_model_wrote_is_drawn_again(job, environment):
    before_first_step(job, Replies(), environment)
    after_last_step(job, Replies("BBB"))
    after_last_step(job, Replies("AAA"))
    score_final(job)
    for path in (job.run.rollouts("final"), job.run.greedy):
        assert {rollout.completion for rollout in read_rollouts(path)} == {"A"}
    assert damage_of(job.run, "final") == []


# --- sampling -------------------------------------------------------------------------------------


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
def sampler(job, monkeypatch):
    """Make a sampler of parts of three."""

    def change(model, **values):
        return model.model_copy(update=values)

    def datum(record, task, tokenizer, max_length, idx):
        log = [{"role": "user", "content": "<Q>", "token_ids": [1] * 4}]
        names = ("set_id", "split", "metadata")
        info = {name: getattr(record, name) for name in names} | {"prompt_id": record.id}
        return {"message_log": log, "extra_env_info": info}

    monkeypatch.setattr(evaluations, "datum", datum)
    monkeypatch.setattr(evaluations, "single_turn_return", lambda rewards, metadata: rewards)
    collate = SimpleNamespace(rl_collate_fn=list)
    monkeypatch.setitem(sys.modules, "nemo_rl.data.collate_fn", collate)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda value: value))

    def sampler(rollouts, step=0, stop=lambda: False, asynchronous=False):
        monkeypatch.setitem(sys.modules, "nemo_rl.experience", SimpleNamespace(rollouts=rollouts))
        ours, policy = job.config.equipoise, job.config.policy
        vllm = change(policy.generation.vllm_cfg, async_engine=asynchronous)
        policy = change(policy, generation=change(policy.generation, vllm_cfg=vllm))
        ours = change(ours, evaluation=change(ours.evaluation, batch_size=3))
        config = change(job.config, equipoise=ours, policy=policy)
        changed = replace(job, loaded=replace(job.loaded, config=config))
        return Sampler(changed, step, None, None, stop)

    return sampler


def test_every_prompt_is_sampled_in_its_order(sampler, job):
    sample = sampler(rollouts := Rollouts())
    drawn = sample(job.records, 2, "baseline")
    assert [r.prompt_id for r in drawn] == [f"p{n}" for n in range(5) for _ in range(2)]
    assert [r.completion for r in drawn] == list("1112223334")
    assert job.meter.tokens == {"prompt_tokens": 40, "completion_tokens": 10}
    assert {r.completion for r in sample(job.records, 1, "greedy")} == {"likeliest"}
    assert len(sample.last) == 2 and "asynchronous" not in rollouts.calls[0]


def test_an_asynchronous_engine_has_a_function_of_its_own(sampler, job):
    sampler(rollouts := Rollouts(), asynchronous=True)(job.records, 1, "baseline")
    assert {call["asynchronous"] for call in rollouts.calls} == {True}


def test_what_was_drawn_before_a_kill_is_not_drawn_again(sampler, job):
    signals = iter([False, False, True])
    first, second = Rollouts(), Rollouts()
    with pytest.raises(Stopped):
        sampler(first, stop=lambda: next(signals))(job.records, 2, "baseline")
    assert len(first.calls) == 2
    (job.run.root / PARTS / "0-baseline" / ".000000006.jsonl.partial").write_text("{")
    drawn = sampler(second)(job.records, 2, "baseline")
    assert len(second.calls) == 2
    assert [r.completion for r in drawn] == list("1112221112")
    assert sampler(Rollouts())(job.records, 2, "baseline") == drawn
    later = sampler(Rollouts(), step=4)(job.records, 2, "baseline")
    assert [r.completion for r in later] == list("1112223334")


def test_a_reply_that_was_not_generated_ends_the_run(sampler, job):
    with refusal("nemo-rl.missing-replies", "1 of 3"):
        sampler(Rollouts(loses=(1,)))(job.records, 2, "baseline")
