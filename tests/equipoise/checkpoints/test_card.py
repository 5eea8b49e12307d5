"""The model card of a conversion says what is known of it, and claims nothing."""

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from equipoise.checkpoints.sources import open_source
from equipoise.checkpoints.to_hugging_face import convert
from equipoise.checkpoints.writer import write_card
from equipoise.terminal.console import Reporter
from tests.equipoise.checkpoints.samples import save_adapter


def card_of(folder):
    return ModelCard.load(folder / "README.md")


def test_of_a_model(model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    convert(model, tmp_path / "out", Reporter())
    card = card_of(tmp_path / "out")
    assert "Converted, not evaluated here" in card.text
    assert f"**Source:** `{model.name}`, `a model of Hugging Face's`" in card.text
    assert "**Base:** not known" in card.text
    assert "every byte read back" in card.text and "`conversion.json`" in card.text
    assert str(model.parent) not in card.text
    assert card.data.library_name == "transformers"
    assert not card.data.base_model and not card.data.eval_results


def test_of_a_merged_adapter(model, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    (tmp_path / "a" / "README.md").write_text("accuracy: 0.99")
    base = shutil.copytree(model, tmp_path / "base")
    (base / "README.md").write_text("the best model there is")
    convert(tmp_path / "a", tmp_path / "out", Reporter(), base=str(base))
    text = card_of(tmp_path / "out").text
    assert "merging the LoRA adapter into its base" in text
    assert "**Base:** `base`" in text
    assert "0.99" not in text and "the best" not in text
    assert "describes the source and was not copied" in text


def test_of_an_adapter_that_stays_one(model, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    convert(tmp_path / "a", tmp_path / "out", Reporter(), keep_adapter=True)
    card = card_of(tmp_path / "out")
    assert "in PEFT's form" in card.text
    assert card.data.library_name == "peft"
    assert "conversion.json" not in card.text  # there is none


@pytest.mark.parametrize(("merged", "relation"), [(True, "finetune"), (False, "adapter")])
def test_a_base_on_the_hub_is_linked(merged, relation, model, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    source = open_source(tmp_path / "a")
    write_card(source, tmp_path, "org/base", "", merged=merged)
    data = card_of(tmp_path).data
    assert (data.base_model, data.base_model_relation) == ("org/base", relation)


def test_text_of_others_is_shown_as_it_is(model, tmp_path):
    source = replace(open_source(model), kind="`<b>\n# bold\x1b", unsealed=("weights",))
    write_card(source, tmp_path, "evil`\n# Base", "/home/someone/config.json")
    text = card_of(tmp_path).text
    assert "`'<b> # bold`" in text and "`evil' # Base`" in text
    assert "/home/someone" not in text and "`config.json`" in text
    assert "has none for `weights`" in text
