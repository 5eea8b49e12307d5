"""From hits to what the generator reads: so many of each query, ranked, within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from environments.rag.corpus import Corpus
from environments.rag.retrieval import NO_HIT, Retriever, fuse

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
        self._retriever = retriever
        self._corpus = corpus
        self._settings = settings

    def deeper(self, times: int) -> "Search":
        """The same search with so many times the documents, within the same budget of tokens."""
        per_question = times * self._settings.per_question
        at_most = max(per_question, self._settings.at_most)
        limits = {"per_question": per_question, "at_most": at_most}
        return Search(self._retriever, self._corpus, self._settings.model_copy(update=limits))

    @property
    def identity(self) -> str:
        """The retriever's identity."""
        return self._retriever.identity

    def find(self, questions: Sequence[Sequence[str]]) -> list[Documents]:
        """The documents for each question, which is a list of queries."""
        rankings: dict[tuple[str, int], list[int]] = {}
        for k in sorted({self._depth(queries) for queries in questions if queries}):
            batch = list(dict.fromkeys(q for qs in questions if self._depth(qs) == k for q in qs))
            hits = self._retriever.search(batch, k)
            rankings |= {(q, k): row.tolist() for q, row in zip(batch, hits, strict=True)}
        return [self._documents([rankings[q, self._depth(qs)] for q in qs]) for qs in questions]

    def _depth(self, queries: Sequence[str]) -> int:
        return max(1, self._settings.per_question // max(1, len(queries)))

    def _documents(self, rankings: Sequence[Sequence[int]]) -> Documents:
        ranked = [number for number in fuse(rankings) if number != NO_HIT]
        passages = [self._corpus[number] for number in ranked[: self._settings.at_most]]
        texts = [passage.full_text for passage in passages]
        count = fitting(texts, self._settings.tokens)
        return Documents(tuple(p.id for p in passages[:count]), tuple(texts[:count]))


def fitting(texts: Sequence[str], tokens: int) -> int:
    """How many texts from the first on fit into a budget of about `tokens`."""
    budget = tokens * _CHARACTERS_PER_TOKEN
    for number, text in enumerate(texts):
        budget -= len(text)
        if budget < 0:
            return number
    return len(texts)
