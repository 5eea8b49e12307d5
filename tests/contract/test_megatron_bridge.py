"""LoRA and checkpoints on Megatron, by Megatron-Bridge and megatron-core themselves, on a CPU.

    uv run tests/contract/packages.py megatron              # makes the packages' folder, once
    NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_megatron_bridge.py

Without a checkout, Megatron-Bridge alone is checked.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from omegaconf import OmegaConf
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, train_tokenizer
from equipoise.checkpoints.convert import ITERATION, convert, convert_to_megatron
from equipoise.checkpoints.dcp import layered_tensors
from equipoise.checkpoints.hugging_face import model_tensors
from equipoise.checkpoints.megatron import to_hugging_face
from equipoise.checkpoints.verify import tensors_of_model
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.files.model_shape import FAMILIES as IN_THE_TABLE
from equipoise.files.model_shape import model_shape
from equipoise.files.nemo_rl import find_installation
from equipoise.run.directory import RunDirectory
from equipoise.train.local import with_adapter
from equipoise.train.nemo_rl.engine import nemo_rl_config
from tests.command import finished
from tests.contract.packages import MEGATRON, missing
from tests.contract.rehearsal import needs_checkout, run_ranks
from tests.equipoise.checkpoints import samples
from tests.equipoise.checkpoints.samples import (
    change_json,
    random_weights,
    same,
    save_adapter,
    weights_of,
)
from tests.refusals import refusal

WORKERS = Path(__file__).parent / "megatron"
PACKAGES = MEGATRON.folder
#: The version of NeMo-RL whose Megatron these packages are near to.
NEMO_RL = "0.7."
#: How its worker has sequences and the model -> the ranks.
RANKS = {"plain": 1, "packed": 1, "shared": 2, "packed and shared": 2}
#: float32 on both sides.
CLOSE = {"atol": 1e-4, "rtol": 0}

pytestmark = pytest.mark.skipif(bool(missing("megatron")), reason=missing("megatron"))


@pytest.fixture(scope="module")
def loaded():
    """The configuration of a large-scale run, fast enough for two updates to be seen."""
    settings = (
        Setting("", "equipoise.engine", "nemo_rl"),
        Setting("", "policy.optimizer.kwargs.lr", 0.02),
    )
    return load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",), settings))


@pytest.fixture(scope="module")
def peft(loaded):
    """The settings from which NeMo-RL makes Megatron-Bridge's LoRA."""
    section = loaded.config.policy.megatron_cfg.peft.model_dump(by_alias=True, exclude_none=True)
    assert section.pop("enabled")
    return section


SIZES = samples.SIZES | {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8}
SIZES |= {"max_position_embeddings": 128}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose output layer is its embeddings, which hide an adapter that is lost."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": 512, "intermediate_size": 176, "max_position_embeddings": 256}
    shape = transformers.Qwen2Config(**sizes, tie_word_embeddings=True, initializer_range=0.1)
    transformers.Qwen2ForCausalLM(shape).save_pretrained(folder)
    question = ({"role": "user", "content": "What dose?"},)
    examples = [Example(question, "None.")]
    settings = WarmStart(steps=1, batch_size=2, vocab_size=400)
    train_tokenizer(examples, settings).save_pretrained(folder)
    return folder


def run(script, *words, given=""):
    """A worker process; raises with its output when it fails."""
    command = [sys.executable, str(WORKERS / script), str(PACKAGES), *map(str, words)]
    finished(command, input=given, timeout=540)


def megatron_python(folder):
    """A Python that has Megatron-Bridge, as NeMo-RL's workers have one.

    Its own packages come before the project's.
    """
    python = folder / "python"
    settings = f"PYTHONPATH={WORKERS / 'site'}:{PACKAGES} MEGATRON_PACKAGES={PACKAGES}"
    python.write_text(f'#!/bin/sh\n{settings} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


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

    def test_its_adapter_becomes_the_merged_model_that_it_sends(self, out, model, tmp_path):
        convert(out / "weights", tmp_path / "made", base=str(model))
        made, sent = (
            load_file(tmp_path / "made" / "model.safetensors"),
            load_file(out / "refit.safetensors"),
        )
        assert made.keys() == sent.keys()
        for name, tensor in sent.items():
            assert torch.allclose(made[name], tensor, atol=1e-6), name

    def test_its_adapter_becomes_the_one_that_it_exports(self, out, model, tmp_path):
        convert(out / "weights", tmp_path / "made", base=str(model), keep_adapter=True)
        made, theirs = (
            load_file(folder / "adapter_model.safetensors")
            for folder in (tmp_path / "made", out / "adapter")
        )
        assert made.keys() == theirs.keys()
        assert all(torch.equal(made[name], theirs[name]) for name in theirs)
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / "made")


#: Qwen2 has biases of Q, K and V, Qwen3 norms of Q and K; the table does not know Mistral.
FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
MODELS = {
    f"{family}-{dtype}-{tied}": (family, dtype, tied == "tied", 1001)
    for family in IN_THE_TABLE
    for dtype in ("float32", "bfloat16")
    for tied in ("tied", "untied")
} | {"qwen3-float32-untied-1024": ("qwen3", "float32", False, 1024)}
OTHER = {"mistral-bfloat16-untied": ("mistral", "bfloat16", False, 1001)}
#: One whose vocabulary is filled up, and one that four processes wrote.
PADDED, PARALLEL = "llama-bfloat16-untied", "qwen3-float32-untied-1024"


def make_model(folder, family, dtype, tied, words, seed=7):
    shape = SIZES | {"vocab_size": words, "tie_word_embeddings": tied}
    if family == "qwen3":
        shape["head_dim"] = 16
    configuration = getattr(transformers, f"{FAMILIES[family]}Config")(**shape)
    made = getattr(transformers, f"{FAMILIES[family]}ForCausalLM")(configuration)
    random_weights(made, seed).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def tensors(model):
    return tensors_of_model(model_tensors(model), model)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, words in (MODELS | OTHER).items():
        make_model(folder / name, *words)
    return folder


def round_trips(models, python, peft):
    """Run round_trips.py with that Python, and return the folder that it writes."""
    out = python.parent / "trips"
    command = [python, "-P", WORKERS / "round_trips.py", models, out]
    log = python.with_name("log")  # a file: what is left of a killed rank keeps no pipe open
    with log.open("w") as file:
        output = {"stdout": file, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, input=json.dumps(peft), text=True, timeout=540, **output)
    assert done.returncode == 0, log.read_text()[-4000:]
    return out


class TestRoundTrips:
    """Hugging Face -> Megatron -> Hugging Face, byte for byte; each way back checks the other."""

    @pytest.fixture(scope="class")
    def out(self, models, peft, tmp_path_factory):
        return round_trips(models, megatron_python(tmp_path_factory.mktemp("trips")), peft)

    @pytest.mark.parametrize("name", MODELS)
    def test_every_byte_comes_back(self, name, models, out, tmp_path):
        model = models / name
        convert(out / "megatron" / name, tmp_path / "made", base=str(model))
        assert same(weights_of(tmp_path / "made"), weights_of(model))
        exported = weights_of(out / "exported" / name)
        if "lm_head.weight" not in tensors(model):  # tied: Megatron-Bridge writes both names
            output = exported.pop("lm_head.weight")
            assert torch.equal(output, exported["model.embed_tokens.weight"])
        assert same(exported, weights_of(model))

    @pytest.mark.parametrize(("folder", "name"), [("padded", PADDED), ("parallel", PARALLEL)])
    def test_also_filled_up_and_in_parts(self, folder, name, models, out, tmp_path):
        model, iteration = models / name, out / folder / ITERATION
        convert(iteration, tmp_path / "made", base=str(model))
        assert same(weights_of(tmp_path / "made"), weights_of(model))
        exported = weights_of(out / f"{folder}-exported")
        assert same(exported, load_file(model / "model.safetensors"))

    def test_the_vocabulary_was_filled_up_and_the_parts_are_four(self, out):
        stored = layered_tensors(out / "padded" / ITERATION)
        assert stored["embedding.word_embeddings.weight"].shape == (1024, 64)
        files = {path.name.rsplit("_", 1)[0] for path in (out / "parallel").rglob("*.distcp")}
        assert len(files) == 4

    def test_other_weights_are_told_apart_in_every_tensor(self, models, out, tmp_path):
        name = "qwen2-float32-untied"
        other = make_model(tmp_path / "other", *MODELS[name], seed=8)
        config = json.loads((other / "config.json").read_text())
        read = to_hugging_face(layered_tensors(out / "megatron" / name / ITERATION), config)
        wanted = tensors(other)
        assert read.keys() == wanted.keys()
        assert not [n for n in read if torch.equal(read[n].read(), wanted[n].read())]

    def test_another_configuration_is_refused_by_every_name(self, models, out, tmp_path):
        """Each of them more: tests/equipoise/checkpoints/test_stated.py."""
        base = shutil.copytree(models / PADDED, tmp_path / "base")
        change_json(
            base / "config.json",
            num_hidden_layers=3,
            num_key_value_heads=4,
            head_dim=16,
            vocab_size=2000,
            intermediate_size=128,
            tie_word_embeddings=True,
            rms_norm_eps=0.25,
            hidden_act="gelu",
            rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        )
        names = ("num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm")
        names += ("intermediate_size", "tie_word_emb", "hidden_act", "rope_type", "rope_theta")
        with refusal("stated.other-model", *names):
            convert(out / "megatron" / PADDED, tmp_path / "made", base=str(base))

    def test_a_folder_of_megatron_lm_s_has_no_run_config(self, models, out, tmp_path):
        theirs = tmp_path / "iter_0000007"
        shutil.copytree(out / "parallel" / ITERATION, theirs)
        (theirs / "run_config.yaml").unlink()
        convert(theirs, tmp_path / "made", base=str(models / PARALLEL))
        assert same(weights_of(tmp_path / "made"), weights_of(models / PARALLEL))

    @pytest.mark.parametrize("name", OTHER)
    def test_another_family_comes_back_by_megatron_bridge(
        self, name, models, out, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("MEGATRON_PYTHON", str(megatron_python(tmp_path)))
        model, written = models / name, out / "megatron" / name
        convert(written, tmp_path / "made", base=str(model))
        assert same(weights_of(tmp_path / "made"), weights_of(model))
        base = shutil.copytree(model, tmp_path / "base")
        change_json(base / "config.json", rms_norm_eps=0.25)
        with refusal("megatron.bridge-failure", "layernorm_epsilon is", "0.25 here"):
            convert(written, tmp_path / "other", base=str(base))

    def test_adapters_of_two_processes_become_what_megatron_bridge_merges(
        self, models, out, tmp_path
    ):
        convert(out / "lora", tmp_path / "made", base=str(models / PARALLEL))
        made, sent = weights_of(tmp_path / "made"), load_file(out / "lora.safetensors")
        assert made.keys() == sent.keys()
        for name, tensor in sent.items():
            assert torch.allclose(made[name], tensor, atol=1e-6), name
        was = weights_of(models / PARALLEL)
        assert sum(not torch.equal(made[name], was[name]) for name in was) == 2 * 7


@pytest.fixture(scope="module")
def converted(model, tmp_path_factory):
    """Convert an adapter on the model to Megatron's form and to a merged model."""
    folder = tmp_path_factory.mktemp("converted")
    save_adapter(model, folder / "adapter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGATRON_PYTHON", str(megatron_python(folder)))
        convert_to_megatron(folder / "adapter", folder / "megatron", base=str(model))
    convert(folder / "adapter", folder / "merged", base=str(model))
    return folder


class TestToMegatron:
    """`equipoise convert --to megatron`, with Megatron-Bridge in a Python of its own."""

    def test_names_no_folder_that_is_gone_and_the_layers_of_production(self, converted, model):
        settings = (converted / "megatron" / ITERATION / "run_config.yaml").read_text()
        config = yaml.safe_load(settings)
        assert config["model"]["hf_model_id"] == str(model)
        assert config["checkpoint"]["save"] == str(converted / "megatron")
        assert f"{converted}/." not in settings
        assert config["model"]["transformer_layer_spec"]["_target_"].endswith(".default_layer_spec")
        assert config["model"]["use_cpu_initialization"] is False

    def test_becomes_a_checkpoint_that_says_what_it_is(self, converted, model):
        made = converted / "megatron"
        record = json.loads((made / "conversion.json").read_text())
        assert record["made_by"] == {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"}
        assert {path.name for path in converted.iterdir()} == {
            *("adapter", "megatron", "merged", "python")
        }

    def test_comes_back_as_the_merged_model(self, converted, model, tmp_path):
        convert(converted / "megatron", tmp_path / "made", base=str(model))
        assert same(weights_of(tmp_path / "made"), weights_of(converted / "merged"))


def written_config(loaded, model, folder):
    """The file of what a run gives NeMo-RL; skips where its worker needs another megatron-core."""
    installation = find_installation()
    if not installation.version.startswith(NEMO_RL):
        pytest.skip(f"NeMo-RL {installation.version} needs a newer megatron-core")
    run = RunDirectory(folder / "run")
    config = nemo_rl_config(loaded, installation.base_config, run, str(model))
    OmegaConf.save(OmegaConf.create(config), folder / "nemo_rl.yaml")
    return folder / "nemo_rl.yaml"


@needs_checkout
class TestPolicyWorker:
    """NeMo-RL's own worker through two updates, a checkpoint and a resume."""

    @pytest.fixture(scope="class")
    def out(self, model, loaded, converted, tmp_path_factory):
        folder = tmp_path_factory.mktemp("worker")
        path = written_config(loaded, model, folder)
        nemo_rl = find_installation().root
        run("policy_worker.py", nemo_rl, model, folder, path, converted / "megatron")
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

    def test_starts_with_a_converted_checkpoint(self, converted, logprobs):
        """`policy.pretrained_checkpoint`: other weights than those of `policy.model_name`."""
        merged = AutoModelForCausalLM.from_pretrained(converted / "merged")
        wanted = self.by_transformers(merged, logprobs)
        assert torch.allclose(logprobs["pretrained"][:, 1:], wanted, **CLOSE)
        assert (logprobs["pretrained"] - logprobs["start"]).abs().max() > 0.1

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
        convert(out / "step_2", adapter, base=str(model), keep_adapter=True)
        base = AutoModelForCausalLM.from_pretrained(model)
        wanted = self.by_transformers(PeftModel.from_pretrained(base, adapter), logprobs)
        assert torch.allclose(logprobs["trained"][:, 1:], wanted, **CLOSE)


@needs_checkout
class TestOnePolicy:
    """NeMo-RL's worker with packed sequences, and with the model shared by two ranks."""

    @pytest.fixture(scope="class")
    def out(self, model, loaded, tmp_path_factory):
        folder = tmp_path_factory.mktemp("splits")
        path = written_config(loaded, model, folder)
        words = (PACKAGES, find_installation().root, model, folder, path)
        for name, ranks in RANKS.items():
            run_ranks(ranks, [str(word) for word in (WORKERS / "split_worker.py", *words, name)])
        return folder

    @pytest.mark.parametrize("name", [name for name in RANKS if name != "plain"])
    def test_it_trains_the_same(self, name, out):
        other, plain = (load_file(out / f"{case}.safetensors") for case in (name, "plain"))
        assert (plain["trained"] - plain["start"]).abs().max() > 1
        for moment in ("start", "trained"):
            assert torch.allclose(other[moment], plain[moment], **CLOSE), moment
        norms = (
            json.loads((out / f"{case}.json").read_text())["gradients"] for case in (name, "plain")
        )
        assert next(norms) == pytest.approx(next(norms), rel=1e-4)
