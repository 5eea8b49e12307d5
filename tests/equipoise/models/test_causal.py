from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from transformers import AutoTokenizer

from data_prep.files import hash_folder
from equipoise.errors import EquipoiseError
from equipoise.models.causal import load_model


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


def test_the_hash_of_a_folder_is_that_of_its_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "log.txt").write_text(name)
    assert hash_folder(tmp_path / "a") == hash_folder(tmp_path / "b")
    (tmp_path / "b" / "config.json").write_text("{}")
    assert hash_folder(tmp_path / "a") != hash_folder(tmp_path / "b")
