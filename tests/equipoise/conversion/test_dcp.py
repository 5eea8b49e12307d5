"""Folders of torch.distributed.checkpoint, whole, damaged and hostile."""

import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

from equipoise.conversion.dcp import dcp_tensors, layered_tensors
from equipoise.conversion.tensors import ConversionError

STATE = {
    "a.layers.x": torch.arange(24.0).reshape(2, 3, 4),
    "b": torch.arange(6, dtype=torch.bfloat16),
}


@pytest.fixture
def folder(tmp_path):
    dcp.save(STATE, checkpoint_id=tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_reads_what_torch_wrote(folder):
    tensors = dcp_tensors(folder)
    assert tensors.keys() == STATE.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.read(), STATE[name])
        assert (tensor.shape, tensor.dtype) == (tuple(STATE[name].shape), STATE[name].dtype)


def test_a_stack_is_a_tensor_for_each_layer(folder):
    tensors = layered_tensors(folder)
    assert tensors.keys() == {"a.layers.0.x", "a.layers.1.x", "b"}
    for number in (0, 1):
        layer = tensors[f"a.layers.{number}.x"]
        assert torch.equal(layer.read(), STATE["a.layers.x"][number])
        assert layer.shape == (3, 4)


def test_a_file_that_is_missing_or_cut_off(folder):
    file = next(folder.glob("*.distcp"))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConversionError, match=rf"{file.name} is cut off within"):
        dcp_tensors(folder)
    file.unlink()
    with pytest.raises(ConversionError, match=rf"{file.name} is missing; .* is in it"):
        dcp_tensors(folder)


def test_a_chunk_that_is_damaged(folder):
    file = next(folder.glob("*.distcp"))
    file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(ConversionError, match="b cannot be read"):
        dcp_tensors(folder)["b"].read()


def test_a_record_that_is_damaged(folder):
    record = folder / ".metadata"
    for data in (b"", b"nonsense", record.read_bytes()[:40], pickle.dumps({"no": "record"})):
        record.write_bytes(data)
        with pytest.raises(ConversionError, match=r"\.metadata is"):
            dcp_tensors(folder)


class Command:
    """What a hostile file asks a reader to run."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        return os.system, (f"touch {self.touched}",)


def test_runs_nothing(folder, tmp_path):
    record = folder / ".metadata"
    touched = tmp_path / "ran"
    with record.open("rb") as stream:
        metadata = pickle.load(stream)
    record.write_bytes(pickle.dumps(Command(touched)))
    with pytest.raises(ConversionError):
        dcp_tensors(folder)
    assert not touched.exists()
    file = next(folder.glob("*.distcp"))
    place = next(p for i, p in metadata.storage_data.items() if i.fqn == "b")
    data = bytearray(file.read_bytes())
    place.offset, place.length = len(data), 0
    torch.save(Command(touched), folder / "bad")
    bad = (folder / "bad").read_bytes()
    place.length = len(bad)
    file.write_bytes(bytes(data) + bad)
    with record.open("wb") as stream:
        pickle.dump(metadata, stream)
    with pytest.raises(ConversionError, match="b cannot be read"):
        dcp_tensors(folder)["b"].read()
    assert not touched.exists()


def test_a_record_does_not_lead_out_of_its_folder(folder, tmp_path):
    record = folder / ".metadata"
    with record.open("rb") as stream:
        metadata = pickle.load(stream)
    for place in metadata.storage_data.values():
        place.relative_path = f"../{place.relative_path}"
    with record.open("wb") as stream:
        pickle.dump(metadata, stream)
    next(folder.glob("*.distcp")).rename(tmp_path / "__0_0.distcp")
    with pytest.raises(ConversionError, match="which is no file of its folder"):
        dcp_tensors(folder)
