"""LoRA and checkpoints on Megatron, by Megatron-Bridge and megatron-core themselves, on a CPU.

    uv run tests/contract/megatron/environment.py     # makes the packages' folder, once
    NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_megatron_bridge.py

Without a checkout, Megatron-Bridge alone is checked.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from data_prep.tiny_model import Example, train_tokenizer
from data_prep.warm_start import WarmStart
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.models import model_shape
from equipoise.conversion.to_hugging_face import convert
from equipoise.engines.local.trainer import with_adapter
from equipoise.engines.nemo_rl.checkpoints import Checkpoint, how_to_convert
from equipoise.engines.nemo_rl.configuration import nemo_rl_config
from equipoise.installation.nemo_rl import PATH_VARIABLE, find_installation
from equipoise.run.directory import RunDirectory
from equipoise.terminal.console import Reporter

WORKERS = Path(__file__).parent / "megatron"
PACKAGES = runpy.run_path(str(WORKERS / "environment.py"))["folder"]()
#: The version of NeMo-RL whose Megatron these packages are near to.
NEMO_RL = "0.7."
#: float32 on both sides.
CLOSE = {"atol": 1e-4, "rtol": 0}

pytestmark = pytest.mark.skipif(
    not PACKAGES.exists(), reason=f"{PACKAGES} is not there; make it with megatron/environment.py"
)


@pytest.fixture(scope="module")
def loaded():
    """What a run of the large scale trains with, fast enough for two updates to be seen."""
    settings = (
        Setting("", "equipoise.engine", "nemo_rl"),
        Setting("", "policy.optimizer.kwargs.lr", 0.02),
    )
    return load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",), settings))


@pytest.fixture(scope="module")
def peft(loaded):
    """What NeMo-RL makes Megatron-Bridge's LoRA from."""
    section = loaded.config.policy.megatron_cfg.peft.model_dump(by_alias=True, exclude_none=True)
    assert section.pop("enabled")
    return section


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose output layer is its embeddings, which hide an adapter that is lost."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    Qwen2ForCausalLM(shape).save_pretrained(folder)
    question = ({"role": "user", "content": "What dose?"},)
    examples = [Example(question, "None.")]
    settings = WarmStart(steps=1, batch_size=2, vocab_size=400)
    train_tokenizer(examples, settings).save_pretrained(folder)
    return folder


def run(script, *words, given=""):
    """A worker process; raises with its output when it fails."""
    command = [sys.executable, str(WORKERS / script), str(PACKAGES), *map(str, words)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def as_the_shell_reads(command, **variables):
    """The words of a command, with its variables."""
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    shell = ["bash", "-c", f"printf '%s\\n' {command}"]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def peft_names(model, lora):
    """The linear maps that the local engine adapts."""
    adapted = with_adapter(AutoModelForCausalLM.from_pretrained(model), lora)
    weights = adapted.state_dict()
    return {name.partition(".lora_A")[0] for name in weights if ".lora_A." in name}


def with_weights(model, weights):
    """The model of Hugging Face's with the weights that are sent to vLLM."""
    changed = AutoModelForCausalLM.from_pretrained(model)
    missing, unexpected = changed.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return changed


class TestMegatronBridge:
    """Its LoRA with the keys of the large scale."""

    @pytest.fixture(scope="class")
    def out(self, model, peft, tmp_path_factory):
        folder = tmp_path_factory.mktemp("bridge")
        run("bridge_worker.py", model, folder, given=json.dumps(peft))
        return folder

    @pytest.fixture(scope="class")
    def result(self, out):
        return json.loads((out / "result.json").read_text())

    def test_adapts_the_blocks_and_not_the_output_layer(self, result):
        layers = ("self_attention.linear_qkv", "self_attention.linear_proj")
        layers += ("mlp.linear_fc1", "mlp.linear_fc2")
        wanted = {f"decoder.layers.{block}.{layer}" for block in range(2) for layer in layers}
        assert {name.removeprefix("module.") for name in result["adapted"]} == wanted

    def test_trains_as_many_parameters_as_the_dry_run_says(self, result, model, loaded):
        rank = loaded.config.policy.megatron_cfg.peft.dim
        assert result["trained"] == model_shape(str(model)).lora_parameters(rank, fused=True)

    def test_would_adapt_it_without_targets(self, result):
        extra = set(result["adapted_without_targets"]) - set(result["adapted"])
        assert {name.removeprefix("module.") for name in extra} == {"output_layer"}

    def test_adapts_what_the_local_engine_adapts(self, out, model, loaded):
        exported = {
            name.partition(".lora_A")[0]
            for name in load_file(out / "adapter" / "adapter_model.safetensors")
            if ".lora_A." in name
        }
        assert exported == peft_names(model, loaded.config.policy.dtensor_cfg.lora_cfg)

    def test_sends_the_merged_weights(self, out, model):
        """W + alpha/r B A, with the embeddings as they were."""
        ids = torch.randint(0, 512, (2, 16), generator=torch.Generator().manual_seed(1))
        sent = load_file(out / "refit.safetensors")
        base = AutoModelForCausalLM.from_pretrained(model)
        assert torch.equal(sent["model.embed_tokens.weight"], base.get_input_embeddings().weight)
        before = base(ids).logits
        adapted = PeftModel.from_pretrained(base, out / "adapter")
        merged = with_weights(model, sent)(ids).logits
        assert torch.allclose(merged, adapted(ids).logits, **CLOSE)
        assert (merged - before).abs().max() > 0.1

    def test_leaves_a_checkpoint_that_names_its_adapter(self, out):
        weights = out / "weights"
        assert (weights / "latest_checkpointed_iteration.txt").read_text() == "0"
        folder = weights / "iter_0000000"
        for name in (".metadata", "__0_0.distcp", "metadata.json", "common.pt", "train_state.pt"):
            assert (folder / name).is_file(), name
        settings = yaml.safe_load((folder / "run_config.yaml").read_text())
        assert settings["peft"]["_target_"] == "megatron.bridge.peft.lora.LoRA"

    def test_its_checkpoint_becomes_the_model_that_it_was(self, out, model, tmp_path):
        convert(out / "whole", tmp_path / "made", Reporter(), base=str(model))
        made, was = (
            load_file(folder / "model.safetensors") for folder in (tmp_path / "made", model)
        )
        assert made.keys() == was.keys()
        assert all(torch.equal(made[name], was[name]) for name in was)

    def test_its_adapter_becomes_the_merged_model_that_it_sends(self, out, model, tmp_path):
        convert(out / "weights", tmp_path / "made", Reporter(), base=str(model))
        made, sent = (
            load_file(tmp_path / "made" / "model.safetensors"),
            load_file(out / "refit.safetensors"),
        )
        assert made.keys() == sent.keys()
        for name, tensor in sent.items():
            assert torch.allclose(made[name], tensor, atol=1e-6), name

    def test_its_adapter_becomes_the_one_that_it_exports(self, out, model, tmp_path):
        convert(out / "weights", tmp_path / "made", Reporter(), base=str(model), keep_adapter=True)
        made, theirs = (
            load_file(folder / "adapter_model.safetensors")
            for folder in (tmp_path / "made", out / "adapter")
        )
        assert made.keys() == theirs.keys()
        assert all(torch.equal(made[name], theirs[name]) for name in theirs)
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / "made")


@pytest.mark.skipif(
    PATH_VARIABLE not in os.environ, reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL"
)
class TestPolicyWorker:
    """NeMo-RL's own worker through two updates, a checkpoint and a resume."""

    @pytest.fixture(scope="class")
    def out(self, model, loaded, tmp_path_factory):
        installation = find_installation()
        if not installation.version.startswith(NEMO_RL):
            pytest.skip(f"NeMo-RL {installation.version} needs a newer megatron-core")
        folder = tmp_path_factory.mktemp("worker")
        run_directory = RunDirectory(folder / "run")
        config = nemo_rl_config(loaded, installation.base_config, run_directory, str(model))
        path = folder / "nemo_rl.yaml"
        OmegaConf.save(OmegaConf.create(config), path)
        run("policy_worker.py", installation.root, model, folder, path)
        return folder

    @pytest.fixture(scope="class")
    def logprobs(self, out):
        """The worker's log probabilities of one batch, by the name of the moment."""
        return load_file(out / "logprobs.safetensors")

    def by_transformers(self, model, logprobs):
        ids = logprobs["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]

    def test_starts_with_the_model(self, model, logprobs):
        wanted = self.by_transformers(AutoModelForCausalLM.from_pretrained(model), logprobs)
        for name in ("start", "reference"):
            assert torch.allclose(logprobs[name][:, 1:], wanted, **CLOSE), name

    def test_trains_adapters_alone(self, out, logprobs):
        result = json.loads((out / "result.json").read_text())
        assert all(".adapter." in name for name in result["trained"])
        assert not [name for name in result["trained"] if "output_layer" in name]
        assert min(result["gradients"]) > 0
        assert (logprobs["trained"] - logprobs["start"]).abs().max() > 0.1

    def test_vllm_gets_the_policy_that_is_trained(self, out, model, logprobs):
        sent = with_weights(model, load_file(out / "refit.safetensors"))
        wanted = self.by_transformers(sent, logprobs)
        assert torch.allclose(logprobs["trained"][:, 1:], wanted, **CLOSE)

    def test_a_resume_goes_on_with_the_first_reference(self, logprobs):
        assert torch.equal(logprobs["resumed"], logprobs["trained"])
        for moment in ("training", "resuming"):
            assert torch.equal(logprobs[f"reference after {moment}"], logprobs["reference"])

    def test_a_run_ends_with_its_adapter(self, out, model, logprobs):
        adapter = out / "converted"
        convert(out / "step_2", adapter, Reporter(), base=str(model), keep_adapter=True)
        base = AutoModelForCausalLM.from_pretrained(model)
        wanted = self.by_transformers(PeftModel.from_pretrained(base, adapter), logprobs)
        assert torch.allclose(logprobs["trained"][:, 1:], wanted, **CLOSE)

    def test_nemo_rl_s_own_command_makes_an_adapter(self, out, model, logprobs):
        checkpoint, adapter = Checkpoint(out / "step_2", 2), out / "adapter"
        command = how_to_convert(checkpoint, adapter, str(model), lora=True)
        words = as_the_shell_reads(command, NRL_MEGATRON_CHECKPOINT_DIR=out / "imported")
        nemo_rl = find_installation().root
        converter = words[words.index("python") + 1 :]
        run("script.py", nemo_rl, nemo_rl / converter[0], *converter[1:])
        base = AutoModelForCausalLM.from_pretrained(model)
        wanted = self.by_transformers(PeftModel.from_pretrained(base, adapter), logprobs)
        assert torch.allclose(logprobs["trained"][:, 1:], wanted, **CLOSE)
