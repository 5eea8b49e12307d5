"""A rehearsal: its sizes, the CPU in place of a GPU, and whether both sides are one policy."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from equipoise.config import LOCAL_MODEL, Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.memory import layout_of
from equipoise.config.words import parse_flags
from equipoise.files.console import Reporter, printing_notes
from equipoise.run.directory import RunDirectory
from equipoise.run.history import append_row
from equipoise.run.ledger import Provenance
from equipoise.train.nemo_rl.rehearsal.cpu import CudaIsCpu
from equipoise.train.nemo_rl.rehearsal.rehearse import compare_policies, difference
from equipoise.train.nemo_rl.rehearsal.shrink import rehearsal_config
from tests.refusals import refusal

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
SAMPLING = load_config("fairness", parse_flags("x", [])).config.policy.generation


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def conversations(model, sampling=SAMPLING):
    """Replies with the log-probabilities that a model gives them, one token after the other."""
    torch.manual_seed(0)
    replies = []
    for length in (10, 8, 6):
        ids = torch.randint(0, 32, (1, length))
        with torch.no_grad():
            logits = model(ids).logits[0] / sampling.temperature
        logprobs = torch.log_softmax(logits, -1)
        chosen = torch.stack([logprobs[n - 1, ids[0, n]] for n in range(3, length)])
        reply = {"token_ids": ids[0, 3:], "generation_logprobs": chosen}
        replies.append([{"token_ids": ids[0, :3]}, reply, {"token_ids": []}])
    return replies


@pytest.fixture
def compared(base, tmp_path, capsys):
    """Compare an exported adapter on these layers with the policy that was sampled."""

    def compare(*layers, exports=True, sampled=None):
        model = LlamaForCausalLM.from_pretrained(base)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=list(layers)))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
        run = RunDirectory(tmp_path / "run")
        run.root.mkdir()
        run.ledger.create(Provenance())
        append_row(run.history, {"step": 1, "token_mult_prob_error": 1.00001})
        if exports:
            model.save_pretrained(run.final_checkpoint)
        policy = SimpleNamespace(generation=SAMPLING)
        config = SimpleNamespace(policy=policy)
        job = SimpleNamespace(run=run, config=config, model_name=str(base))
        try:
            with printing_notes(Reporter()):
                compare_policies(job, conversations(sampled or model))
        finally:
            differ = json.loads(run.provenance.read_text())["logprobs_differ_by"]
        return differ, capsys.readouterr().out

    return compare


def test_an_adapter_is_the_policy_that_was_sampled(compared):
    differ, _ = compared("q_proj", "down_proj")
    assert list(differ) == ["training", "final_checkpoint"]
    assert 0 < max(differ.values()) < 2e-5


@pytest.mark.parametrize("layers", [("q_proj",), ("lm_head",)])
def test_one_that_was_not_sampled_is_refused(compared, base, layers):
    with refusal("rehearsal.other-logprobs", "final_checkpoint"):
        compared(*layers, sampled=LlamaForCausalLM.from_pretrained(base))


def test_where_nothing_was_exported_that_is_said(compared):
    differ, said = compared("q_proj", exports=False)
    assert list(differ) == ["training"]
    assert "final_checkpoint is not compared" in said


def test_logprobs_are_those_of_what_was_sampled_from(base):
    model = LlamaForCausalLM.from_pretrained(base)
    cold = SAMPLING.model_copy(update={"temperature": 0.5})
    replies = conversations(model, cold)
    assert difference(model, replies, cold) < 1e-5
    assert difference(model, replies, SAMPLING) > 0.1
    kept = cold.model_copy(update={"top_k": 1})
    assert difference(model, replies, kept) > 1e3  # tokens that were never drawn
    replies[1][1]["generation_logprobs"][2] = torch.nan
    assert difference(model, replies, cold) > 1e3


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


def test_tensors_and_modules_go_to_the_cpu():
    with CudaIsCpu():
        tensors = [
            torch.ones(2, device="cuda"),
            torch.ones(2, device=torch.device("cuda", 1)),
            torch.empty(2, pin_memory=True),
            torch.empty_like(torch.ones(2), device=0),
            torch.ones(2).to("cuda"),
            torch.ones(2).to("cuda", torch.float64, non_blocking=True),
            torch.ones(2).cuda(non_blocking=True),
            next(torch.nn.Linear(2, 2).to("cuda").parameters()),
        ]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert tensors[5].dtype == torch.float64
