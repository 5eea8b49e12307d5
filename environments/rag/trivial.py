"""Ways to search without skill, which a trained rewriter has to beat."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Rollout
from environments.rag.queries import NUMBER_OF_QUERIES, three_queries

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

#: Replies of which one might do for every question.
CONSTANT_REPLIES = (
    three_queries(["diagnosis", "first-line treatment", "mechanism of action"]),
    three_queries(["entry of the register", "stone", "person"]),
    three_queries([]),
)


def sentences(text: str) -> list[str]:
    """The sentences of a question."""
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def without_first_sentence(text: str) -> str:
    """The question without what it begins with; all of it where that is all."""
    return " ".join(sentences(text)[1:]) or text


def copied_replies(rollouts: Sequence[Rollout]) -> dict[str, list[str]]:
    """Three queries out of the plan, the question or the options, for each rollout.

    The options are copied also where the rewriter does not see them: that is the stronger attack.
    """
    return {
        "copied_plan": [_reply(_plan_texts(r.metadata.get("plan", {}))) for r in rollouts],
        "copied_question": [_reply(sentences(r.metadata["question"])) for r in rollouts],
        "copied_options": [_reply(list(r.metadata["options"].values())) for r in rollouts],
    }


def planned_reply(metadata: Mapping[str, Any]) -> str | None:
    """Three queries out of the plan's words, or None without a plan."""
    texts = _plan_texts(metadata.get("plan", {}))
    return _reply(texts) if texts else None


def _plan_texts(plan: Mapping[str, Any]) -> list[str]:
    """The searches that a plan proposes; without features, none of them."""
    features = list(map(str, plan.get("discriminating_features", ())))
    return [
        *features,
        *(str(plan[key]) for key in ("best_guess", "confirming_evidence") if key in plan),
    ]


def _reply(texts: Sequence[str]) -> str:
    """The texts dealt out to the queries in order, as evenly as can be."""
    cuts = [n * len(texts) // NUMBER_OF_QUERIES for n in range(NUMBER_OF_QUERIES + 1)]
    parts = [texts[start:end] for start, end in itertools.pairwise(cuts)]
    return three_queries([" ".join(part) for part in parts])
