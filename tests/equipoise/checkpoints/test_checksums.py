"""A byte that has changed since it was written ends a conversion, whatever wrote it."""

import json
import shutil
import zipfile

import torch
import torch.distributed.checkpoint as dcp

from equipoise.checkpoints.to_hugging_face import convert
from equipoise.terminal.console import Reporter
from tests.equipoise.checkpoints.samples import refused, weights_of
from tests.refusals import holds

NORM = "model.norm.weight"


def flip(path, data: bytes) -> None:
    """Change the last byte of these in a file."""
    content = path.read_bytes()
    at = content.index(data) + len(data) - 1
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def numbers(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_of_a_part_of_a_distributed_checkpoint(step, model, tmp_path):
    folder, weights = step
    dcp.save(weights_of(model), checkpoint_id=weights)
    (file,) = weights.glob("*.distcp")
    flip(file, numbers(weights_of(model)[NORM]))
    message = refused(folder, tmp_path / "out")
    assert f"{file}: {NORM} has another checksum than when it was written" in message


def test_of_torch_s_own_file(model, tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(model / "config.json", old)
    torch.save(weights_of(model), old / "pytorch_model.bin")
    flip(old / "pytorch_model.bin", numbers(weights_of(model)[NORM]))
    assert holds(refused(old, tmp_path / "out"), "verify.other-checksum")


def test_of_a_model_that_was_converted_here(model, tmp_path):
    convert(model, tmp_path / "made", Reporter())
    file = tmp_path / "made" / "model.safetensors"
    flip(file, numbers(weights_of(model)[NORM]))
    message = refused(tmp_path / "made", tmp_path / "out")
    assert f"{file} is not what conversion.json says was written" in message


def test_what_torch_does_not_write_is_no_part(step, model, tmp_path):
    """A compressed entry may be a thousand times the bytes that it has."""
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(model / "config.json", old)
    torch.save(weights_of(model), tmp_path / "plain.bin")
    with zipfile.ZipFile(tmp_path / "plain.bin") as plain:
        entries = {one.filename: plain.read(one) for one in plain.infolist()}
    with zipfile.ZipFile(old / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    message = refused(old, tmp_path / "out")
    assert str(old / "pytorch_model.bin") in message


def test_what_was_not_checked_is_said(step, model, tmp_path):
    folder, weights = step
    convert(model, tmp_path / "plain", Reporter())
    dcp.save(weights_of(model), checkpoint_id=weights)
    convert(folder, tmp_path / "sums", Reporter())
    said = {
        name: json.loads((tmp_path / name / "conversion.json").read_text())["checked"]["unchecked"]
        for name in ("plain", "sums")
    }
    untold = "whether the source is as it was written: no checksum of its kind is read"
    assert untold in said["plain"]
    assert untold not in said["sums"]
