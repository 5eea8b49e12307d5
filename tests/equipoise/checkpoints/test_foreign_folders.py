"""Folders of others: whatever they hold, one line says what is wrong, and soon."""

import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import save_file

from equipoise.checkpoints import lora, verify
from equipoise.checkpoints.convert import convert
from tests.equipoise.checkpoints.samples import (
    change_config,
    change_json,
    refused,
    same,
    save_adapter,
    weights_of,
)
from tests.equipoise.sealing import seal_run
from tests.refusals import holds, refusal

#: No module's name ends so, which is seen when every way to cut the name was tried.
ENDLESS = r"(.*.*.*.*)*!"


class TestConfigurations:
    """More of them in tests/equipoise/run/test_foreign.py, for the same functions."""

    @pytest.mark.parametrize("text", ["", "NaN"])
    def test_no_object(self, text, source, tmp_path):
        (source / "config.json").write_text(text)
        assert "config.json" in refused(source, tmp_path / "out")

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"rope_parameters": {"rope_type": "wobbly", "rope_theta": 1.0}}, "wobbly"),
            ({"model_type": "nope"}, "nope"),
            ({"model_type": [5]}, "unhashable"),
            ({"hidden_size": 10**30}, "config.json"),
            ({"num_labels": 10**12}, "num_labels 1,000,000,000,000"),
            ({"text_config": {"num_experts": 10**9}}, "num_experts 1,000,000,000"),
        ],
    )
    def test_other_values(self, changes, told, source, tmp_path):
        change_json(source / "config.json", **changes)
        before = time.process_time()
        weights = source / "model.safetensors"
        save_adapter_of(weights_of(source), tmp_path / "adapter", source)
        assert told in refused(source, tmp_path / "out")
        assert told in refused(tmp_path / "adapter", tmp_path / "out")
        assert weights.exists()
        assert time.process_time() - before < 60


def save_adapter_of(weights, folder, base):
    """An adapter of one weight, written without loading its base."""
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    rows, columns = weights["model.layers.0.self_attn.q_proj.weight"].shape
    factors = {"A": torch.ones(2, columns), "B": torch.ones(rows, 2)}
    save_file(
        {f"{name}.lora_{x}.weight": tensor for x, tensor in factors.items()},
        folder / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


class TestOtherFiles:
    @pytest.mark.parametrize(
        "text", ["[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 5}}']
    )
    def test_an_index(self, text, source, tmp_path):
        (source / "model.safetensors").unlink()
        (source / "model.safetensors.index.json").write_text(text)
        assert "model.safetensors.index.json" in refused(source, tmp_path / "out")

    def test_a_file_that_is_too_large_to_be_read(self, source, tmp_path):
        with (source / "tokenizer.json").open("wb") as file:
            file.truncate(2**40)  # a hole, of which the disk has nothing
        assert holds(refused(source, tmp_path / "out"), "model.oversize-file | 1,099,511,627,776")


class TestLinks:
    @pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "other"])
    def test_one_that_leads_out_is_not_followed(self, name, source, tmp_path):
        (source / name).symlink_to("/proc/self/environ")
        assert f"{source / name} is a link" in refused(source, tmp_path / "out")

    def test_nor_one_of_the_base(self, model, source, tmp_path):
        save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
        (source / "chat_template.jinja").symlink_to("/proc/self/environ")
        assert holds(refused(tmp_path / "a", tmp_path / "out", source), "model.link-outside")

    def test_nor_one_to_a_folder_or_in_a_run(self, model, source, tmp_path):
        (source / "below").symlink_to("/etc")
        assert "is a link" in refused(source, tmp_path / "out")
        run = tmp_path / "run"
        run.mkdir()
        (run / "final_checkpoint").symlink_to(model)
        seal_run(run)
        assert "is a link" in refused(run, tmp_path / "out")

    def test_nor_a_pipe_or_a_link_to_nothing(self, source, tmp_path):
        os.mkfifo(source / "tokenizer.json")
        assert holds(refused(source, tmp_path / "out"), "model.special-file")
        (source / "tokenizer.json").unlink()
        (source / "tokenizer.json").symlink_to(source / "tokenizer.json")
        assert holds(refused(source, tmp_path / "out"), "model.unreadable-entry")

    def test_those_of_the_hub_s_cache_are(self, model, tmp_path):
        snapshot = tmp_path / "models--a--b" / "snapshots" / "1234"
        blobs = tmp_path / "models--a--b" / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for file in model.iterdir():
            shutil.copy(file, blobs / f"hash-of-{file.name}")
            (snapshot / file.name).symlink_to(f"../../blobs/hash-of-{file.name}")
        convert(snapshot, tmp_path / "out")
        assert same(weights_of(tmp_path / "out"), weights_of(model))
        (blobs / "environ").symlink_to("/proc/self/environ")
        (snapshot / "chat_template.jinja").symlink_to("../../blobs/environ")
        assert holds(refused(snapshot, tmp_path / "again"), "model.link-outside")


class TestPatterns:
    """Python's engine would go on for years."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"rank_pattern": {ENDLESS: 4}},
            {"alpha_pattern": {ENDLESS: 4}},
            {"target_modules": ENDLESS},
            {"exclude_modules": ENDLESS},
            {"modules_to_save": [ENDLESS]},
            {"target_modules": ["up_proj"], "layers_to_transform": [0], "layers_pattern": ENDLESS},
        ],
    )
    def test_have_a_limit(self, changes, model, tmp_path, monkeypatch):
        monkeypatch.setattr(lora, "_PATTERN_SECONDS", 0.5)
        save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
        change_config(tmp_path / "a", **changes)
        before = time.process_time()
        assert holds(refused(tmp_path / "a", tmp_path / "out"), "lora.slow-pattern | 0.5")
        assert time.process_time() - before < 30


def test_logits_that_are_not_numbers():
    logits = torch.ones((2, 16, 61), dtype=torch.bfloat16)
    with refusal("verify.other-logits"):
        verify.difference(torch.full_like(logits, torch.nan), logits)
