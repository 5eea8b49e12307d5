"""What is checked of a conversion, and what is said where it was not."""

import json
import os

import torch
from transformers import AutoModelForCausalLM

from equipoise.checkpoints import verify, writer
from equipoise.checkpoints.to_hugging_face import convert
from equipoise.terminal.console import Reporter
from tests.equipoise.checkpoints.samples import same, weights_of
from tests.refusals import refusal


def record(folder):
    return json.loads((folder / "conversion.json").read_text())["checked"]


def change(path, **changes):
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | changes))


def test_without_it_nothing_is_read_back_or_loaded_and_that_is_said(
    model, tmp_path, monkeypatch, capsys
):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(os, "preadv", never)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", never)
    convert(model, tmp_path / "out", Reporter(), verify=False)
    assert same(weights_of(tmp_path / "out"), weights_of(model))
    checked = record(tmp_path / "out")
    assert (checked["read_back"], checked["loads"]) == (False, False)
    assert "as --no-verify says" in checked["unchecked"][0]
    assert "not checked: the written bytes" in capsys.readouterr().out


def test_a_model_that_does_not_fit_is_not_loaded_and_that_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "free_memory", lambda: 10**6)
    convert(model, tmp_path / "out", Reporter())
    checked = record(tmp_path / "out")
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
        names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in ("k", "v")]
        first, second = (tensors[name] for name in names)
        others = dict(zip(reversed(names), (first, second), strict=True))
        return header(
            {others_name(name, names): others.get(name, t) for name, t in tensors.items()}
        )

    def others_name(name, names):
        return names[1 - names.index(name)] if name in names else name

    monkeypatch.setattr(writer, "_header", swapped)
    with refusal("writer.other-header"):
        convert(model, tmp_path / "out", Reporter())


def test_other_weights_in_memory_than_on_the_disk_are_seen(model, tmp_path, monkeypatch):
    load = verify.load_whole

    def changed(folder, dtype):
        loaded = load(folder, dtype)
        with torch.no_grad():
            loaded.model.norm.weight[3] += 1
        return loaded

    monkeypatch.setattr(verify, "load_whole", changed)
    with refusal("verify.other-weights", "model.norm.weight"):
        convert(model, tmp_path / "out", Reporter())


def test_a_tokenizer_that_does_not_load_is_seen_before_anything_is_written(source, tmp_path):
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with refusal("verify.unloadable-companion"):
        convert(source, tmp_path / "out", Reporter())
    assert not (tmp_path / "out").exists()


def test_code_of_others_is_neither_copied_nor_named(source, tmp_path):
    (source / "modeling_own.py").write_text("raise SystemExit('ran')")
    code = {"AutoConfig": "modeling_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    change(source / "config.json", auto_map=code, architectures=["OwnModel"])
    convert(source, tmp_path / "out", Reporter())
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "auto_map" not in made
    assert made["architectures"] == ["LlamaForCausalLM"]
    assert not list((tmp_path / "out").glob("*.py"))
