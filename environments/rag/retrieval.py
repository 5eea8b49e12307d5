"""Search: BM25, dense vectors and their fusion, a cache in front, and what the generator reads.

Shapes: Q queries, K hits, P passages, D dimensions.

The folder of an index:

    manifest.json     schema, corpus hash, tokenizer, encoder, and the size of every other file
    passages.jsonl    one passage per line: {"id": ..., "title": ..., "text": ...}
    offsets.npy       where each line begins, and where the last one ends, int64 [P + 1]
    bm25/             what bm25s saves
    vectors.npy       the passages' vectors, float32 [P, D]; only with an encoder

`data_prep.rag.index` writes it. Everything large is memory-mapped.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import bm25s  # type: ignore[import-untyped]
import numpy as np
from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from environments.base import CodedError
from environments.contract import Encoder

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


# --- searches ---------------------------------------------------------------------------------

Hits = NDArray[np.int64]
RetrieverName = Literal["bm25", "dense", "fusion"]

#: The number of a passage that is not there: a query with fewer than K hits is padded with it.
NO_HIT = -1

#: Every how many scores one is looked at for the bound below which no hit can lie.
_STRIDE = 32
#: How deep each of two rankings is read before they are fused.
_FUSION_DEPTH = 50
#: The constant of reciprocal rank fusion (Cormack et al. 2009, doi:10.1145/1571941.1572114).
_RANK_CONSTANT = 60
_CACHED_QUERIES = 200_000
#: How many passages are scored at once: 4 bytes for each of these and each query.
_PASSAGES_AT_ONCE = 16_384


class Retriever(Protocol):
    """Something that can be searched."""

    @property
    def identity(self) -> str:
        """The index and the method: a part of the key of cached results."""

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """The numbers of the best passages for each query, best first, [Q, K]."""


class Bm25:
    """Lucene's BM25 over the words of title and text, by bm25s with memory-mapped scores."""

    def __init__(self, folder: Path) -> None:
        self.identity = f"bm25:{read_manifest(folder).identity}"
        self._index = bm25s.BM25.load(folder / BM25_FOLDER, mmap=True, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """A passage without any word of the query is not a hit. Equal scores go by number."""
        hits = np.full((len(queries), k), NO_HIT, dtype=np.int64)
        for row, query in zip(hits, queries, strict=True):
            token_ids = self._index.get_tokens_ids(words_of(query))
            if token_ids:
                best = top_hits(self._index.get_scores_from_ids(token_ids), k)
                row[: len(best)] = best
        return hits


def top_hits(scores: NDArray[np.float32], k: int) -> Hits:
    """The numbers of the `k` largest positive scores [P], largest first, equal ones by number.

    The k-th largest of a part of the scores is a bound from below for the k-th largest of all, so
    that few are left to sort. (bm25s's own selection partitions all scores, which for the many
    zeros of rare words is ten times as slow as scoring.)
    """
    sampled = scores[::_STRIDE]
    bound = np.partition(sampled, -k)[-k] if len(sampled) >= k else 0
    candidates = np.flatnonzero(scores >= bound if bound > 0 else scores > 0)
    order = np.lexsort((candidates, -scores[candidates]))
    best: Hits = candidates[order[:k]]
    return best


class Dense:
    """Exact search by inner product in the memory-mapped vectors."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        manifest = read_manifest(folder)
        if manifest.encoder != encoder.identity:
            raise UnusableIndexError(
                "index.other-vectors",
                f"the vectors in {folder} were made by {manifest.encoder or 'no encoder'}, "
                f"and queries would be encoded by {encoder.identity}: build the index again with "
                "this encoder",
            )
        self.identity = f"dense:{manifest.identity}"
        self._encoder = encoder
        self._vectors: NDArray[np.float32] = np.load(folder / VECTORS, mmap_mode="r")

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """See `Retriever`; a query without any word has no hit."""
        hits = np.full((len(queries), k), NO_HIT, dtype=np.int64)
        rows = [i for i, query in enumerate(queries) if words_of(query)]
        if rows:
            vectors = self._encoder.encode_queries([queries[i] for i in rows])
            depth = min(k, len(self._vectors))
            hits[rows, :depth] = nearest(vectors.astype(np.float32), self._vectors, depth)
        return hits


def nearest(queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int) -> Hits:
    """Return the numbers of the `k` vectors [P, D] nearest to each query [Q, D] as [Q, k].

    Nearest is the largest inner product, equal ones by number. Passages come in chunks, of which
    a query keeps only what beats its k-th best so far: few scores are left to sort.
    """
    hits = np.full((len(queries), k), NO_HIT, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for start in range(0, len(vectors), _PASSAGES_AT_ONCE):
        products = queries @ vectors[start : start + _PASSAGES_AT_ONCE].T
        for row, product in enumerate(products):
            better = np.flatnonzero(product > scores[row, -1])
            numbers = np.concatenate([hits[row], better + start])
            candidates = np.concatenate([scores[row], product[better]])
            order = np.lexsort((numbers, -candidates))[:k]
            hits[row], scores[row] = numbers[order], candidates[order]
    return hits


class Fusion:
    """Reciprocal rank fusion: a passage gets 1 / (60 + rank) from every ranking that holds it."""

    def __init__(self, *retrievers: Retriever) -> None:
        self.identity = "+".join(retriever.identity for retriever in retrievers)
        self._retrievers = retrievers

    def search(self, queries: Sequence[str], k: int) -> Hits:
        depth = max(k, _FUSION_DEPTH)
        rankings = [retriever.search(queries, depth) for retriever in self._retrievers]
        hits = np.full((len(queries), k), NO_HIT, dtype=np.int64)
        for i, row in enumerate(hits):
            fused = fuse([ranking[i].tolist() for ranking in rankings])[:k]
            row[: len(fused)] = fused
        return hits


def fuse(rankings: Sequence[Sequence[int]]) -> list[int]:
    """The passages of all rankings by their reciprocal ranks summed, equal ones by number."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            if number != NO_HIT:
                scores[number] = scores.get(number, 0.0) + 1 / (_RANK_CONSTANT + rank)
    return sorted(scores, key=lambda number: (-scores[number], number))


class Cached:
    """A retriever that searches an equal query once; the oldest results make room for new ones."""

    def __init__(self, retriever: Retriever, limit: int = _CACHED_QUERIES) -> None:
        self._retriever = retriever
        self._limit = limit
        self.identity = retriever.identity
        self._kept: OrderedDict[tuple[str, int], Hits] = OrderedDict()

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return kept hits; search all new queries in one batch."""
        keys = [(query, k) for query in queries]
        missing = list(dict.fromkeys(key for key in keys if key not in self._kept))
        hits = {key: self._kept[key] for key in keys if key in self._kept}
        if missing:
            new_hits = self._retriever.search([query for query, _ in missing], k)
            hits |= zip(missing, new_hits, strict=True)
        self._kept.update({key: hits[key] for key in missing})
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return np.array([hits[key] for key in keys], dtype=np.int64).reshape(len(keys), k)


def open_retriever(name: RetrieverName, folder: Path, encoder: Encoder | None) -> Retriever:
    """The retriever of that name over an index. Raises `UnusableIndexError`."""
    if name == "bm25":
        return Cached(Bm25(folder))
    if encoder is None:
        raise UnusableIndexError(
            "index.no-encoder", f"the retriever {name} needs an encoder, and none was handed in"
        )
    dense = Dense(folder, encoder)
    return Cached(dense if name == "dense" else Fusion(Bm25(folder), dense))


# --- documents: so many hits of each query, ranked, within a budget ------------------------------


#: English text has about four characters per token; no tokenizer is at hand here.
_CHARACTERS_PER_TOKEN = 4


class DocumentSettings(BaseModel, extra="forbid", frozen=True):
    """How many documents the generator reads."""

    per_question: int = Field(
        default=15, ge=1, description="shared by the queries: 15 // n for each"
    )
    at_most: int = Field(default=25, ge=1, description="of all queries together")
    tokens: int = Field(default=6144, ge=64, description="about; the lowest ranked give way")


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents for one question: passage ids and their texts, best first."""

    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class Search:
    """Finds the documents for lists of queries, all of them in one batch."""

    def __init__(self, retriever: Retriever, corpus: Corpus, settings: DocumentSettings) -> None:
        self.identity = retriever.identity
        self._retriever = retriever
        self._corpus = corpus
        self._settings = settings

    def deeper(self, times: int) -> "Search":
        """Return this search with so many times the documents, within the same budget of tokens."""
        per_question = times * self._settings.per_question
        at_most = max(per_question, self._settings.at_most)
        limits = {"per_question": per_question, "at_most": at_most}
        return Search(self._retriever, self._corpus, self._settings.model_copy(update=limits))

    def find(self, questions: Sequence[Sequence[str]]) -> list[Documents]:
        """The documents for each question, which is a list of queries."""
        rankings: dict[tuple[str, int], list[int]] = {}
        for k in sorted({self._depth(queries) for queries in questions if queries}):
            batch = list(dict.fromkeys(q for qs in questions if self._depth(qs) == k for q in qs))
            hits = self._retriever.search(batch, k)
            rankings |= {(q, k): row.tolist() for q, row in zip(batch, hits, strict=True)}
        documents = []
        for queries in questions:
            ranked = fuse([rankings[query, self._depth(queries)] for query in queries])
            passages = [self._corpus[number] for number in ranked[: self._settings.at_most]]
            texts = [passage.full_text for passage in passages]
            count = fitting(texts, self._settings.tokens)
            documents.append(Documents(tuple(p.id for p in passages[:count]), tuple(texts[:count])))
        return documents

    def _depth(self, queries: Sequence[str]) -> int:
        return max(1, self._settings.per_question // max(1, len(queries)))


def fitting(texts: Sequence[str], tokens: int) -> int:
    """Count the first texts that fit into a budget of about `tokens`."""
    budget = tokens * _CHARACTERS_PER_TOKEN
    for number, text in enumerate(texts):
        budget -= len(text)
        if budget < 0:
            return number
    return len(texts)
