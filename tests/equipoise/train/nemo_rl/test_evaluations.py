"""Evaluations by a validation of NeMo-RL's: what is drawn when, in parts that a kill leaves."""

import asyncio
import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pydantic import BaseModel

from environments.base import Rollout
from equipoise.files.exits import Stopped
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts
from equipoise.run.seals import damage_of
from equipoise.train.nemo_rl import evaluations
from equipoise.train.nemo_rl.evaluations import (
    Sampler,
    after_last_step,
    before_first_step,
    is_drawn,
    parts_folder,
    refuse_other_view,
    score_final,
)
from tests.refusals import refusal


class Environment:
    """The actor's answers, by plain calls."""

    def __init__(self):
        self.loaded, self.missing = 0, []

    def load_reference(self):
        self.loaded += 1

    def unseen(self, paths):
        return [path for path in paths if path in self.missing]

    def sources(self):
        return {"policy": "abc"}


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
    before_first_step(job, sample, environment, 4)
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


def test_a_reference_is_shared_by_runs_of_one_model_alone(job, environment):
    """What the workers say of their own weights counts, not what the model is called here."""
    asked = []
    for name, weights in (("a", ["1"]), ("b", ["1"]), ("c", ["2"]), ("d", [None]), ("e", [None])):
        run = RunDirectory(job.run.root.with_name(name))
        run.ledger.create({"seconds": {}, "hashes": {}, "reference_policy": weights})
        sample = Replies()
        before_first_step(replace(job, run=run), sample, environment, 4)
        asked.append([stage for stage, *_ in sample.asked])
    every = ["reference", "baseline", "probe", "greedy"]
    assert asked == [every, every[1:], every, every, every]
    assert environment.loaded == 5  # one that comes from the cache, too


def test_another_process_scores_what_the_trained_model_wrote(job, environment):
    before_first_step(job, Replies(), environment, 4)
    after_last_step(job, Replies())
    assert not job.run.evaluation("final").exists()
    resumed = replace(job, environment=type(job.environment)())
    score_final(resumed)
    accuracy = json.loads(job.run.evaluation("final").read_text())["metrics"]["accuracy"]["value"]
    assert accuracy == pytest.approx(2 / 3)
    score_final(resumed)  # nothing is left to do


def test_what_a_lost_model_wrote_is_drawn_again(job, environment):
    before_first_step(job, Replies(), environment, 4)
    after_last_step(job, Replies("BBB"))
    after_last_step(job, Replies("AAA"))
    score_final(job)
    for path in (job.run.rollouts("final"), job.run.greedy):
        assert {rollout.completion for rollout in read_rollouts(path)} == {"A"}
    assert damage_of(job.run, "final") == []


def test_an_actor_that_does_not_see_the_drivers_files_is_refused(job, environment):
    environment.missing = [str(job.run.root.resolve())]
    with refusal("nemo-rl.other-view", job.run.root):
        refuse_other_view(job, environment)


@pytest.mark.parametrize(("mine", "seen"), [("abc", True), ("xyz", False)])
def test_an_actor_that_reads_another_policy_is_refused(job, environment, mine, seen, monkeypatch):
    monkeypatch.setattr(type(job.environment), "sources", lambda self: {"policy": mine}, False)
    refused = refusal("nemo-rl.other-view", "policy")
    with nullcontext() if seen else refused:
        refuse_other_view(job, environment)


@pytest.mark.parametrize(
    ("metric", "refused"),
    [("val:env/acuracy", True), ("val:env/accuracy", False), ("val:accuracy", False)],
)
def test_a_metric_that_the_task_lacks_is_refused_before_the_first_step(
    job, environment, metric, refused
):
    config = job.config
    chosen = config.checkpointing.model_copy(update={"metric_name": metric})
    config = config.model_copy(update={"checkpointing": chosen})
    job = replace(job, loaded=replace(job.loaded, config=config))
    expected = refusal("nemo-rl.unknown-metric", "acuracy", "accuracy")
    with expected if refused else nullcontext():
        before_first_step(job, Replies(), environment, 4)


# --- sampling -------------------------------------------------------------------------------------


class Grpo(BaseModel):
    max_val_samples: int = 2
    val_batch_size: int = 2


class Master(BaseModel):
    """NeMo-RL's configuration: `grpo` is a dictionary on v0.7.0, a model on main."""

    grpo: dict[str, int] | Grpo


class Generation:
    """Answers with the number of its call, or the likeliest reply; it may fail."""

    def __init__(self, loses=()):
        self.calls, self.loses, self.cfg = 0, loses, {"vllm_cfg": {}}

    def generate(self, data, greedy=False):
        self.calls += 1
        replies = ["likeliest" if greedy else f"{self.calls}"] * len(data["rows"])
        return {"replies": replies, "generation_lengths": torch.ones(len(replies))}

    async def generate_async(self, data, greedy=False):
        yield 0, self.generate(data, greedy)


def validate(generation, loader, tokenizer, environments, step, master_config, logger):
    """As NeMo-RL's: at most so many batches, one call of the environment for each."""
    grpo = master_config.grpo
    limits = grpo if isinstance(grpo, dict) else grpo.model_dump()
    (environment,) = environments.values()
    for number, batch in enumerate(loader):
        if number >= limits["max_val_samples"] // limits["val_batch_size"]:
            break
        data = {"rows": batch, "input_lengths": torch.full((len(batch),), 4)}
        replies = generation.generate(data, greedy=False)["replies"]
        kept = [n for n in range(len(batch)) if n not in generation.loses]
        logs = [
            [{"role": "user", "content": "<Q>"}, {"role": "assistant", "content": replies[n]}]
            for n in kept
        ]
        environment.step.remote(logs, [batch[n] for n in kept])


@pytest.fixture
def sampler(job, monkeypatch):
    """Make a sampler of batches of three."""
    evaluation = job.config.equipoise.evaluation.model_copy(update={"batch_size": 3})
    ours = job.config.equipoise.model_copy(update={"evaluation": evaluation})
    config = job.config.model_copy(update={"equipoise": ours})
    job = replace(job, loaded=replace(job.loaded, config=config))

    def batch(records, task, tokenizer):
        names = ("set_id", "split", "metadata")
        infos = [{name: getattr(r, name) for name in names} for r in records]
        ids = [record.id for record in records]
        return [
            {**i, "prompt_id": p, "row": n} for n, (i, p) in enumerate(zip(infos, ids, strict=True))
        ]

    monkeypatch.setattr(evaluations, "_batch", batch)
    monkeypatch.setattr(evaluations, "single_turn_return", lambda rewards, metadata: rewards)
    ray = SimpleNamespace(put=lambda value: value)
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)

    def sampler(generation, grpo=None, step=0, stop=lambda: False):
        master = Master(grpo=grpo or {"max_val_samples": 2, "val_batch_size": 2})
        return Sampler(job, step, validate, generation, None, master, stop)

    return sampler


@pytest.mark.parametrize("grpo", [{"max_val_samples": 2, "val_batch_size": 2}, Grpo()])
def test_every_prompt_is_sampled_in_its_order_whatever_validation_is_limited_to(grpo, sampler, job):
    drawn = sampler(Generation(), grpo)(job.records, 2, "baseline")
    assert [r.prompt_id for r in drawn] == [f"p{n}" for n in range(5) for _ in range(2)]
    assert [r.completion for r in drawn] == list("1112223334")
    assert job.meter.tokens == {"prompt_tokens": 40, "completion_tokens": 10}


def test_the_likeliest_replies_are_the_generations_own_business(sampler, job):
    """Validation itself always says `greedy=False`."""
    sample = sampler(Generation())
    assert {r.completion for r in sample(job.records, 1, "greedy")} == {"likeliest"}
    assert "likeliest" not in {r.completion for r in sample(job.records, 1, "probe")}
    assert sample.last["replies"]


def test_what_was_drawn_before_a_kill_is_not_drawn_again(sampler, job):
    signals = iter([False, False, True])
    first = Generation()
    with pytest.raises(Stopped):
        sampler(first, stop=lambda: next(signals))(job.records, 2, "baseline")
    assert first.calls == 2
    (parts_folder(job) / "0-baseline" / ".000002.jsonl.partial").write_text("{")
    second = Generation()
    drawn = sampler(second)(job.records, 2, "baseline")
    assert second.calls == 2
    assert [r.completion for r in drawn] == list("1112221112")
    assert sampler(Generation())(job.records, 2, "baseline") == drawn
    later = sampler(Generation(), step=4)(job.records, 2, "baseline")
    assert [r.completion for r in later] == list("1112223334")


def test_a_reply_that_was_not_generated_ends_the_run(sampler, job):
    with refusal("nemo-rl.missing-replies", "1 of 3"):
        sampler(Generation(loses=(1,)))(job.records, 2, "baseline")


def test_replies_of_an_asynchronous_engine_are_counted_and_may_be_the_likeliest(sampler, job):
    async def ask():
        generation = evaluations._Generation(sampler(Generation()), greedy=True)
        assert generation.cfg == {"vllm_cfg": {}}
        data = {"rows": [1], "input_lengths": torch.tensor([4])}
        return [output async for _, output in generation.generate_async(data)]

    ((output),) = asyncio.run(ask())
    assert output["replies"] == ["likeliest"]
    assert job.meter.tokens == {"prompt_tokens": 4, "completion_tokens": 1}
