"""Whole sets by NeMo-RL's own Single Controller: its pumps, buffer, loader and TransferQueue.

    NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_single_controller.py

Generation, training and the transfer of weights do nothing. v0.7.0 has no Single Controller. The
TransferQueue is that of the package index, where it can be imported.
"""

import asyncio
import os
import random
from dataclasses import replace
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from data_prep.records import write_prompts
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl.assumptions import unmet
from equipoise.config.nemo_rl.installation import PATH_VARIABLE, find_installation
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl import set_sampler
from equipoise.train.nemo_rl.configuration import SAMPLER, single_controller_config
from equipoise.train.nemo_rl.engine import prepare_process
from tests.contract.rehearsal import needs_extra
from tests.equipoise.train.nemo_rl.single_controller import (
    GENERATIONS,
    Account,
    Characters,
    Fates,
    Scenario,
    records,
)

ROOT = Path(os.environ.get(PATH_VARIABLE, "/nowhere"))
pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "nemo_rl" / "algorithms" / "single_controller.py").is_file(),
        reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL with a Single Controller",
    ),
    needs_extra("tensordict"),
]
PARTITION = "rollout_data"
FIELDS = [
    *("input_ids", "input_lengths", "generation_logprobs", "token_mask", "sample_mask"),
    *("prompt_ids_for_adv", "total_reward", "advantages"),
]


@pytest.fixture(scope="module", autouse=True)
def nemo_rl():
    """NeMo-RL can be imported."""
    find_installation().make_importable()
    prepare_process()
    return find_installation()


def in_memory():
    from nemo_rl.data_plane.adapters.noop import NoOpDataPlaneClient

    client = NoOpDataPlaneClient()
    client.register_partition(PARTITION, FIELDS, 0, ["train"])
    return client


@pytest.fixture(scope="module")
def transfer_queue():
    """NeMo-RL's client of a TransferQueue, in processes of Ray's."""
    if not find_spec("transfer_queue"):
        pytest.skip("no TransferQueue is installed")
    import ray
    from nemo_rl.data_plane import build_data_plane_client
    from nemo_rl.data_plane.adapters import transfer_queue as adapter

    # It would have Ray install the commit that NeMo-RL's own package names.
    adapter._patch_tq_actor_runtime_env = lambda *_, **__: None

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    settings = {
        "enabled": True,
        "impl": "transfer_queue",
        "backend": "simple",
        "storage_capacity": 1024,
        "num_storage_units": 1,
        "claim_meta_poll_interval_s": 0.5,
    }
    client = build_data_plane_client(settings)
    client.register_partition(PARTITION, FIELDS, 1024, ["train"])
    yield client
    client.close()
    ray.shutdown()


@pytest.fixture
def configured(nemo_rl, tmp_path):
    """NeMo-RL's own reading of what we write for a run."""
    from nemo_rl.algorithms.single_controller_utils.config import MasterConfig
    from nemo_rl.utils.config import load_config as load_theirs
    from nemo_rl.utils.config import register_omegaconf_resolvers

    register_omegaconf_resolvers()
    words = {
        "equipoise.engine": "nemo_rl",
        "policy.generation.vllm_cfg.async_engine": True,
        "policy.generation.colocated.enabled": False,
        "policy.generation.colocated.resources.gpus_per_node": 8,
        "policy.generation.colocated.resources.num_nodes": 2,
        "loss_fn.use_importance_sampling_correction": True,
    }
    settings = tuple(Setting("", key, value) for key, value in words.items())
    loaded = load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",), settings))
    run = RunDirectory(tmp_path / "run")
    base = nemo_rl.single_controller_config
    ours = single_controller_config(loaded, base, run, "model", staleness=1)
    ours["checkpointing"]["metric_name"] = None
    path = tmp_path / "nemo_rl.yaml"
    OmegaConf.save(OmegaConf.create(ours), path)
    return MasterConfig(**OmegaConf.to_container(load_theirs(str(path)), resolve=True))


def test_it_has_all_that_is_assumed_of_it():
    assert list(unmet(ROOT, ("run", "controller"))) == []


def test_it_takes_the_configuration(configured):
    from nemo_rl.algorithms.single_controller_utils.config import validate_single_controller_config
    from nemo_rl.data.utils import extract_necessary_env_names

    validate_single_controller_config(configured)
    assert configured.grpo.async_grpo is None
    assert configured.data_plane["enabled"]
    sampler = configured.async_rl.sampler
    assert (sampler.name, sampler.target, sampler.set_size) == ("custom", SAMPLER, 4)
    assert extract_necessary_env_names(configured.data) == ["fairness"]


class Rollouts:
    """Stands in for generation: replies are numbers, and come to a scenario's fates."""

    def __init__(self, scenario, account):
        rng = random.Random(f"fates {scenario.seed}")
        self.fates = Fates(rng, scenario.failing, scenario.lost, scenario.slow)
        self.account, self.numbers = account, count()
        self.by_id = {r.id: r for r in records(scenario.sets, scenario.set_size)}

    async def run_rollout(self, sample):
        """Answer a prompt as `AsyncRolloutImpl` does."""
        from nemo_rl.experience.failures import GenerationUnavailable
        from nemo_rl.experience.interfaces import Completion, PromptGroupRecord

        await asyncio.sleep(self.fates.seconds())
        if self.fates.outcome() != "replies":
            raise GenerationUnavailable("the engine died")
        prompt = sample["message_log"]
        completions = []
        for _ in range(GENERATIONS):
            reply = f"{next(self.numbers)}"
            ids = torch.tensor([ord(letter) for letter in reply])
            answer = {"role": "assistant", "content": reply, "token_ids": ids}
            answer["generation_logprobs"] = torch.zeros(len(ids))
            ended = {"role": "environment", "content": "", "token_ids": ids[:0]}
            log = [*(dict(message) for message in prompt), answer, ended]
            completions.append(Completion(log, None, False, 0.0))
        return PromptGroupRecord(0, prompt, None, {}, completions, {})


class Trainer:
    """Stands in for the policy's workers: keeps the account of what they would train on."""

    def __init__(self, client, account, controller):
        self.client, self.account, self.controller = client, account, controller

    def train_microbatches_from_meta(self, meta):
        columns = ["input_ids", "token_mask", "total_reward"]
        data = self.client.get_samples(meta.sample_ids, meta.partition_id, columns)
        rows = zip(*(data[name].unbind() for name in columns), strict=True)
        values = {
            row: (Characters().decode(ids[mask.bool()], True), reward.item())
            for row, (ids, mask, reward) in zip(meta.sample_ids, rows, strict=True)
        }
        self.account.train(meta.sample_ids, self.controller._trainer_version, values.get)

    def finish_train_step(self):
        return {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def controller_of(scenario, account, client, sampler, monkeypatch):
    """NeMo-RL's own controller and rollout manager on these stand-ins."""
    from nemo_rl.algorithms import single_controller
    from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
    from nemo_rl.algorithms.async_utils.staleness_sampler import CustomSamplerConfig
    from nemo_rl.algorithms.grpo import GRPOConfig, _initial_grpo_save_state
    from nemo_rl.algorithms.loss import ClippedPGLossConfig
    from nemo_rl.algorithms.single_controller_utils.config import AsyncRLConfig, MasterConfig
    from nemo_rl.algorithms.single_controller_utils.setup import SingleControllerActorArgs
    from nemo_rl.data.collate_fn import rl_collate_fn
    from nemo_rl.experience.rollout_manager import RolloutManager, RolloutRetryPolicy

    from equipoise.train.nemo_rl.dataset import datum

    quiet = SimpleNamespace(
        log_hyperparams=lambda *_: None, log_metrics=lambda *_, **__: None, finish=lambda: None
    )
    monkeypatch.setattr(single_controller, "Logger", lambda _: quiet)
    monkeypatch.setattr(single_controller.ray, "cluster_resources", dict)
    capacity = scenario.step_size * (scenario.window + 1) + scenario.spare_capacity
    config = MasterConfig.model_construct(
        policy={"train_global_batch_size": scenario.step_size * GENERATIONS},
        env={},
        grpo=GRPOConfig.model_construct(
            num_prompts_per_step=scenario.step_size,
            num_generations_per_prompt=GENERATIONS,
            max_num_steps=scenario.steps,
            max_num_epochs=1,
            skip_reference_policy_logprobs_calculation=True,
            seq_logprob_error_threshold=None,
        ),
        loss_fn=ClippedPGLossConfig(force_on_policy_ratio=True, reference_policy_kl_penalty=0),
        async_rl=AsyncRLConfig(
            sampler=CustomSamplerConfig(target=SAMPLER, **sampler),
            min_groups_for_streaming_train=min(scenario.min_groups, scenario.step_size),
            max_inflight_prompts=scenario.most_in_flight,
            max_buffered_rollouts=capacity,
        ),
        logger={},
        checkpointing={
            "enabled": False,
            "checkpoint_must_save_by": None,
            "checkpoint_dir": "/nowhere",
            "metric_name": None,
            "higher_is_better": False,
            "save_period": 10,
            "keep_top_k": None,
            "save_optimizer": False,
        },
    )
    batches = [
        rl_collate_fn([datum(r, "toy", Characters(), None, i) for i, r in enumerate(batch)])
        for batch in islice(scenario.batches(), 200)
    ]
    buffer = TQReplayBuffer(client, PARTITION, pad_value_dict={"token_ids": 0, "input_ids": 0})
    manager = RolloutManager(
        tokenizer=Characters(),
        task_to_env={},
        num_generations_per_prompt=GENERATIONS,
        max_seq_len=1000,
        policy_generation=object(),
        tq_buffer=buffer,
        retry_policy=RolloutRetryPolicy(
            max_infra_attempts=2,
            max_data_attempts=1,
            backoff_base_s=0.01,
            max_backoff_s=0.05,
            max_skipped_prompts=0,
            max_consecutive_dropped_prompts=10_000,
            max_gym_row_attempts=1,
        ),
    )
    manager._impl = Rollouts(scenario, account)
    cls = single_controller.SingleControllerActor.__ray_metadata__.modified_class
    trainer = Trainer(client, account, None)
    arguments = SingleControllerActorArgs(
        gen_handle=SimpleNamespace(),
        trainer_handle=trainer,
        env_handles={},
        train_cluster=None,
        inference_cluster=None,
        dp_client=client,
        dataloader=batches,
        weight_synchronizer=SimpleNamespace(sync_weights=lambda **_: None, shutdown=lambda: None),
        advantage_estimator=None,
        loss_fn=None,
        rollout_manager=manager,
        tq_buffer=buffer,
        partition_id=PARTITION,
        save_state=_initial_grpo_save_state(),
        last_checkpoint_path=None,
    )
    controller = cls(config, arguments, SimpleNamespace(to_metrics_dict=dict))
    trainer.controller = controller
    commit = buffer.commit

    async def noted_commit(group, record, **versions):
        prompt = record.prompt[0]["content"].rstrip("?").replace(":", "-")
        account.generated[group] = (manager._impl.by_id[prompt], versions["start_weight_version"])
        return await commit(group, record, **versions)

    buffer.commit = noted_commit
    return controller


def train(scenario, client, tmp_path, monkeypatch):
    """Train to the last step in real time; return the account and the controller."""
    account, path = Account(scenario.set_size, scenario.window), tmp_path / "prompts.jsonl"
    write_prompts(path, records(scenario.sets, scenario.set_size), {})

    async def rewards_of(_actor, conversations, metadata):
        return account.score(conversations, metadata)

    monkeypatch.setattr(set_sampler, "rewards_of", rewards_of)
    monkeypatch.setattr(set_sampler, "_tokenizer_of", lambda _: Characters())
    sampler = {
        "prompts": str(path),
        "tokenizer": {},
        "scoring_actor": "scoring",
        "set_size": scenario.set_size,
        "prompts_per_step": scenario.step_size,
        "max_staleness_versions": scenario.window,
    }
    controller = controller_of(scenario, account, client, sampler, monkeypatch)
    asyncio.run(asyncio.wait_for(controller.run(), 60))
    assert type(controller._sampler) is set_sampler.WholeSetSampler
    assert len(account.trained) == scenario.steps * scenario.step_size
    return account, controller


HARMFUL = {"failing": 0.2, "lost": 0.1, "slow": 0.2, "restarts": ()}


@pytest.mark.parametrize("seed", range(12))
def test_its_pumps_train_whole_sets(seed, tmp_path, monkeypatch):
    train(replace(Scenario.draw(seed), **HARMFUL), in_memory(), tmp_path, monkeypatch)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_they_do_so_over_a_transfer_queue(seed, transfer_queue, tmp_path, monkeypatch):
    train(replace(Scenario.draw(seed), **HARMFUL), transfer_queue, tmp_path, monkeypatch)


def test_a_resumed_buffer_is_recognised(tmp_path, monkeypatch):
    """Its groups come from a checkpoint, with no rollout of this process."""
    scenario = replace(Scenario.draw(0), **HARMFUL, set_size=2, sets_per_step=2, window=1)
    account, controller = train(replace(scenario, steps=2), in_memory(), tmp_path, monkeypatch)
    buffer = controller._buffer
    state = asyncio.run(buffer.state_dict(saved_capacity=100))
    resumed = controller_of(
        replace(scenario, steps=4),
        account,
        in_memory(),
        controller._async_cfg.sampler.model_extra,
        monkeypatch,
    )
    numbers = controller._rollout_manager._impl.numbers
    resumed._rollout_manager._impl.numbers = numbers
    load = resumed._buffer.load_state_dict(
        state, max_groups=8, expected_partition_id=PARTITION, expected_group_size=GENERATIONS
    )
    held = asyncio.run(load)
    resumed._trainer_version = resumed._train_steps = resumed._rollout_manager._weight_version = 2
    resumed._buffer_capacity = asyncio.Semaphore(resumed._async_cfg.max_buffered_rollouts - held)
    asyncio.run(asyncio.wait_for(resumed.run(), 60))
    assert len(account.trained) == 4 * scenario.step_size
