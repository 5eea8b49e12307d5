"""A conversion is checked, and the output names each check that was left out."""

import json

import pytest
import torch.distributed.checkpoint as dcp

from equipoise.checkpoints import verify
from equipoise.checkpoints.convert import convert, convert_to_megatron
from equipoise.commands.convert import ConvertOptions, run
from equipoise.config.words import read_options
from equipoise.files.console import Reporter
from tests.equipoise.checkpoints.samples import change_json, conversion, weights_of
from tests.refusals import refusal


def test_a_model_that_does_not_fit_is_not_loaded_and_that_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "free_memory", lambda: 10**6)
    convert(model, tmp_path / "out")
    checked = conversion(tmp_path / "out")
    assert not checked["loads"]
    assert "and 1.0 MB are free" in checked["unchecked"][-1]


def test_limits_of_control_groups_count(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.stat").write_text("anon 3000000\nfile 1900000\nshmem 500000\n")
    assert verify.free_memory() == 1_500_000


def test_a_tokenizer_that_does_not_load_is_seen_before_anything_is_written(source, tmp_path):
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with refusal("verify.unloadable-companion"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_code_of_others_is_neither_copied_nor_named(source, tmp_path):
    (source / "modeling_own.py").write_text("raise SystemExit('ran')")
    code = {"AutoConfig": "modeling_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    change_json(source / "config.json", auto_map=code, architectures=["OwnModel"])
    convert(source, tmp_path / "out")
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "auto_map" not in made
    assert made["architectures"] == ["LlamaForCausalLM"]
    assert not list((tmp_path / "out").glob("*.py"))


@pytest.fixture
def no_bridge(monkeypatch, tmp_path):
    monkeypatch.delenv("MEGATRON_PYTHON", raising=False)
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path / "none"))


class TestWithoutMegatronBridge:
    def test_it_is_said_where_to_run_the_command(self, model, tmp_path, no_bridge):
        with refusal("nemo-rl.no-megatron-bridge", "Megatron-Bridge", "nvcr.io/nvidia/nemo-rl"):
            convert_to_megatron(model, tmp_path / "made")
        assert list(tmp_path.iterdir()) == []

    def test_a_named_python_must_be_there(self, model, tmp_path, monkeypatch):
        monkeypatch.setenv("MEGATRON_PYTHON", str(tmp_path / "python"))
        with refusal("nemo-rl.no-megatron-bridge", "MEGATRON_PYTHON is "):
            convert_to_megatron(model, tmp_path / "made")

    def test_what_a_failing_one_said_is_shown_and_nothing_is_left(
        self, model, tmp_path, monkeypatch
    ):
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho no module called megatron >&2\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setenv("MEGATRON_PYTHON", str(python))
        with refusal("megatron.bridge-failure", "no module called megatron"):
            convert_to_megatron(model, tmp_path / "made")
        assert list(tmp_path.iterdir()) == [python]

    def test_a_step_comes_there_as_a_model_of_hugging_face_s(self, step, model, monkeypatch):
        (folder, weights), tmp_path = step, step[0].parent / "new"
        dcp.save(weights_of(model), checkpoint_id=weights)
        tmp_path.mkdir()
        python = tmp_path / "python"
        look = 'for word in "$@"; do [ -f "$word/model.safetensors" ] && echo it is there >&2; done'
        python.write_text(f"#!/bin/sh\n{look}\nexit 1\n")
        python.chmod(0o755)
        monkeypatch.setenv("MEGATRON_PYTHON", str(python))
        with refusal("megatron.bridge-failure", "it is there"):
            convert_to_megatron(folder, tmp_path / "made")
        assert list(tmp_path.iterdir()) == [python]

    def test_it_is_found_where_nemo_rl_keeps_its_workers(self, tmp_path, monkeypatch):
        from equipoise.files.nemo_rl import find_megatron_python

        worker = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
        python = tmp_path / worker / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        monkeypatch.delenv("MEGATRON_PYTHON", raising=False)
        monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
        assert find_megatron_python() == python


def test_an_adapter_is_not_kept_on_the_way_to_megatron():
    options = read_options(ConvertOptions, ["a", "b", "--to", "megatron", "--adapter"])
    with refusal("convert.exclusive-options"):
        run(options, Reporter())
    assert read_options(ConvertOptions, ["a", "b"]).to == "hf"
