"""Asynchronous rollouts get the rewards of synchronous ones, by NeMo-RL's own functions.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl_async.py
"""

import asyncio
import importlib
import inspect
import json
import random
import sys
import time
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.records import write_prompts
from environments.base import Failure, Score
from environments.contract import Environment as Contract
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl.installation import find_installation
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import rollout_of
from equipoise.train.nemo_rl.configuration import nemo_rl_config
from equipoise.train.nemo_rl.engine import prepare_process
from equipoise.train.nemo_rl.scoring import NOT_GENERATED, StepScorer
from equipoise.train.nemo_rl.together import collecting, scored_together
from tests.contract.rehearsal import needs_checkout, needs_extra

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]
GENERATIONS = 4
NEMO_RL = Setting("", "equipoise.engine", "nemo_rl")
SETS = 3


@pytest.fixture(scope="module", autouse=True)
def ray():
    """NeMo-RL can be imported, and a Ray of its own runs."""
    find_installation().make_importable()
    prepare_process()
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # NeMo-RL has a `tests`, too
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


class SomeFail(Contract):
    """The environment, but one in nine of its replies cannot be scored."""

    measure = None

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

    from equipoise.train.nemo_rl.dataset import datum

    rows = [record for record in records for _ in range(GENERATIONS)]
    return rl_collate_fn([datum(r, "fairness", Bytes(), None, i) for i, r in enumerate(rows)])


@pytest.fixture
def scorer(reference):
    environment = FairnessEnvironment(FairnessSettings())
    environment.set_reference(reference)
    return StepScorer(SomeFail(environment))


def actor_of(scorer):
    """Stands where the environment's actor does."""
    import ray

    from equipoise.train.nemo_rl.together import single_turn_return

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


def test_asynchronous_grpo_has_prompts_to_spare(records, tmp_path):
    """In the order of the training, after what it takes where nothing is lost."""
    from equipoise.train.nemo_rl.dataset import PromptDataset

    path = tmp_path / "prompts.jsonl"
    write_prompts(path, records, {})
    words = {"prompts": str(path), "split": "train", "env_name": "fairness"}
    steps = {"prompts_per_step": 4, "max_steps": 5, "max_epochs": 9}
    taken = PromptDataset(**words, **steps).dataset["record"]
    spared = PromptDataset(**words, **steps, spare=True).dataset["record"]
    assert len(taken) == 20
    assert list(spared[:20]) == list(taken)
    assert len(spared) == 40


class TestAsynchronousGrpo:
    """NeMo-RL's own collector fills its own buffer, from generations of a random length."""

    @pytest.fixture
    def start(self, ray, records, reference, master_config):
        """Starts a buffer and a collector; as many groups of `step` as `broken` fail."""
        actors = []

        def start(broken=0, step=0, batches=None, prompts=4, tolerated=None, restored=None):
            environment = ray.remote(Environment).remote(reference)
            buffer = whole_sets_module().WholeSets.remote(environment, 4, **self.buffer_settings())
            if restored:
                ray.get(buffer.load_state_dict.remote(restored, prompts, 0, 1))
            collector = ray.remote(max_concurrency=4)(breaking(broken, step)).remote(
                policy_generation=Replies(True),
                tokenizer=Bytes(),
                task_to_env=collecting({"fairness": environment}),
                master_config=master_config(prompts, broken if tolerated is None else tolerated),
                replay_buffer=buffer,
            )
            actors.extend([environment, buffer, collector])
            ray.get(collector.start_collection.remote(batches or self.batches(records)))
            return buffer, collector

        yield start
        for actor in actors:
            ray.kill(actor)

    @staticmethod
    def buffer_settings():
        """Main's buffer has one more setting."""
        module = importlib.import_module("nemo_rl.algorithms.async_utils.replay_buffer")
        names = inspect.signature(module.ReplayBufferImpl).parameters
        return {"max_size": 8} | {n: False for n in names if n.startswith("drop_incomplete")}

    @pytest.fixture
    def master_config(self, tmp_path):
        """What a run of ours would give the collector, on main with failures that it tolerates."""
        from nemo_rl.algorithms.grpo import MasterConfig
        from nemo_rl.utils.config import load_config as read

        base = find_installation().base_config
        options = Options((CONFIG_FOLDER / "medium.yaml",), (NEMO_RL,))
        loaded = load_config("fairness", options)
        ours = nemo_rl_config(loaded, base, RunDirectory(tmp_path), "model")
        OmegaConf.save(OmegaConf.create(ours), tmp_path / "nemo_rl.yaml")
        merged = OmegaConf.to_container(read(tmp_path / "nemo_rl.yaml"), resolve=True)

        def master_config(prompts, tolerated):
            sizes = {"num_prompts_per_step": prompts, "num_generations_per_prompt": GENERATIONS}
            asynchronous = merged["grpo"]["async_grpo"] | {"max_generation_failures": tolerated}
            grpo = merged["grpo"] | sizes | {"async_grpo": asynchronous}
            policy = merged["policy"] | {"max_total_sequence_length": 100_000}
            return MasterConfig(**merged | {"grpo": grpo, "policy": policy})

        return master_config

    @staticmethod
    def batches(records, times=1, prompts=4):
        """Whole sets, one a batch or more, as our dataset orders them."""
        from nemo_rl.data.collate_fn import rl_collate_fn

        from equipoise.train.nemo_rl.dataset import datum

        rows = [rl_collate_fn([datum(r, "fairness", Bytes(), None, 0)]) for r in records]
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict

        every = rows * times
        sets = [every[start : start + prompts] for start in range(0, len(every), prompts)]
        return [BatchedDataDict.from_batches(one) for one in sets]

    @staticmethod
    def take(ray, buffer, step, prompts=4):
        """As the trainer does: ask until the step's groups are there."""
        wanted = {"num_prompt_groups": prompts, "current_weight_version": step, "max_age_steps": 1}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if sampled := ray.get(buffer.sample.remote(**wanted)):
                return sampled["trajectories"]
            time.sleep(0.05)
        raise AssertionError(f"the groups of step {step} never came")

    def trained(self, ray, buffer, collector, steps):
        """The groups of every step, new weights after each."""
        for step in range(steps):
            yield self.take(ray, buffer, step)
            collector.set_weight_version.remote(step + 1)

    def test_steps_are_whole_sets_with_the_rewards_of_synchronous_rollouts(
        self, ray, start, batch, scorer
    ):
        rollouts = importlib.import_module("nemo_rl.experience.rollouts")
        synchronous, _ = run(rollouts.run_multi_turn_rollout, batch, scorer, Replies(False))
        asked = [info["prompt_id"] for info in synchronous["extra_env_info"]]
        expected = rows_of(asked, replies(synchronous), synchronous["total_reward"])
        on_average = rows_of(asked, replies(synchronous), advantages(synchronous))
        buffer, collector = start()
        for groups in self.trained(ray, buffer, collector, SETS):
            assert len({g["batch"]["extra_env_info"][0]["set_id"] for g in groups}) == 1
            step = type(groups[0]["batch"]).from_batches([group["batch"] for group in groups])
            prompts = [info["prompt_id"] for info in step["extra_env_info"]]
            for prompt, got in rows_of(prompts, replies(step), advantages(step)).items():
                assert got == on_average.pop(prompt)
            for group in groups:
                ids = [info["prompt_id"] for info in group["batch"]["extra_env_info"]]
                got = rows_of(ids, replies(group["batch"]), group["batch"]["total_reward"])
                assert got == {ids[0]: expected.pop(ids[0])}
                mean = float(group["batch"]["total_reward"].mean())
                assert group["rollout_metrics"]["mean_total_reward"] == pytest.approx(mean)
        assert not expected

    @pytest.mark.parametrize("step", [0, 1])
    def test_a_group_that_fails_is_made_up_for_by_another_set(self, ray, start, records, step):
        """That of step 1 fails when weights are there with which NeMo-RL begins with step 2."""
        buffer, collector = start(broken=1, step=step, batches=self.batches(records, times=2))
        for groups in self.trained(ray, buffer, collector, SETS):
            assert len({g["batch"]["extra_env_info"][0]["set_id"] for g in groups}) == 1
            assert len({g["batch"]["extra_env_info"][0]["prompt_id"] for g in groups}) == 4

    def test_where_no_prompts_are_left_a_step_does_not_wait_for_ever(self, ray, start, records):
        buffer, _ = start(broken=1, batches=self.batches(records)[:1])
        with pytest.raises(ray.exceptions.RayTaskError, match="the prompts are used up"):
            self.take(ray, buffer, 0)

    def test_a_group_that_fails_beyond_what_main_tolerates_is_told(self, ray, start, records):
        """The trainer asks while it waits; v0.7.0 tolerates every failure, and has no such key."""
        if not hasattr(whole_sets_module().CollectorImpl, "check_health"):
            pytest.skip("this NeMo-RL counts no failures")
        _, collector = start(broken=1, tolerated=0, batches=self.batches(records, times=2))
        with pytest.raises(ray.exceptions.RayTaskError, match="a group broke"):
            self.unhealthy(ray, collector)

    @staticmethod
    def unhealthy(ray, collector):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ray.get(collector.check_health.remote())
            time.sleep(0.05)

    def test_what_a_restored_step_lacks_is_filled_up_with_whole_sets(
        self, ray, start, records, batch, scorer
    ):
        """One set of two was saved. Both get the rewards of their set, whoever generated it."""
        rollouts = importlib.import_module("nemo_rl.experience.rollouts")
        collected, _ = run(rollouts.run_async_multi_turn_rollout, batch, NoReward(), Replies(True))
        before = whole_sets_module().WholeSetsImpl(None, 4, **self.buffer_settings())
        for first in range(0, 7 * GENERATIONS, GENERATIONS):  # but for the last of the second set
            group = collected.slice(first, first + GENERATIONS)
            before.add({"batch": group, "rollout_metrics": {}}, 0, 0)
        later = self.batches(records[8:] + records[:8], prompts=8)
        buffer, _ = start(batches=later, prompts=8, restored=before.state_dict())
        groups = self.take(ray, buffer, 0, prompts=8)
        assert set_ids(groups) == {records[0].set_id: 4, records[8].set_id: 4}
        step = type(collected).from_batches([group["batch"] for group in groups])
        again = scorer.rewards(step["message_log"], step["extra_env_info"])
        assert step["total_reward"].tolist() == torch.tensor(again).tolist()

    def test_a_restored_buffer_holds_whole_sets_alone(self, ray, start, records):
        module = whole_sets_module()
        before = module.WholeSetsImpl(None, 4, **self.buffer_settings())
        for row in self.batches(records)[:2]:
            for prompt in range(row.size):
                group = row.slice(prompt, prompt + 1).repeat_interleave(GENERATIONS)
                if (before.size(), prompt) != (4, 3):  # the last of the second set
                    before.add({"batch": group, "rollout_metrics": {}}, prompt % 2, 1)
        after = module.WholeSetsImpl(None, 4, **self.buffer_settings())
        after.load_state_dict(before.state_dict(), 8, 1, 1)
        assert after.size() == 4
        assert after.get_trajectories_needed(1, 8, 1) == 4  # one set, not one prompt
        assert after.trajectory_versions == [0] * 4  # one age


def rows_of(prompts, texts, rewards):
    """By prompt: what was replied, and what it got, in no order."""
    rows = {}
    for prompt, text, reward in zip(prompts, texts, rewards.tolist(), strict=True):
        rows.setdefault(prompt, []).append((text, reward))
    return {prompt: sorted(both) for prompt, both in rows.items()}


def set_ids(groups):
    """How many groups each set has."""
    return Counter(group["batch"]["extra_env_info"][0]["set_id"] for group in groups)


class NoReward:
    """Stands where a scorer does, as our collector's environment: it ends the conversation."""

    def rewards(self, messages, metadata):
        return [0.0] * len(messages)


def whole_sets_module():
    return importlib.import_module("equipoise.train.nemo_rl.whole_sets")


def breaking(groups, step):
    """Our collector, in which as many groups of a step fail when the others have ended."""

    class Breaking(whole_sets_module().CollectorImpl):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.left = groups

        def breaks(self, of_step):
            self.left -= of_step == step
            return of_step == step and self.left >= 0

        def _run_prompt_group_worker(self, batch, version, of_step, *rest):  # of v0.7.0
            if self.breaks(of_step):
                batch = None
                while self.current_weight_version < of_step:  # the trainer takes the step before
                    time.sleep(0.05)
                time.sleep(2)  # until the collector has nothing to begin, and sleeps
            super()._run_prompt_group_worker(batch, version, of_step, *rest)

        async def _enqueue_rollout_group(self, **group):  # of main, from whose batch it comes
            if self.breaks(group["target_weight_version"]):
                while self.current_weight_version < group["target_weight_version"]:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(2)
                raise RuntimeError("a group broke")
            await super()._enqueue_rollout_group(**group)

    return Breaking


class Environment:
    """What the environment's actor does."""

    def __init__(self, reference):
        find_installation().make_importable()
        environment = FairnessEnvironment(FairnessSettings())
        environment.set_reference(reference)
        self.scorer = StepScorer(SomeFail(environment))

    def step(self, messages, metadata):
        from equipoise.train.nemo_rl.together import single_turn_return

        return single_turn_return(self.scorer.rewards(messages, metadata), metadata)
