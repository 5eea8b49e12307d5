"""NeMo-RL's checkpoints on the disk: which is the newest, and which converter takes it."""

import pytest

from equipoise.train.nemo_rl.checkpoints import (
    how_to_convert,
    latest_checkpoint,
    seal_newest,
    usable_checkpoint,
)
from tests.refusals import refusal


def checkpoint(folder, name, weights):
    step = folder / name
    (step / "policy" / "weights" / weights).mkdir(parents=True)
    (step / "training_info.json").write_text("{}")
    return step / "policy" / "weights" / weights


def test_the_newest_complete_one_counts(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for name in ("step_2", "step_10", "tmp_step_12", "step_best"):
        checkpoint(tmp_path, name, "model")
    checkpoint(tmp_path, "step_11", "model")
    (tmp_path / "step_11" / "training_info.json").unlink()
    assert latest_checkpoint(tmp_path).step == 10


def sealed(folder, *steps):
    """As NeMo-RL saves them one after the other while we follow."""
    for step in steps:
        weights = checkpoint(folder, f"step_{step}", "model")
        (weights / "adapter_model.safetensors").write_bytes(b"weights")
        seal_newest(folder, step)


def test_a_damaged_one_is_hidden_from_nemo_rl_which_takes_the_newest(tmp_path):
    sealed(tmp_path, 2, 4)
    weights = tmp_path / "step_4" / "policy" / "weights" / "model" / "adapter_model.safetensors"
    weights.write_bytes(b"weighty")
    said = []
    assert usable_checkpoint(tmp_path, 4, said.append).step == 2
    assert "adapter_model.safetensors was changed since it was written; step 2" in said[0]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["damaged-step_4", "step_2"]


def test_one_without_its_mark_is_damaged_for_nemo_rl_would_take_it(tmp_path):
    sealed(tmp_path, 2, 4)
    (tmp_path / "step_4" / "training_info.json").unlink()
    assert usable_checkpoint(tmp_path, 4, print).step == 2
    assert not (tmp_path / "step_4").exists()


def test_one_whose_process_died_before_it_was_sealed_is_taken(tmp_path):
    sealed(tmp_path, 2)
    checkpoint(tmp_path, "step_4", "model")
    assert usable_checkpoint(tmp_path, 4, pytest.fail).step == 4


def test_one_whose_step_the_history_lacks_is_not(tmp_path):
    """NeMo-RL saves before it logs, and a kill may come between the two."""
    sealed(tmp_path, 2)
    checkpoint(tmp_path, "step_4", "model")
    seal_newest(tmp_path, 3)
    said = []
    assert usable_checkpoint(tmp_path, 3, said.append).step == 2
    assert "the step is taken again" in said[0]
    assert not (tmp_path / "step_4").exists()


def test_where_none_is_whole_nemo_rl_is_not_started(tmp_path):
    sealed(tmp_path, 2, 4)
    for step in (2, 4):
        (tmp_path / f"step_{step}" / "training_info.json").write_text('{"step": 9}')
    with refusal("resume.no-whole-checkpoint"):
        usable_checkpoint(tmp_path, 4, print)
    assert usable_checkpoint(tmp_path / "none", 0, pytest.fail) is None


@pytest.mark.parametrize(
    ("layout", "lora", "expected"),
    [
        (
            "iter_0000000",
            True,
            "--extra mcore python examples/converters/convert_lora_to_hf.py --adapter-only "
            "--base-ckpt "
            "${NRL_MEGATRON_CHECKPOINT_DIR:-${HF_HOME:-$HOME/.cache/huggingface}/nemo_rl}"
            "/org/base/iter_0000000 "
            "--adapter-ckpt {weights}/iter_0000000 --hf-model-name org/base --hf-ckpt-path {out}",
        ),
        (
            "iter_0000000",
            False,
            "--extra mcore python examples/converters/convert_megatron_to_hf.py "
            "--config {step}/config.yaml --megatron-ckpt-path {weights}/iter_0000000 "
            "--hf-ckpt-path {out}",
        ),
        (
            "model",
            False,
            "python examples/converters/convert_dcp_to_hf.py --config {step}/config.yaml "
            "--dcp-ckpt-path {weights} --hf-ckpt-path {out}",
        ),
    ],
)
def test_nemo_rl_has_a_converter_for_each_of_its_backends(layout, lora, expected, tmp_path):
    checkpoint(tmp_path, "step_1", layout)
    newest, out = latest_checkpoint(tmp_path), tmp_path / "out"
    weights = newest.path / "policy" / "weights"
    for name, path in {"weights": weights, "step": newest.path, "out": out}.items():
        expected = expected.replace(f"{{{name}}}", str(path))
    assert how_to_convert(newest, out, "org/base", lora=lora) == f"uv run {expected}"
