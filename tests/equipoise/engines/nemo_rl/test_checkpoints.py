"""NeMo-RL's checkpoints on the disk: which is the newest, and which model can be taken out."""

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from equipoise.engines.nemo_rl.checkpoints import (
    export_model,
    how_to_convert,
    latest_checkpoint,
    seal_newest,
    usable_checkpoint,
)
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


def sealed(folder, *steps):
    """As NeMo-RL saves them one after the other while we follow."""
    for step in steps:
        weights = checkpoint(folder, f"step_{step}", "model")
        (weights / "adapter_model.safetensors").write_bytes(b"weights")
        seal_newest(folder)


def test_a_damaged_one_is_hidden_from_nemo_rl_which_takes_the_newest(tmp_path):
    sealed(tmp_path, 2, 4)
    weights = tmp_path / "step_4" / "policy" / "weights" / "model" / "adapter_model.safetensors"
    weights.write_bytes(b"weighty")
    said = []
    assert usable_checkpoint(tmp_path, said.append).step == 2
    assert "adapter_model.safetensors was changed since it was written; step 2" in said[0]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["damaged-step_4", "step_2"]


def test_one_without_its_mark_is_damaged_for_nemo_rl_would_take_it(tmp_path):
    sealed(tmp_path, 2, 4)
    (tmp_path / "step_4" / "training_info.json").unlink()
    assert usable_checkpoint(tmp_path, print).step == 2
    assert not (tmp_path / "step_4").exists()


def test_one_whose_process_died_before_it_was_sealed_is_taken(tmp_path):
    sealed(tmp_path, 2)
    checkpoint(tmp_path, "step_4", "model")
    assert usable_checkpoint(tmp_path, pytest.fail).step == 4


def test_where_none_is_whole_nemo_rl_is_not_started(tmp_path):
    sealed(tmp_path, 2, 4)
    for step in (2, 4):
        (tmp_path / f"step_{step}" / "training_info.json").write_text('{"step": 9}')
    with pytest.raises(EquipoiseError, match="no checkpoint is whole"):
        usable_checkpoint(tmp_path, print)
    assert usable_checkpoint(tmp_path / "none", pytest.fail) is None


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


def test_shards_are_put_together_bit_by_bit(tmp_path):
    """Written by torch's own sharded writer; a real run's are in the contract tests."""
    weights = checkpoint(tmp_path, "step_1", "model")
    whole = {"a": torch.arange(12.0).reshape(4, 3), "b": torch.arange(5, dtype=torch.bfloat16)}
    mp.spawn(write_shards, (whole, str(weights), str(tmp_path / "meeting")), nprocs=2)
    (weights / ".hf_metadata").mkdir()
    (weights / ".hf_metadata" / "config.json").write_text("{}")
    mapping = {"a": 1, "b": 2}
    (weights / ".hf_metadata" / "fqn_to_file_index_mapping.json").write_text(json.dumps(mapping))
    assert export_model(latest_checkpoint(tmp_path), tmp_path / "out", "org/base")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    }
    for name, file in mapping.items():
        joined = load_file(tmp_path / "out" / f"model-0000{file}-of-00002.safetensors")
        assert joined.keys() == {name}
        assert joined[name].dtype == whole[name].dtype
        assert torch.equal(joined[name], whole[name])


def write_shards(rank, whole, folder, meeting):
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in whole.items()}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(folder, save_distributed=True))
    dist.destroy_process_group()


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
def test_other_weights_name_their_converter_and_leave_nothing(layout, lora, expected, tmp_path):
    checkpoint(tmp_path, "step_1", layout)
    newest, out = latest_checkpoint(tmp_path), tmp_path / "out"
    assert not export_model(newest, out, "org/base")
    assert not out.exists()
    for name, path in {"weights": newest.weights, "step": newest.path, "out": out}.items():
        expected = expected.replace(f"{{{name}}}", str(path))
    assert how_to_convert(newest, out, "org/base", lora=lora) == f"uv run {expected}"
