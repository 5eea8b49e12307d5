from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoTokenizer

from equipoise.files.hub import model_identity
from equipoise.files.pretrained import identity_of
from equipoise.run.model import load_model
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("cause", "text", "said"),
    [
        (GatedRepoError.__new__(GatedRepoError), "403 Client Error", "model.gated | HF_TOKEN"),
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), "404", "model.unknown-name"),
        (None, "no network\nlong explanation", "model.unloadable | no network"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_clear_message(monkeypatch, cause, text, said):
    monkeypatch.setattr("equipoise.files.hub.offline_reason", lambda: None)
    error = OSError(text)
    error.__cause__ = cause
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", Mock(side_effect=error))
    with refusal(said, "some/model") as error:
        load_model("some/model", "some/model", dtype=torch.float32, device=torch.device("cpu"))
    assert "long explanation" not in str(error.value)


def test_a_tokenizer_from_elsewhere_makes_another_policy(tmp_path):
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    for folder, text in ((model, "weights"), (tokenizer, "one template")):
        folder.mkdir()
        (folder / "chat_template.jinja").write_text(text)
    alone = identity_of(str(model), str(model))
    assert alone == model_identity(str(model))
    both = identity_of(str(model), str(tokenizer))
    (tokenizer / "chat_template.jinja").write_text("another template")
    assert len({alone, both, identity_of(str(model), str(tokenizer))}) == 3
