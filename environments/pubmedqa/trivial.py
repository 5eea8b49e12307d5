"""Ways to reply without reading: what a trained model has to beat."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from environments.base import Rollout
from environments.pubmedqa.grounding import closeness, findings_of
from environments.pubmedqa.metrics import vote
from environments.pubmedqa.reply import LABELS, Label, parse_reply, reply_text

#: What stands in many abstracts, so that a reply that quotes it might pass for a true one.
STOCK_PHRASES = (
    "There was no significant difference between the groups",
    "The difference was not statistically significant",
    "There was a significant difference between the two groups",
    "The aim of this study was to",
)

# As abstracts are cut when they are fitted: "vs. placebo" and "P = .05" stay whole.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Z0-9])")


def constant_replies(options: Sequence[Label] = LABELS) -> list[str]:
    """Each option with every stock reason."""
    reasons = ("The findings of the study say so.", *(f'"{phrase}."' for phrase in STOCK_PHRASES))
    return [reply_text(reason, option) for option in options for reason in reasons]


def copied_reasons(
    rollouts: Sequence[Rollout], options: Sequence[Label], seed: int
) -> dict[str, list[str]]:
    """Name of a policy -> its replies: one answer to all, and a sentence of the findings quoted.

    The answer is the one that these rollouts give most often. The sentences are the first, the
    last, one by chance, and the one that shares most words with the question.
    """
    answer = vote(parse_reply(r.completion, options).answer for r in rollouts) or options[0]
    rng = random.Random(seed)  # noqa: S311
    choices: Mapping[str, Callable[[Sequence[str], str], str]] = {
        "first finding": lambda sentences, _: sentences[0],
        "last finding": lambda sentences, _: sentences[-1],
        "any finding": lambda sentences, _: rng.choice(sentences),
        "finding closest to the question": _closest,
    }
    return {
        f"commonest answer, {name}": [
            reply_text(f'"{choose(_findings(r.metadata), str(r.metadata["question"]))}"', answer)
            for r in rollouts
        ]
        for name, choose in choices.items()
    }


def gold_reply(metadata: Mapping[str, Any]) -> str | None:
    """The gold answer with the finding that decides it or, unknown, the one nearest the question.

    None for a prompt without a gold answer.
    """
    gold, finding = metadata.get("gold"), metadata.get("finding")
    if gold not in LABELS:
        return None
    question = str(metadata.get("question", ""))
    quoted = finding if isinstance(finding, str) else _closest(_findings(metadata), question)
    return reply_text(f'"{quoted}"', gold)


def _findings(metadata: Mapping[str, Any]) -> list[str]:
    text = " ".join(findings_of(str(metadata["context"])))
    return _SENTENCE_END.split(text.replace('"', "").strip())


def _closest(sentences: Sequence[str], question: str) -> str:
    return max(sentences, key=lambda sentence: closeness(sentence, question))
