"""A small world to search in: a few passages, their index, and questions on them."""

import pytest

from data_prep.rag.index import build_index
from environments.base import Rollout
from environments.rag import RagEnvironment, RagSettings
from environments.rag.retrieval import Passage

PASSAGES = (
    Passage("amber-origin", "", "Stones that are amber and ribbed: their origin is Arlen."),
    Passage("amber-owner", "", "Stones that are amber and ribbed: their owner is Abner."),
    Passage("green-origin", "", "Stones that are green and ribbed: their origin is Borvik."),
    Passage("blue-origin", "Blue stones", "Their origin is Calder."),
    *(Passage(f"note-{n}", "", f"The baker wrote of a stone, page {n}.") for n in range(40)),
)
QUESTION = {
    "question": "The baker found it: what is the origin of the amber ribbed stone?",
    "options": {"A": "Borvik", "B": "Arlen", "C": "Calder", "D": "Dunmar"},
    "gold": "B",
    "relevant": ["amber-origin"],
}
#: What a planner says of another question.
PLAN = {
    "discriminating_features": ["crystals"],
    "best_guess": "ethylene glycol",
    "reasoning": "Crystals point to it.",
    "confirming_evidence": "An anion gap.",
    "alternative_if_wrong": "Methanol.",
}


def queries(*texts):
    return "\n".join(f"Query {n}: {text}" for n, text in enumerate(texts, start=1))


#: Finds the passage with the answer, none of the queries with a defect.
GOLD = queries("amber ribbed origin", "green stones", "baker page")
#: Finds notes of the baker, who does not know.
WRONG = queries("baker wrote", "page 3", "baker page stone")


def rollouts(*completions, **metadata):
    found = QUESTION | metadata
    return [Rollout("q", "q", "test", "", text, found) for text in completions]


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "stones"
    build_index(PASSAGES, "sha256:stones", folder)
    return folder


@pytest.fixture
def environment(index):
    return RagEnvironment(RagSettings(index=str(index)))
