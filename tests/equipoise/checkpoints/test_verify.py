"""A conversion is checked, and the output names each check that was left out."""

import json
import os
import shutil

import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

from equipoise.checkpoints import verify, writer
from equipoise.checkpoints.to_hugging_face import convert
from tests.equipoise.checkpoints.samples import change_json, conversion, refused, same, weights_of
from tests.refusals import holds, refusal


def test_without_it_nothing_is_read_back_or_loaded_and_that_is_said(
    model, tmp_path, monkeypatch, capsys
):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(os, "preadv", never)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", never)
    convert(model, tmp_path / "out", verify=False)
    assert same(weights_of(tmp_path / "out"), weights_of(model))
    checked = conversion(tmp_path / "out")
    assert (checked["read_back"], checked["loads"]) == (False, False)
    assert "as --no-verify says" in checked["unchecked"][0]
    assert "not checked: the written bytes" in capsys.readouterr().out


def test_a_model_that_does_not_fit_is_not_loaded_and_that_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "free_memory", lambda: 10**6)
    convert(model, tmp_path / "out")
    checked = conversion(tmp_path / "out")
    assert checked["read_back"]
    assert not checked["loads"]
    assert "and 1.0 MB are free" in checked["unchecked"][-1]


def test_limits_of_control_groups_count(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.stat").write_text("anon 3000000\nfile 1900000\nshmem 500000\n")
    assert verify.free_memory() == 1_500_000


def test_names_in_the_wrong_order_are_seen(model, tmp_path, monkeypatch):
    header = writer._header

    def swapped(tensors):
        k, v = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "kv")
        return header({{k: v, v: k}.get(name, name): tensor for name, tensor in tensors.items()})

    monkeypatch.setattr(writer, "_header", swapped)
    with refusal("writer.other-header"):
        convert(model, tmp_path / "out")


def test_other_weights_in_memory_than_on_the_disk_are_seen(model, tmp_path, monkeypatch):
    load = verify.load_whole

    def changed(folder, dtype):
        loaded = load(folder, dtype)
        with torch.no_grad():
            loaded.model.norm.weight[3] += 1
        return loaded

    monkeypatch.setattr(verify, "load_whole", changed)
    with refusal("verify.other-weights", "model.norm.weight"):
        convert(model, tmp_path / "out")


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


# --- a byte that has changed since it was written ends a conversion, whatever wrote it -----------

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
    convert(model, tmp_path / "made")
    file = tmp_path / "made" / "model.safetensors"
    flip(file, numbers(weights_of(model)[NORM]))
    message = refused(tmp_path / "made", tmp_path / "out")
    assert f"{file} is not what conversion.json says was written" in message


def test_what_was_not_checked_is_said(step, model, tmp_path):
    folder, weights = step
    convert(model, tmp_path / "plain")
    dcp.save(weights_of(model), checkpoint_id=weights)
    convert(folder, tmp_path / "sums")
    said = {name: conversion(tmp_path / name)["unchecked"] for name in ("plain", "sums")}
    untold = "whether the source is as it was written: no checksum of its kind is read"
    assert untold in said["plain"]
    assert untold not in said["sums"]
