"""The index of a corpus: passages on disk, BM25 scores, and vectors where wanted.

A corpus is a JSONL file of {"id", "text" or "contents", "title"?}, a text file whose passages are
paragraphs, or a folder of such files. It is read passage by passage; what stays in memory is the
words as numbers (about 60 bytes a word while bm25s counts them).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bm25s  # type: ignore[import-untyped]
import numpy as np
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from environments.contract import Encoder
from environments.rag.retrieval import (
    BM25_FOLDER,
    MANIFEST,
    OFFSETS,
    PASSAGES,
    TOKENIZER_VERSION,
    VECTORS,
    Corpus,
    Manifest,
    Passage,
    UnusableIndexError,
    read_manifest,
    words_of,
)
from equipoise.files.disk import write_folder, write_text
from equipoise.files.records import DataError, row_faults

_KIND = "corpus"
_ENCODED_AT_ONCE = 256
_TEXT_FILES, _JSON_FILES = (".txt", ".md"), (".jsonl",)

_REMEDY = "remove it, and it is built again, or name another folder"

Say = Callable[[str], None]


# --- reading a corpus ---------------------------------------------------------------------------


def corpus_files(path: Path) -> list[Path]:
    """The files of a corpus, by name. Raises `DataError`."""
    if not path.exists():
        raise DataError(
            "corpus.no-path", path, _KIND, ["cannot be read: No such file or directory"]
        )
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in files if file.suffix in (*_TEXT_FILES, *_JSON_FILES)]
    if not files or not all(file.is_file() for file in files):
        raise DataError(
            "corpus.no-text-file", path, _KIND, ["there is no .jsonl, .txt or .md file"]
        )
    return files


def corpus_hash(path: Path) -> str:
    """SHA-256 of the files of a corpus with their names."""
    digest = hashlib.sha256()
    for file in corpus_files(path):
        with file.open("rb") as content:
            inner = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{file.name}\0{inner}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages one by one. Raises `DataError` at the end with everything that is wrong."""
    problems: list[str] = []
    locations: dict[str, str] = {}
    for file in corpus_files(path):
        for location, passage in _read_file(file):
            if isinstance(passage, str):
                problems.append(f"{location}: {passage}")
            elif first := locations.get(passage.id):
                problems.append(f"{location}: id {passage.id!r} is that of {first} too")
            else:
                locations[passage.id] = location
                yield passage
    if problems or not locations:
        raise DataError("corpus.invalid-passages", path, _KIND, problems or ["it holds no passage"])


def _read_file(file: Path) -> Iterator[tuple[str, Passage | str]]:
    """Yield (place, passage, or what is wrong with it) for each passage of a file."""
    paragraph: list[str] = []
    number = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if file.suffix in _JSON_FILES:
                if text.strip():
                    yield f"{file.name}, line {number}", _json_passage(text)
                continue
            try:
                words = text.decode().strip()
            except UnicodeDecodeError:
                yield f"{file.name}, line {number}", "not valid UTF-8"
                continue
            if words:
                paragraph.append(words)
            elif paragraph:
                yield _text_passage(file, number - 1, paragraph)
                paragraph = []
    if paragraph:
        yield _text_passage(file, number, paragraph)


def _text_passage(file: Path, line: int, paragraph: Sequence[str]) -> tuple[str, Passage]:
    """A paragraph that ends in a line; that names it."""
    name = f"{file.stem}:{line}"
    return f"{file.name}, line {line}", Passage(name, "", " ".join(paragraph))


class _Line(BaseModel, strict=True):
    id: str = Field(min_length=1)
    title: str = ""
    text: str = Field(pattern=r"\S", validation_alias=AliasChoices("text", "contents"))


def _json_passage(line: bytes) -> Passage | str:
    try:
        read = _Line.model_validate_json(line)
    except ValidationError as error:
        return row_faults(error)
    return Passage(read.id, read.title, read.text)


# --- building -----------------------------------------------------------------------------------


def build_index(
    passages: Iterable[Passage], corpus: str, folder: Path, encoder: Encoder | None = None
) -> Manifest:
    """Write the index of `passages` of a corpus with the hash `corpus`, whole or not at all."""
    write_folder(folder, lambda scratch: _fill(scratch, passages, corpus, encoder))
    return read_manifest(folder)


def _fill(folder: Path, passages: Iterable[Passage], corpus: str, encoder: Encoder | None) -> None:
    offsets = [0]
    with (folder / PASSAGES).open("wb") as file:
        for passage in passages:
            line = json.dumps(asdict(passage), ensure_ascii=False).encode() + b"\n"
            file.write(line)
            offsets.append(offsets[-1] + len(line))
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    number = len(offsets) - 1
    if number == 0:
        raise DataError(
            "corpus.no-passage", "what is to be indexed", _KIND, ["it holds no passage"]
        )
    _write_manifest(folder, corpus, number, None)  # `Corpus` opens what has one
    _write_bm25(folder)
    if encoder:
        _write_vectors(folder, encoder)
    _write_manifest(folder, corpus, number, encoder.identity if encoder else None)


def _write_manifest(folder: Path, corpus: str, number: int, encoder: str | None) -> None:
    files = {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    manifest = Manifest(
        corpus=corpus, passages=number, tokenizer=TOKENIZER_VERSION, encoder=encoder, files=files
    )
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def _write_bm25(folder: Path) -> None:
    corpus = Corpus(folder)
    number_of: dict[str, int] = {}
    numbered = [
        [number_of.setdefault(word, len(number_of)) for word in words_of(corpus[i].full_text)]
        for i in range(len(corpus))
    ]
    if not number_of:
        raise DataError("corpus.no-word", "what is to be indexed", _KIND, ["no passage has a word"])
    index = bm25s.BM25()
    index.index((numbered, number_of), show_progress=False)
    index.save(folder / BM25_FOLDER, show_progress=False)


def _write_vectors(folder: Path, encoder: Encoder) -> None:
    """Encode passage by passage into a memory-mapped file."""
    corpus = Corpus(folder)
    vectors: Any = None
    for start in range(0, len(corpus), _ENCODED_AT_ONCE):
        rows = range(start, min(start + _ENCODED_AT_ONCE, len(corpus)))
        encoded = encoder.encode_passages([(corpus[i].title, corpus[i].text) for i in rows])
        if vectors is None:
            shape = (len(corpus), encoded.shape[1])
            vectors = np.lib.format.open_memmap(folder / VECTORS, "w+", np.float32, shape)
        vectors[start : start + len(encoded)] = encoded
    vectors.flush()


@dataclass(frozen=True, slots=True)
class Source:
    """The corpus of an index. With `replaces` an index that does not fit is rebuilt.

    Set it only for an index in a cache of ours: any other may belong to a user.
    """

    hash: str
    passages: Callable[[], Iterable[Passage]]
    replaces: bool = False

    @classmethod
    def of_path(cls, path: Path) -> "Source":
        return cls(corpus_hash(path), lambda: read_corpus(path))


@dataclass(frozen=True, slots=True)
class Vectors:
    """The encoder that an index must have vectors of; `identity` is None while unknown."""

    identity: str | None
    load: Callable[[], Encoder]


def ensure_index(source: Source, folder: Path, vectors: Vectors | None, say: Say) -> Manifest:
    """The index of a corpus, built if there is none.

    Raises `UnusableIndexError` for one that is damaged or was built from something else, and
    `DataError`.
    """
    manifest = find_index(source, folder, vectors)
    if manifest is None:
        say(f"building an index in {folder}")
        encoder = vectors.load() if vectors else None
        manifest = build_index(source.passages(), source.hash, folder, encoder)
    say(f"index: {manifest.passages:,} passages in {folder}")
    return manifest


def find_index(source: Source, folder: Path, vectors: Vectors | None) -> Manifest | None:
    """The manifest of an index that fits; None without one, or with one that may be replaced.

    Raises `UnusableIndexError` for another one.
    """
    if not folder.exists():
        return None
    try:
        manifest = read_manifest(folder)
        if manifest.corpus != source.hash:
            raise UnusableIndexError(
                "index.other-corpus", f"{folder} was built from another corpus: {_REMEDY}"
            )
        refuse_other_encoder(manifest, folder, vectors.identity if vectors else None)
    except UnusableIndexError:
        if source.replaces:
            return None
        raise
    return manifest


def refuse_other_encoder(manifest: Manifest, folder: Path, identity: str | None) -> None:
    """Raise `UnusableIndexError` unless the index has the vectors that are wanted."""
    if identity is not None and manifest.encoder != identity:
        encoder = manifest.encoder or "no encoder"
        raise UnusableIndexError(
            "index.other-encoder",
            f"{folder} was built with {encoder}, not with {identity}: {_REMEDY}",
        )
