"""Asynchronous rollouts get the rewards of synchronous ones, by NeMo-RL's own functions.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl_async.py
"""

import asyncio
import importlib
import inspect
import json
import math
import os
import random
import sys
import time
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf

from data_prep.fairness import PromptSettings, build_prompts
from environments.fairness import FORM, FairnessSettings
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.files.exits import Stopped
from equipoise.files.nemo_rl import find_installation
from equipoise.files.records import write_prompts
from equipoise.run.directory import RunDirectory
from equipoise.run.history import read_history
from equipoise.run.rollouts import rollout_of, write_rollouts
from equipoise.train.nemo_rl.engine import nemo_rl_config
from equipoise.train.nemo_rl.history import HistoryLogger, latest_checkpoint
from equipoise.train.nemo_rl.process import before_nemo_rl, with_room_to_wait
from equipoise.train.nemo_rl.scoring import datum
from tests.contract.rehearsal import Both, needs_checkout, needs_extra

pytestmark = [pytest.mark.usefixtures("only_ray"), needs_checkout, needs_extra()]
GENERATIONS = 4
NEMO_RL = Setting("", "equipoise.engine", "nemo_rl")
SETS = 3


@pytest.fixture(scope="module", autouse=True)
def ray():
    """NeMo-RL can be imported, and a Ray of its own runs."""
    find_installation().make_importable()
    before_nemo_rl()
    # At Ray's own niceness of 15 nothing moves on a loaded machine.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # NeMo-RL has a `tests`, too
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": before_nemo_rl},
    )
    yield ray
    ray.shutdown()


class Bytes:
    """A tokenizer whose tokens are bytes."""

    pad_token_id = 0

    def __call__(self, text, return_tensors=None, add_special_tokens=False):
        ids = torch.tensor([[byte + 1 for byte in text.encode()]], dtype=torch.long)
        return Both(input_ids=ids)

    def apply_chat_template(self, messages, **_):
        return "".join(message["content"] for message in messages)

    def batch_decode(self, rows, skip_special_tokens):
        return [bytes(token - 1 for token in row.tolist()).decode() for row in rows]


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
        levels = (rng.randrange(2), 0, float(rng.randrange(5)), rng.randrange(2), 0, 0)
        decision = FORM.decision(*levels, "Rest.").to_dict()
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

    def __getattr__(self, name):
        """Be a generation whose weights stay as they are."""
        if name not in LEFT_AS_IT_IS:
            raise AttributeError(name)
        return lambda *_, **__: {} if name == "get_logger_metrics" else []


#: Methods of generation and policy that training calls around its steps.
LEFT_AS_IT_IS = {
    *("prepare_for_generation", "finish_generation", "clear_logger_metrics", "shutdown"),
    *("get_logger_metrics", "update_weights_from_collective", "broadcast_weights_for_collective"),
    *("prepare_for_lp_inference", "prepare_for_training", "save_checkpoint"),
    # Main's:
    *("blocks_training", "wake_carries_weight_updates", "invalidate_kv_cache"),
    "finalize_async_save",
}


class Policy(Replies):
    """A policy whose updates change nothing."""

    def __init__(self):
        self.sharding_annotations = SimpleNamespace(get_axis_size=lambda axis: 1)

    def get_logprobs(self, data, timer=None):
        return {"logprobs": data["generation_logprobs"].clone()}

    def get_reference_policy_logprobs(self, data, timer=None):
        return {"reference_logprobs": data["generation_logprobs"].clone()}

    def train(self, data, loss_fn, timer=None):
        tokens = float(data["token_mask"].sum())
        figures = {"global_valid_toks": tokens, "lr": 1e-3, "gen_kl_error": 0.0}
        figures |= {"token_mult_prob_error": 1.0}
        metrics = {name: [value] for name, value in figures.items()}
        return {"loss": torch.ones(1), "grad_norm": torch.ones(1), "all_mb_metrics": metrics}


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

    rows = [record for record in records for _ in range(GENERATIONS)]
    return rl_collate_fn([datum(r, "fairness", Bytes(), None, i) for i, r in enumerate(rows)])


@pytest.fixture
def start(ray, reference, tmp_path):
    """Starts the environment's actor, whose sets wait for so many seconds."""
    from equipoise.train.nemo_rl.actor import EnvironmentActor

    path, settings = tmp_path / "reference.jsonl", FairnessSettings().model_dump(mode="json")
    write_rollouts(path, reference)
    name = "environments.fairness.FairnessEnvironment"
    actors = []

    def start(limit=600.0):
        arguments = (name, settings, str(tmp_path), str(path), GENERATIONS, 1, 7, limit)
        actors.append(EnvironmentActor.options(num_cpus=0).remote(*arguments))
        return actors[-1]

    yield start
    for actor in actors:
        ray.kill(actor)


def run(function, batch, actor, generation):
    return function(
        policy_generation=generation,
        input_batch=deepcopy(batch),  # synchronous rollouts write into it
        tokenizer=Bytes(),
        task_to_env={"fairness": actor},
        max_seq_len=100_000,
        max_rollout_turns=1,
    )


def advantages(batch):
    """By NeMo-RL's own estimator, [B]."""
    estimator = importlib.import_module("nemo_rl.algorithms.advantage_estimator")

    settings = Both(use_leave_one_out_baseline=False, normalize_rewards=True)
    prompts = [log[0]["token_ids"] for log in batch["message_log"]]
    ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    grpo = estimator.GRPOAdvantageEstimator(settings, {})
    ones = torch.ones(len(ids), 1)
    return grpo.compute_advantage(ids, batch["total_reward"], ones).squeeze(1)


def replies(batch):
    return ["".join(m["content"] for m in log[1:]) for log in batch["message_log"]]


def asynchronous(lost=None):
    """An engine in whose loop more replies wait than it has threads."""
    assert SETS * 4 * GENERATIONS > 32
    return with_room_to_wait(Replies(True, lost), 1000)


def test_whole_sets_are_scored_as_synchronous_rollouts_are(ray, batch, start):
    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    actor = start()
    together, _ = run(rollouts.run_multi_turn_rollout, batch, actor, Replies(False))
    row = ray.get(actor.summary.remote("train")).row
    alone, metrics = run(rollouts.run_async_multi_turn_rollout, batch, actor, asynchronous())
    assert replies(alone) == replies(together)
    assert len(set(replies(alone))) > 10
    assert torch.allclose(alone["total_reward"], together["total_reward"], atol=1e-6)
    assert len(alone["total_reward"].unique()) > 10
    assert torch.allclose(advantages(alone), advantages(together), atol=1e-5)
    assert ray.get(actor.summary.remote("train")).row == pytest.approx(row, nan_ok=True)
    assert metrics["mean_total_reward"] == pytest.approx(float(together["total_reward"].mean()))


def test_a_reply_that_never_came_costs_its_own_set_alone(batch, start):
    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    actor = start(limit=20.0)
    whole, _ = run(rollouts.run_async_multi_turn_rollout, batch, actor, asynchronous())
    lost = batch["message_log"][0][0]["content"]
    cut, _ = run(rollouts.run_async_multi_turn_rollout, batch, actor, asynchronous(lost))
    assert replies(cut).count("") == 1
    touched = 4 * GENERATIONS
    assert torch.allclose(cut["total_reward"][touched:], whole["total_reward"][touched:])
    assert not cut["total_reward"][:touched].any()
    assert not advantages(cut)[:touched].any()
    assert advantages(whole)[:touched].any()


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


def test_the_groups_of_asynchronous_grpo_have_the_rewards_of_their_sets(
    ray, records, batch, start, config_of
):
    """NeMo-RL's own collector fills its own buffer, from generations of a random length."""
    from nemo_rl.algorithms.async_utils import AsyncTrajectoryCollector, ReplayBuffer
    from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBufferImpl

    rollouts = importlib.import_module("nemo_rl.experience.rollouts")
    actor = start()
    together, _ = run(rollouts.run_multi_turn_rollout, batch, actor, Replies(False))
    ids = [info["prompt_id"] for info in together["extra_env_info"]]
    expected = rows_of(ids, replies(together), together["total_reward"])
    names = inspect.signature(ReplayBufferImpl).parameters  # main's has one more
    settings = {name: False for name in names if name.startswith("drop_incomplete")}
    buffer = ReplayBuffer.options(num_cpus=0).remote(max_size=8, **settings)
    collector = AsyncTrajectoryCollector.options(num_cpus=0).remote(
        policy_generation=asynchronous(),
        tokenizer=Bytes(),
        task_to_env={"fairness": actor},
        master_config=config_of(),
        replay_buffer=buffer,
    )
    try:
        # It drops what is being written when its data end: with more than is taken, as our
        # dataset has them (`spare`), the last step's groups do not depend on who is faster.
        ray.get(collector.start_collection.remote(sets_of(records) * 2))
        for step in range(SETS):
            for group in take(ray, buffer, step):
                prompt = group["batch"]["extra_env_info"][0]["prompt_id"]
                rewards = group["batch"]["total_reward"]
                (row,) = rows_of([prompt] * 9, replies(group["batch"]), rewards).values()
                assert row == pytest.approx(expected.pop(prompt), abs=1e-6)
            ray.get(collector.set_weight_version.remote(step + 1))
    finally:
        ray.kill(collector)
        ray.kill(buffer)
    assert not expected


def test_the_loop_of_asynchronous_grpo_trains_keeps_a_history_and_stops_with_a_checkpoint(
    ray, records, start, config_of, tmp_path, monkeypatch
):
    """Of real collector, buffer, actor, checkpointer and logger; weights stay as they are."""
    from nemo_rl.algorithms import grpo
    from nemo_rl.distributed import ray_actor_environment_registry as environments
    from nemo_rl.utils.checkpoint import CheckpointManager
    from torchdata.stateful_dataloader import StatefulDataLoader

    from equipoise.train.nemo_rl.actor import Calls

    # Main's name, and v0.7.0's.
    initial = getattr(grpo, "_initial_grpo_save_state", None) or grpo._default_grpo_save_state
    for name in ("AsyncTrajectoryCollector", "ReplayBuffer"):
        path = f"nemo_rl.algorithms.async_utils.{name}"
        monkeypatch.setitem(environments.ACTOR_ENVIRONMENT_REGISTRY, path, sys.executable)
    steps = 5
    master = config_of(max_num_steps=steps, val_period=0, val_at_end=False)
    run, actor, rows = RunDirectory(tmp_path), start(), []
    job = SimpleNamespace(
        config=load_config("fairness", Options((CONFIG_FOLDER / "medium.yaml",))).config,
        run=run,
        steps=steps,
        meter=SimpleNamespace(add_tokens=lambda *_: None),
    )
    ours = (job, rows.append, lambda: len(rows) == 1)
    logger = HistoryLogger(mock.MagicMock(), Calls(actor), master.checkpointing, *ours)
    loader = StatefulDataLoader(sets_of(records) * 2, None, collate_fn=lambda batch: batch)
    checkpointer = CheckpointManager(master.checkpointing)
    with pytest.raises(Stopped):
        grpo.async_grpo_train(
            policy=Policy(),
            policy_generation=asynchronous(),
            dataloader=loader,
            val_dataloader=None,
            tokenizer=Bytes(),
            loss_fn=None,
            task_to_env={"fairness": actor},
            val_task_to_env=None,
            logger=logger,
            checkpointer=checkpointer,
            grpo_save_state=initial(),
            master_config=master,
            max_trajectory_age_steps=1,
        )
    if shutdown := getattr(checkpointer, "shutdown", None):  # main's renames in a thread
        shutdown()
    # Asynchronous training logs a step when it is over: the signal of step 2 ends the next one.
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert read_history(run.history)["step"] == (1, 2, 3)
    assert all(row["loss"] == 1 and math.isfinite(row["reward"]) for row in rows)
    assert latest_checkpoint(run.checkpoints).step == 3


def rows_of(prompts, texts, rewards):
    """By prompt: what its replies got, in their order."""
    rows = {}
    for prompt, text, reward in zip(prompts, texts, rewards.tolist(), strict=False):
        rows.setdefault(prompt, []).append((text, reward))
    return {prompt: [reward for _, reward in sorted(both)] for prompt, both in rows.items()}


def sets_of(records):
    """Batches of a set each, as our dataset orders them."""
    from nemo_rl.data.collate_fn import rl_collate_fn
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    rows = [rl_collate_fn([datum(r, "fairness", Bytes(), None, 0)]) for r in records]
    return [BatchedDataDict.from_batches(rows[start : start + 4]) for start in range(0, 12, 4)]


def take(ray, buffer, step):
    """Ask until a step's groups are there, as the trainer does."""
    wanted = {"num_prompt_groups": 4, "current_weight_version": step, "max_age_steps": 1}
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if sampled := ray.get(buffer.sample.remote(**wanted)):
            return sampled["trajectories"]
        time.sleep(0.05)
    raise AssertionError(f"the groups of step {step} never came")


@pytest.fixture
def config_of(tmp_path):
    """A function that makes the configuration of our run for NeMo-RL, with these keys of `grpo`."""
    from nemo_rl.algorithms.grpo import MasterConfig
    from nemo_rl.utils.config import load_config as read

    base = find_installation().base_config
    loaded = load_config("fairness", Options((CONFIG_FOLDER / "medium.yaml",), (NEMO_RL,)))
    ours = nemo_rl_config(loaded, base, RunDirectory(tmp_path), "model")
    ours["grpo"]["async_grpo"] = {"enabled": True, "in_flight_weight_updates": True}
    ours["loss_fn"]["use_importance_sampling_correction"] = True
    resources = {"gpus_per_node": 4, "num_nodes": None}
    ours["policy"]["generation"]["colocated"] = {"enabled": False, "resources": resources}
    ours["logger"]["wandb_enabled"] = False
    ours["policy"]["generation"]["vllm_cfg"]["async_engine"] = True
    ours["policy"]["max_total_sequence_length"] = 100_000
    OmegaConf.save(OmegaConf.create(ours), tmp_path / "nemo_rl.yaml")
    merged = OmegaConf.to_container(read(tmp_path / "nemo_rl.yaml"), resolve=True)

    def config_of(**grpo):
        sizes = {"num_prompts_per_step": 4, "num_generations_per_prompt": GENERATIONS}
        return MasterConfig(**merged | {"grpo": merged["grpo"] | sizes | grpo})

    return config_of
