"""A conversion is checked, and the output names each check that was left out."""

import json

from equipoise.checkpoints import verify
from equipoise.checkpoints.convert import convert
from tests.equipoise.checkpoints.samples import change_json, conversion
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
