"""Reading a corpus, building an index, and refusing what does not fit."""

import json

import pytest

from data_prep.rag.index import Source, Vectors, build_index, corpus_hash, ensure_index, read_corpus
from environments.rag.retrieval import Bm25, Corpus, Passage
from tests.refusals import refusal


def quiet(_):
    """Say nothing."""


def jsonl(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_jsonl_passages_with_text_or_contents(tmp_path):
    path = jsonl(
        tmp_path / "books.jsonl",
        {"id": "a", "title": "Acids", "text": "Anion gap."},
        {"id": "b", "contents": "Osmolar gap.", "other": 1},
    )
    assert list(read_corpus(path)) == [
        Passage("a", "Acids", "Anion gap."),
        Passage("b", "", "Osmolar gap."),
    ]


def test_text_passages_are_paragraphs(tmp_path):
    (tmp_path / "notes.txt").write_text("One\nparagraph.\n\n\nAnother one.\n\n")
    assert list(read_corpus(tmp_path)) == [
        Passage("notes:2", "", "One paragraph."),
        Passage("notes:5", "", "Another one."),
    ]


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    path = jsonl(
        tmp_path / "books.jsonl",
        {"id": "a", "text": "x"},
        {"id": "a", "text": "y"},
        {"id": "b", "text": "  "},
        {"id": 3, "text": "x"},
        {"id": "c"},
        [],
        {"id": "d", "text": "\ud800"},
    )
    with path.open("ab") as file:
        file.write(b"{\n" + b'{"id": "e", "text": "\xff"}\n')
    with refusal("corpus.invalid-passages") as caught:
        list(read_corpus(path))
    faults = str(caught.value).splitlines()[1:]
    assert [f"line {n}: " in line for n, line in enumerate(faults, start=2)] == [True] * 8
    assert "'a'" in faults[0] and "line 1" in faults[0]


def test_undecodable_text_is_told_with_its_line(tmp_path):
    (tmp_path / "notes.txt").write_bytes(b"fine\n\nbad \xff byte\n")
    with refusal("corpus.invalid-passages", "notes.txt, line 3: not valid UTF-8"):
        list(read_corpus(tmp_path))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_corpus_is_refused(tmp_path, content):
    for name in ("a.jsonl", "a.txt"):
        (tmp_path / name).write_text(content)
        with refusal("corpus.invalid-passages"):
            list(read_corpus(tmp_path / name))
    with refusal("corpus.no-path"):
        list(read_corpus(tmp_path / "none.jsonl"))


def test_a_corpus_without_a_word_is_refused(tmp_path):
    with refusal("corpus.no-word"):
        build_index([Passage("a", "", "?!")], "sha256:x", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_index_that_cannot_be_built_leaves_nothing(tmp_path):
    path = jsonl(tmp_path / "books.jsonl", {"id": "a", "text": "x"}, {"id": "a", "text": "x"})
    with refusal("corpus.invalid-passages"):
        ensure_index(Source.of_path(path), tmp_path / "index", None, quiet)
    assert [file.name for file in tmp_path.iterdir()] == ["books.jsonl"]


def test_an_index_is_built_once_and_refused_when_the_corpus_changes(tmp_path):
    path = jsonl(tmp_path / "books.jsonl", {"id": "a", "text": "anion gap"})
    said: list[str] = []
    first = ensure_index(Source.of_path(path), tmp_path / "index", None, said.append)
    assert ensure_index(Source.of_path(path), tmp_path / "index", None, said.append) == first
    assert first.corpus == corpus_hash(path)
    assert sum("building" in line for line in said) == 1
    assert Bm25(tmp_path / "index").search(["gap"], 1).tolist() == [[0]]
    jsonl(path, {"id": "a", "text": "osmolar gap"})
    with refusal("index.other-corpus"):
        ensure_index(Source.of_path(path), tmp_path / "index", None, quiet)


def test_any_title_and_text_comes_back(tmp_path):
    passages = [Passage(f"{n}", "\u2028", f"caf\u00e9 \U0001f9ea {n}\n\ttab") for n in range(3)]
    build_index(passages, "sha256:x", tmp_path / "index")
    corpus = Corpus(tmp_path / "index")
    assert [corpus[n] for n in range(3)] == passages


def test_an_index_with_other_vectors_is_refused_before_an_encoder_is_loaded(tmp_path):
    def load():
        raise AssertionError("loaded")

    path = jsonl(tmp_path / "books.jsonl", {"id": "a", "text": "anion gap"})
    ensure_index(Source.of_path(path), tmp_path / "index", None, quiet)
    with refusal("index.other-encoder", "no encoder", "mine"):
        ensure_index(Source.of_path(path), tmp_path / "index", Vectors("mine", load), quiet)
