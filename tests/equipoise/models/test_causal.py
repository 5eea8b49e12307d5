from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoTokenizer

from data_prep.model_identity import model_identity
from equipoise.errors import EquipoiseError
from equipoise.models.causal import identity_of, load_model


def failing_with(cause: Exception | None, text: str):
    def from_pretrained(name, **_):
        raise OSError(text) from cause

    return from_pretrained


@pytest.mark.parametrize(
    ("cause", "text", "said"),
    [
        (GatedRepoError.__new__(GatedRepoError), "403 Client Error", "Accept its licence"),
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), "404", "there is no model"),
        (None, "no network\nlong explanation", "cannot be loaded: no network"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_clear_message(monkeypatch, cause, text, said) -> None:
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", failing_with(cause, text))
    with pytest.raises(EquipoiseError, match=said) as error:
        load_model("some/model", "some/model", dtype=torch.float32, device=torch.device("cpu"))
    assert "some/model" in str(error.value)
    assert "long explanation" not in str(error.value)


def test_a_tokenizer_from_elsewhere_makes_another_policy(tmp_path: Path) -> None:
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    for folder, text in ((model, "weights"), (tokenizer, "one template")):
        folder.mkdir()
        (folder / "chat_template.jinja").write_text(text)
    alone = identity_of(str(model), str(model))
    assert alone == model_identity(str(model))
    both = identity_of(str(model), str(tokenizer))
    (tokenizer / "chat_template.jinja").write_text("another template")
    assert len({alone, both, identity_of(str(model), str(tokenizer))}) == 3
