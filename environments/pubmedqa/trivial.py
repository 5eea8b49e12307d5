"""Ways to reply without reading: what a trained model has to beat."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from environments.base import Rollout
from environments.pubmedqa.grounding import (
    Abstract,
    closeness,
    deciding_findings,
    sentences_of_findings,
    without_marks,
)
from environments.pubmedqa.metrics import vote
from environments.pubmedqa.reply import LABELS, Label, parse_reply, reply_text

#: What stands in many abstracts, so that a reply that quotes it might pass for a true one.
STOCK_PHRASES = (
    "There was no significant difference between the groups",
    "The difference was not statistically significant",
    "There was a significant difference between the two groups",
    "The aim of this study was to",
)

_FIRST_WORDS = 6


def constant_replies(options: Sequence[Label] = LABELS) -> list[str]:
    """Each option with every stock reason."""
    reasons = ("The findings of the study say so.", *(f'"{phrase}."' for phrase in STOCK_PHRASES))
    return [reply_text(reason, option) for option in options for reason in reasons]


def copied_reasons(
    rollouts: Sequence[Rollout], options: Sequence[Label], seed: int
) -> dict[str, list[str]]:
    """Name of a policy -> its replies: one answer to all, and something of the findings quoted.

    The answer is the one that these rollouts give most often. Quoted are the first sentence, the
    last, one by chance, the one that shares most words with the question, and the first words of
    all.
    """
    answer = vote(parse_reply(r.completion, options).answer for r in rollouts) or options[0]
    rng = random.Random(seed)  # noqa: S311
    choices: Mapping[str, Callable[[Sequence[str], str], Sequence[str]]] = {
        "first finding": lambda sentences, _: sentences[:1],
        "last finding": lambda sentences, _: sentences[-1:],
        "any finding": lambda sentences, _: [rng.choice(sentences)],
        "finding closest to the question": lambda sentences, text: [_closest(sentences, text)],
        "first words of each finding": lambda sentences, _: [_first_words(s) for s in sentences],
    }
    return {
        f"commonest answer, {name}": [
            reply_text(quoted(choose(_findings(r.metadata), str(r.metadata["question"]))), answer)
            for r in rollouts
        ]
        for name, choose in choices.items()
    }


def gold_reply(metadata: Mapping[str, Any]) -> str | None:
    """The gold answer with the finding that decides it; None for a prompt without gold answer."""
    gold = metadata.get("gold")
    if gold not in LABELS:
        return None
    return reply_text(quoted(deciding_findings(Abstract.of(metadata))[:1]), gold)


def quoted(texts: Sequence[str]) -> str:
    """Each text between quotation marks."""
    return " ".join(f'"{without_marks(text)}"' for text in texts)


def _findings(metadata: Mapping[str, Any]) -> list[str]:
    context = str(metadata["context"])
    return sentences_of_findings(context) or [context]


def _closest(sentences: Sequence[str], question: str) -> str:
    return max(sentences, key=lambda sentence: closeness(sentence, question))


def _first_words(sentence: str) -> str:
    return " ".join(sentence.split()[:_FIRST_WORDS])
