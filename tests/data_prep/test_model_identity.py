"""The contents of a model decide its identity."""

import os
from pathlib import Path

import pytest

from data_prep import hub as module
from data_prep.hub import model_identity


def folder_of(path: Path, **files: str) -> str:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "pytorch_model.bin", "config.json", "chat_template.jinja"),
        *("tokenizer.json", "tokenizer.model", "vocab.txt", "merges.txt", "part/model.safetensors"),
    ],
)
def test_what_decides_an_answer_decides_the_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "part").mkdir()
    seen = {model_identity(str(tmp_path))}
    for text in ("one", "two", "three and more"):
        (tmp_path / name).write_text(text)
        seen.add(model_identity(str(tmp_path)))
    assert len(seen) == 4


def test_a_file_is_read_once_unless_it_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, model__safetensors="weights")
    read: list[str] = []
    digest = module.hashlib.file_digest
    monkeypatch.setattr(
        module.hashlib,
        "file_digest",
        lambda file, kind: read.append(file.name) or digest(file, kind),
    )
    first = model_identity(folder)
    assert model_identity(folder) == first
    assert len(read) == 1
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert model_identity(folder) == first
    assert len(read) == 2
