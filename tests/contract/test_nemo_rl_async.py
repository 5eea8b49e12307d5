"""Asynchronous rollouts get the rewards of synchronous ones, by NeMo-RL's own functions.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl_async.py
"""

import asyncio
import importlib
import json
import os
import random
from collections import Counter
from copy import deepcopy
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Failure, Score
from environments.disparity import DisparityEnvironment, DisparitySettings
from equipoise.engines.nemo_rl.engine import prepare_process
from equipoise.engines.nemo_rl.scoring import NOT_GENERATED, StepScorer
from equipoise.engines.nemo_rl.together import scored_together
from equipoise.installation.nemo_rl import PATH_VARIABLE, find_installation
from equipoise.run.rollouts import rollout_of

MISSING = [name for name in ("ray", "hydra", "torchdata") if not find_spec(name)]
pytestmark = [
    pytest.mark.skipif(
        PATH_VARIABLE not in os.environ, reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL"
    ),
    pytest.mark.skipif(bool(MISSING), reason=f"the extra rehearse is needed: {MISSING}"),
]
GENERATIONS = 4
SETS = 3


@pytest.fixture(scope="module", autouse=True)
def ray():
    """NeMo-RL can be imported, and a Ray of its own runs."""
    find_installation().make_importable()
    prepare_process()
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


class Bytes:
    """A tokenizer whose tokens are bytes."""

    pad_token_id = 0

    def __call__(self, text, return_tensors=None, add_special_tokens=False):
        ids = torch.tensor([[byte + 1 for byte in text.encode()]], dtype=torch.long)
        return Ids(input_ids=ids)

    def apply_chat_template(self, messages, **_):
        return "".join(message["content"] for message in messages)

    def batch_decode(self, rows, skip_special_tokens):
        return [bytes(token - 1 for token in row.tolist()).decode() for row in rows]


class Ids(dict):
    """As a tokenizer's output is read, by key and by attribute."""

    __getattr__ = dict.__getitem__


class Replies:
    """A generation whose n-th reply to a prompt is always the same; asynchronous ones come late.

    The first reply to the prompt `lost` never comes: the engine raises.
    """

    def __init__(self, asynchronous, lost=None):
        self.cfg = {"backend": "vllm", "vllm_cfg": {"async_engine": asynchronous}}
        self.lost, self.asked = lost, Counter()

    def reply(self, prompt):
        self.asked[prompt] += 1
        rng = random.Random(f"{prompt} {self.asked[prompt]}")
        decision = {
            "medication": rng.choice(["OTC only", "muscle relaxant"]),
            "work_status": "full duty",
            "weeks_off_work": rng.randrange(5),
            "physical_therapy": rng.random() < 0.5,
            "mental_health_referral": "none",
            "surgical_referral": False,
            "rationale": "Rest.",
        }
        return "no decision" if rng.random() < 0.1 else json.dumps(decision)

    def generate(self, data, greedy=False):
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict

        pairs = zip(data["input_ids"], data["input_lengths"].tolist(), strict=True)
        prompts = [row[:length] for row, length in pairs]
        texts = [self.reply(Bytes().batch_decode([prompt], True)[0]) for prompt in prompts]
        replies = [Bytes()(text)["input_ids"][0] for text in texts]
        rows = [torch.cat(pair) for pair in zip(prompts, replies, strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return BatchedDataDict(
            {
                "output_ids": padded,
                "logprobs": torch.zeros(padded.shape),
                "generation_lengths": torch.tensor([len(reply) for reply in replies]),
                "unpadded_sequence_lengths": torch.tensor([len(row) for row in rows]),
                "truncated": torch.zeros(len(rows), dtype=torch.bool),
            }
        )

    async def generate_async(self, data, greedy=False):
        output = self.generate(data, greedy)
        prompt = Bytes().batch_decode([data["input_ids"][0]], True)[0]
        dies = prompt == self.lost and self.asked[prompt] == 1
        await asyncio.sleep(random.random() / 10)
        if dies:
            raise RuntimeError("the engine died")
        yield 0, output


class SomeFail:
    """The environment, but one in nine of its replies cannot be scored."""

    def __init__(self, environment):
        self.name, self.scope, self.inner = environment.name, environment.scope, environment

    def score(self, rollouts):
        return [
            Score(None, error=Failure("server_error", "down"))
            if random.Random(r.completion + r.prompt_id).random() < 1 / 9
            else score
            for r, score in zip(rollouts, self.inner.score(rollouts), strict=True)
        ]


@pytest.fixture(scope="module")
def records():
    """Whole sets of the training split."""
    every = build_prompts(PromptSettings(num_samples=96))
    sets = sorted({record.set_id for record in every if record.split == "train"})[:SETS]
    return [record for record in every if record.set_id in sets]


@pytest.fixture(scope="module")
def reference():
    """The frozen model's decisions on every prompt."""
    generation = Replies(asynchronous=False)
    records = build_prompts(PromptSettings(num_samples=96))
    return [
        rollout_of(record, generation.reply(f"reference {record.id}"))
        for record in records
        for _ in range(GENERATIONS)
    ]


@pytest.fixture
def batch(records):
    """As NeMo-RL's trainer has it: the generations of a prompt adjacent."""
    from nemo_rl.data.collate_fn import rl_collate_fn

    from equipoise.engines.nemo_rl.dataset import datum

    rows = [record for record in records for _ in range(GENERATIONS)]
    return rl_collate_fn([datum(r, "fairness", Bytes(), None, i) for i, r in enumerate(rows)])


@pytest.fixture
def scorer(reference):
    environment = DisparityEnvironment(DisparitySettings())
    environment.set_reference(reference)
    return StepScorer(SomeFail(environment))


def actor_of(scorer):
    """Stands where the environment's actor does."""
    import ray

    from equipoise.engines.nemo_rl.turn import single_turn_return

    def step(messages, metadata):
        return ray.put(single_turn_return(scorer.rewards(messages, metadata), metadata))

    return SimpleNamespace(step=SimpleNamespace(remote=step))


def run(function, batch, scorer, generation):
    return function(
        policy_generation=generation,
        input_batch=deepcopy(batch),  # synchronous rollouts write into it
        tokenizer=Bytes(),
        task_to_env={"fairness": actor_of(scorer)},
        max_seq_len=100_000,
        max_rollout_turns=1,
    )


def advantages(batch):
    """By NeMo-RL's own estimator, [B]."""
    estimator = importlib.import_module("nemo_rl.algorithms.advantage_estimator")

    class Either(dict):
        __getattr__ = dict.__getitem__

    settings = Either(use_leave_one_out_baseline=False, normalize_rewards=True)
    prompts = [log[0]["token_ids"] for log in batch["message_log"]]
    ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    grpo = estimator.GRPOAdvantageEstimator(settings, {})
    ones = torch.ones(len(ids), 1)
    return grpo.compute_advantage(ids, batch["total_reward"], ones).squeeze(1)


def replies(batch):
    return ["".join(m["content"] for m in log[1:]) for log in batch["message_log"]]


def test_whole_sets_are_scored_as_synchronous_rollouts_are_failures_included(batch, scorer):
    """Rewards to the last digit, advantages, and which scores failed."""
    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    synchronous, _ = run(rollouts.run_multi_turn_rollout, batch, scorer, Replies(False))
    failed = [score.value is None for score in scorer._calls[-1][1]]
    together = scored_together(rollouts.run_async_multi_turn_rollout)
    asynchronous, metrics = run(together, batch, scorer, Replies(True))
    assert replies(asynchronous) == replies(synchronous)
    assert len(set(replies(asynchronous))) > 10
    assert [score.value is None for score in scorer._calls[-1][1]] == failed
    assert 0 < sum(failed) < len(failed) // 4
    assert torch.equal(asynchronous["total_reward"], synchronous["total_reward"])
    assert len(asynchronous["total_reward"].unique()) > 10
    assert torch.equal(advantages(asynchronous), advantages(synchronous))
    assert metrics["mean_total_reward"] == pytest.approx(float(synchronous["total_reward"].mean()))


def test_without_it_a_set_comes_in_pieces(batch, scorer):
    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    with pytest.raises(RuntimeError, match="Error in sample"):
        run(rollouts.run_async_multi_turn_rollout, batch, scorer, Replies(True))


def test_a_reply_that_never_came_costs_its_own_set_alone(batch, scorer):
    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    together = scored_together(rollouts.run_async_multi_turn_rollout)
    whole, _ = run(together, batch, scorer, Replies(True))
    lost = batch["message_log"][0][0]["content"]
    cut, _ = run(together, batch, scorer, Replies(True, lost))
    assert replies(cut).count("") == 1
    touched = 4 * GENERATIONS
    assert torch.equal(cut["total_reward"][touched:], whole["total_reward"][touched:])
    assert not advantages(cut)[:touched].any()
    assert advantages(whole)[:touched].any()
    errors = [score.error for score in scorer._calls[-1][1]]
    assert errors[:touched] == [NOT_GENERATED] * touched
    assert NOT_GENERATED not in errors[touched:]
