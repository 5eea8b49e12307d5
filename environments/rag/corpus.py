"""An index folder, and the words that search, defects and the extractive reader count.

    manifest.json     schema, corpus hash, tokenizer, encoder, and the size of every other file
    passages.jsonl    one passage per line: {"id": ..., "title": ..., "text": ...}
    offsets.npy       where each line begins, and where the last one ends, int64 [P + 1]
    bm25/             what bm25s saves
    vectors.npy       the passages' vectors, float32 [P, D]; only with an encoder

`data_prep.rag.build_index` writes it. Everything large is memory-mapped.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from environments.base import CodedError

#: Changes with the tokens that a text gives, so that an index made by another version is refused.
TOKENIZER_VERSION = "words-1"

_STOPWORDS = frozenset(STOPWORDS_EN)
_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of a text in order: runs of letters and digits in lower case, no stop words.

    Single letters stay, since "vitamin C" and "hepatitis B" differ by them. Nothing is stemmed.
    """
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOPWORDS]


@lru_cache(maxsize=32_768)
def word_set(text: str) -> frozenset[str]:
    """The distinct words of a text; passages come back step after step, so they are kept."""
    return frozenset(words_of(text))


SCHEMA = 1
MANIFEST, PASSAGES, OFFSETS = "manifest.json", "passages.jsonl", "offsets.npy"
BM25_FOLDER, VECTORS = "bm25", "vectors.npy"


class UnusableIndexError(CodedError, ValueError):
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
    """Read the manifest of an index and hold its files to it. Raises `UnusableIndexError`."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnusableIndexError(
            "index.no-folder", f"there is no index in {folder}: {error.strerror}"
        ) from None
    except ValidationError:
        raise UnusableIndexError(
            "index.damaged-manifest", f"{path} is damaged: build the index again"
        ) from None
    if (manifest.schema_version, manifest.tokenizer) != (SCHEMA, TOKENIZER_VERSION):
        raise UnusableIndexError(
            "index.other-version",
            f"the index in {folder} was built by another version of Equipoise: build it again",
        )
    for name, size in manifest.files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise UnusableIndexError(
                "index.damaged-file",
                f"{folder / name} is missing or cut off: build the index again",
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
