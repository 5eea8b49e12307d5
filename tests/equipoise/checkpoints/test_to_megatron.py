"""Conversion to Megatron without the bridge; with it: tests/contract/test_megatron_bridge.py."""

import pytest
import torch.distributed.checkpoint as dcp

from equipoise.checkpoints.convert import convert_to_megatron
from equipoise.commands.convert import ConvertOptions, run
from equipoise.config.words import read_options
from equipoise.files.console import Reporter
from tests.equipoise.checkpoints.samples import weights_of
from tests.refusals import refusal


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
        from equipoise.config.nemo_rl.installation import find_megatron_python

        worker = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
        python = tmp_path / worker / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        monkeypatch.delenv("MEGATRON_PYTHON", raising=False)
        monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
        assert find_megatron_python() == python


def test_an_adapter_is_not_kept_on_the_way_to_megatron():
    options = read_options(ConvertOptions, ["a", "b", "--to", "megatron", "--adapter"])
    with refusal("merge-lora.exclusive-options"):
        run(options, Reporter())
    assert read_options(ConvertOptions, ["a", "b"]).to == "hf"
