"""A rehearsal of every scale that is shipped: small, valid, whole sets, same proportions."""

import pytest

from equipoise.config import LOCAL_MODEL, Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.memory import layout_of
from equipoise.config.words import parse_flags
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config


def rehearsal(*words):
    options = parse_flags("x", ("--rehearse", *words))
    return rehearsal_config("fairness", options, load_config("fairness", options))


RANKS = {"small": 1, "medium": 2, "large": 2}


@pytest.mark.parametrize("scale", RANKS)
def test_a_scale_becomes_small_and_stays_what_it_is(scale):
    path = CONFIG_FOLDER / f"{scale}.yaml"
    full, small = load_config("fairness", Options((path,))).config, rehearsal("--config", str(path))
    grpo, policy = small.config.grpo, small.config.policy
    assert small.engine == "nemo_rl"
    assert policy.model_name == LOCAL_MODEL
    assert grpo.num_prompts_per_step % 4 == 0
    assert grpo.num_prompts_per_step * grpo.num_generations_per_prompt <= 64
    assert grpo.num_generations_per_prompt == full.grpo.num_generations_per_prompt
    assert grpo.normalize_rewards == full.grpo.normalize_rewards
    ranks = small.config.cluster.gpus_per_node * small.config.cluster.num_nodes
    assert ranks == RANKS[scale]
    assert policy.train_global_batch_size % (ranks * policy.train_micro_batch_size) == 0
    assert small.config.loss_fn == full.loss_fn
    assert policy.optimizer == full.policy.optimizer
    lora = full.policy.dtensor_cfg.lora_cfg.model_copy(update={"use_triton": False})
    assert policy.dtensor_cfg.lora_cfg == lora
    assert (policy.dtensor_cfg.enabled, policy.megatron_cfg.enabled) == (True, False)
    assert policy.sequence_packing == full.policy.sequence_packing
    assert policy.generation.vllm_cfg.tensor_parallel_size == 1
    assert small.config.equipoise.run_name is None
    assert grpo.val_period and grpo.max_num_steps > small.config.checkpointing.save_period


def test_the_local_scale_is_rehearsed_as_it_is():
    local = load_config("fairness", parse_flags("x", []))
    small = rehearsal()
    assert small.config.grpo == local.config.grpo
    assert small.prompt_settings == local.prompt_settings


def test_flags_and_words_win():
    small = rehearsal(
        *("--config", str(CONFIG_FOLDER / "medium.yaml"), "--iterations", "9"),
        *("--run-name", "mine", "equipoise.evaluation.generations=3"),
    )
    assert small.config.grpo.max_num_steps == 9
    assert small.config.equipoise.run_name == "mine"
    assert small.config.equipoise.evaluation.generations == 3


@pytest.mark.parametrize("scale", RANKS)
def test_another_model_brings_its_tokenizer(scale, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("policy: {tokenizer: {name: somebody/tokenizer}}")
    scale = ("--config", str(CONFIG_FOLDER / f"{scale}.yaml"), "--config", str(mine))
    assert rehearsal(*scale).config.policy.tokenizer.name == LOCAL_MODEL
    small = rehearsal(*scale, "--model-name", "somebody/model").config.policy
    assert (small.model_name, small.tokenizer.name) == ("somebody/model", "somebody/model")
    words = ("--model-name", "somebody/model", "policy.tokenizer.name=somebody/tokenizer")
    assert rehearsal(*scale, *words).config.policy.tokenizer.name == "somebody/tokenizer"


def test_asynchronous_grpo_is_rehearsed_synchronously(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "grpo: {async_grpo: {enabled: true}}\n"
        "loss_fn: {use_importance_sampling_correction: true}\n"
        "policy: {generation: {vllm_cfg: {async_engine: true},"
        " colocated: {enabled: false, resources: {gpus_per_node: 4}}}}\n"
    )
    scale = ("--config", str(CONFIG_FOLDER / "medium.yaml"))
    small = rehearsal(*scale, "--config", str(tmp_path / "mine.yaml")).config
    layout = layout_of(small)
    assert layout.training_gpus == layout.generation_gpus == 2
    assert not small.grpo.async_grpo.enabled
    assert not small.policy.generation.vllm_cfg.async_engine


def test_a_name_of_the_configuration_is_left_to_the_run_itself(tmp_path):
    (tmp_path / "mine.yaml").write_text("equipoise: {run_name: night}")
    small = rehearsal("--config", str(tmp_path / "mine.yaml"))
    assert small.config.equipoise.run_name == "night-rehearsal"
