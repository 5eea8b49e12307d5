"""NeMo-RL's checkpoints on the disk: which is the newest, and which model can be taken out."""

import json

import pytest

from equipoise.engines.nemo_rl.checkpoints import export_model, latest_checkpoint
from equipoise.errors import EquipoiseError


def checkpoint(folder, name, weights):
    step = folder / name
    (step / "policy" / "weights" / weights).mkdir(parents=True)
    (step / "policy" / "tokenizer").mkdir()
    (step / "policy" / "tokenizer" / "tokenizer.json").write_text("{}")
    (step / "training_info.json").write_text("{}")
    return step / "policy" / "weights" / weights


def test_the_newest_complete_one_counts(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for name in ("step_2", "step_10", "tmp_step_12", "step_best"):
        checkpoint(tmp_path, name, "model")
    checkpoint(tmp_path, "step_11", "model")
    (tmp_path / "step_11" / "training_info.json").unlink()
    assert latest_checkpoint(tmp_path).step == 10


def test_an_adapter_is_taken_with_the_tokenizer_and_the_name_of_its_base(tmp_path):
    weights = checkpoint(tmp_path, "step_1", "model")
    (weights / "adapter_model.safetensors").write_bytes(b"w")
    (weights / "adapter_config.json").write_text('{"r": 4, "base_model_name_or_path": null}')
    export_model(latest_checkpoint(tmp_path), tmp_path / "out", "org/base")
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == b"w"
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings == {"r": 4, "base_model_name_or_path": "org/base"}


def test_consolidated_weights_are_taken(tmp_path):
    weights = checkpoint(tmp_path, "step_1", "model/consolidated")
    (weights / "model.safetensors").write_bytes(b"w")
    export_model(latest_checkpoint(tmp_path), tmp_path / "out", "org/base")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.safetensors",
        "tokenizer.json",
    }


def test_megatron_weights_say_how_to_go_on_and_leave_nothing(tmp_path):
    checkpoint(tmp_path, "step_1", "iter_0000000")
    with pytest.raises(EquipoiseError, match="training is finished") as caught:
        export_model(latest_checkpoint(tmp_path), tmp_path / "out", "org/base")
    assert "examples/converters" in caught.value.remedy
    assert not (tmp_path / "out").exists()
