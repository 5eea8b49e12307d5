"""An index folder: passages on disk, what was built from which corpus, and how it is opened.

    manifest.json     schema, corpus hash, tokenizer, encoder, and the size of every other file
    passages.jsonl    one passage per line: {"id": ..., "title": ..., "text": ...}
    offsets.npy       where each line begins, and where the last one ends, int64 [P + 1]
    bm25/             what bm25s saves
    vectors.npy       the passages' vectors, float32 [P, D]; only with an encoder

`data_prep.rag.build_index` writes it. Everything large is memory-mapped.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from environments.rag.words import TOKENIZER_VERSION

SCHEMA = 1
MANIFEST, PASSAGES, OFFSETS = "manifest.json", "passages.jsonl", "offsets.npy"
BM25_FOLDER, VECTORS = "bm25", "vectors.npy"


class UnusableIndexError(ValueError):
    """An index folder that is missing, damaged, or built from something else."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One document of the corpus."""

    id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """The text for index, encoder and reader: title, then text."""
        return f"{self.title}. {self.text}" if self.title else self.text


class Manifest(BaseModel, extra="forbid", frozen=True):
    """manifest.json. `encoder` is the identity of what made vectors.npy."""

    schema_version: int = SCHEMA
    corpus: str
    passages: int
    tokenizer: str
    encoder: str | None = None
    files: dict[str, int]

    @property
    def identity(self) -> str:
        """The index's name in caches and provenance."""
        parts = json.dumps([self.corpus, self.tokenizer, self.encoder])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index whose files are as it says. Raises `UnusableIndexError`."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnusableIndexError(f"there is no index in {folder}: {error.strerror}") from None
    except ValidationError:
        raise UnusableIndexError(f"{path} is damaged: build the index again") from None
    if (manifest.schema_version, manifest.tokenizer) != (SCHEMA, TOKENIZER_VERSION):
        raise UnusableIndexError(
            f"the index in {folder} was built by another version of Equipoise: build it again"
        )
    for name, size in manifest.files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise UnusableIndexError(
                f"{folder / name} is missing or cut off: build the index again"
            )
    return manifest


class Corpus:
    """The passages of an index, by number; only those that are asked for are read."""

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        self._lines = np.memmap(folder / PASSAGES, dtype=np.uint8, mode="r")
        self._offsets: NDArray[np.int64] = np.load(folder / OFFSETS, mmap_mode="r")

    def __len__(self) -> int:
        return self.manifest.passages

    def __getitem__(self, number: int) -> Passage:
        start, end = self._offsets[number : number + 2]
        fields: dict[str, Any] = json.loads(self._lines[start:end].tobytes())
        return Passage(fields["id"], fields["title"], fields["text"])
