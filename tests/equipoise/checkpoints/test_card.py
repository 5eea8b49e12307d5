"""The model card of a conversion says what is known of it, and claims nothing."""

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from equipoise.checkpoints.convert import convert, write_card
from equipoise.checkpoints.sources import open_source
from tests.equipoise.checkpoints.samples import save_adapter


def card_of(folder):
    return ModelCard.load(folder / "README.md")


def test_of_a_model(model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    convert(model, tmp_path / "out")
    card = card_of(tmp_path / "out")
    assert "Converted, not evaluated here" in card.text
    assert "**Source:** `a model of Hugging Face's`" in card.text
    assert "**Base:** not known" in card.text
    assert "loads and answers" in card.text
    assert str(model.parent) not in card.text
    assert card.data.library_name == "transformers"
    assert not card.data.base_model and not card.data.eval_results


@pytest.mark.parametrize("keep", [False, True])
def test_of_an_adapter(keep, model, tmp_path):
    save_adapter(model, tmp_path / "a", target_modules=["q_proj"])
    base = shutil.copytree(model, tmp_path / "base")
    (tmp_path / "a" / "README.md").write_text("accuracy: 0.99")
    (base / "README.md").write_text("the best model there is")
    convert(tmp_path / "a", tmp_path / "out", base=str(base), keep_adapter=keep)
    card = card_of(tmp_path / "out")
    assert card.data.library_name == ("peft" if keep else "transformers")
    assert "0.99" not in card.text and "the best" not in card.text
    write_card(open_source(tmp_path / "a"), tmp_path, "org/base", "", merged=not keep)
    data, relation = card_of(tmp_path).data, "adapter" if keep else "finetune"
    assert (data.base_model, data.base_model_relation) == ("org/base", relation)


def test_text_of_others_is_shown_as_it_is(model, tmp_path):
    source = replace(open_source(model), kind="`<b>\n# bold\x1b")
    write_card(source, tmp_path, "evil`\n# Base", "/home/someone/config.json")
    text = card_of(tmp_path).text
    assert "`'<b> # bold`" in text and "`evil' # Base`" in text
    assert "/home/someone" not in text and "`config.json`" in text
