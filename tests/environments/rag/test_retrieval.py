"""Search: the ranking against a plain BM25, dense vectors, fusion, the cache."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data_prep.rag.index import build_index
from environments.rag import retrieval
from environments.rag.retrieval import (
    NO_HIT,
    Bm25,
    Cached,
    Corpus,
    Dense,
    Fusion,
    fuse,
    nearest,
    open_retriever,
    top_hits,
    words_of,
)
from tests.environments.rag.conftest import PASSAGES
from tests.refusals import refusal


class WordEncoder:
    """Counts of words: enough to be searched by."""

    identity = "words"
    columns = ("amber", "ribbed", "green", "origin", "owner", "baker", "page", "blue")

    def encode_queries(self, queries):
        counts = [Counter(words_of(query)) for query in queries]
        rows = [[found[word] for word in self.columns] for found in counts]
        return np.array(rows, dtype=np.float32)

    def encode_passages(self, passages):
        return self.encode_queries([f"{title} {text}" for title, text in passages])


class OtherEncoder(WordEncoder):
    identity = "others"


@pytest.fixture(scope="module")
def dense_index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense") / "stones"
    build_index(PASSAGES, "sha256:stones", folder, WordEncoder())
    return folder


def lucene_bm25(query):
    """Lucene's formula as it stands in the papers, k1 1.5 and b 0.75."""
    texts = [words_of(passage.full_text) for passage in PASSAGES]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in words_of(query):
            df = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            tf = text.count(word)
            score += idf * tf / (tf + 1.5 * (0.25 + 0.75 * len(text) / mean)) if tf else 0.0
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["amber ribbed origin", "baker page 3", "blue stones of Calder"])
def test_bm25_ranks_as_the_formula(index, query):
    scores = lucene_bm25(query)
    expected = [i for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)) if scores[i]]
    found = [number for number in Bm25(index).search([query], 44)[0].tolist() if number != NO_HIT]
    assert found[:4] == expected[:4]
    assert len(found) == len(expected)
    assert [scores[i] for i in found] == pytest.approx([scores[i] for i in expected])


@given(
    arrays(np.float32, st.integers(0, 300), elements=st.sampled_from([0, 0, 0, 1, 2, 3, 5])),
    st.integers(1, 40),
)
def test_top_hits_are_those_of_a_full_sort(scores, k):
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert top_hits(scores, k).tolist() == [i for i in order if scores[i] > 0][:k]


@given(
    arrays(np.float32, (3, 2), elements=st.sampled_from([-1, 0, 1, 2])),
    arrays(np.float32, st.tuples(st.integers(1, 40), st.just(2)), elements=st.sampled_from([0, 1])),
    st.integers(1, 40),
)
def test_nearest_are_those_of_a_full_sort_over_several_chunks(queries, vectors, k):
    k = min(k, len(vectors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "_PASSAGES_AT_ONCE", 7)
        found = nearest(queries, vectors, k)
    assert found.tolist() == [
        sorted(range(len(vectors)), key=lambda i: (-float(q @ vectors[i]), i))[:k] for q in queries
    ]


def test_an_index_of_another_encoder_is_refused(dense_index, index):
    with refusal("index.other-vectors", "words"):
        Dense(dense_index, OtherEncoder())
    with refusal("index.other-vectors", "no encoder"):
        Dense(index, WordEncoder())
    with refusal("index.no-encoder"):
        open_retriever("dense", dense_index, None)


def test_fusion_adds_reciprocal_ranks():
    assert fuse([[7, 8, 9], [9, 7, NO_HIT]]) == [7, 9, 8]
    assert fuse([[3], [2]]) == [2, 3]
    assert fuse([]) == []


def test_fusion_of_both_finds_what_either_finds(dense_index):
    both = Fusion(Bm25(dense_index), Dense(dense_index, WordEncoder()))
    found = both.search(["amber owner"], 5)[0]
    assert Corpus(dense_index)[found[0]].id == "amber-owner"
    assert len(set(found.tolist())) == 5


class Counting:
    identity = "counting"

    def __init__(self):
        self.searched: list[list[str]] = []

    def search(self, queries, k):
        self.searched.append(list(queries))
        return np.array([[len(query)] * k for query in queries], dtype=np.int64)


def test_an_equal_query_is_searched_once_and_all_new_ones_together():
    inner = Counting()
    cached = Cached(inner, limit=2)
    assert cached.search(["a", "bb", "a"], 2).tolist() == [[1, 1], [2, 2], [1, 1]]
    assert cached.search(["bb", "ccc"], 2).tolist() == [[2, 2], [3, 3]]
    assert cached.search(["bb"], 1).tolist() == [[2]]
    assert inner.searched == [["a", "bb"], ["ccc"], ["bb"]]
    assert cached.search(["a"], 2).tolist() == [[1, 1]]  # it had to make room
    assert cached.search([], 2).shape == (0, 2)


@pytest.mark.parametrize("name", ["passages.jsonl", "offsets.npy", "bm25/data.csc.index.npy"])
def test_a_file_that_is_cut_off_is_refused(tmp_path, name):
    build_index(PASSAGES, "sha256:stones", tmp_path / "index")
    file = tmp_path / "index" / name
    file.write_bytes(file.read_bytes()[:-1])
    with refusal("index.damaged-file"):
        open_retriever("bm25", tmp_path / "index", None)


def test_a_missing_or_damaged_manifest_is_refused(tmp_path):
    with refusal("index.no-folder"):
        Corpus(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with refusal("index.damaged-manifest"):
        Corpus(tmp_path)
