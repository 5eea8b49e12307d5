"""What `--dry-run` finds of the retrieval task: every part is tried once with canned queries."""

import time
from collections.abc import Sequence

from environments.base import Environment, PromptRecord, Rollout
from environments.rag_accuracy import RagEnvironment
from environments.rag_accuracy.queries import NUMBER_OF_QUERIES
from environments.rag_accuracy.words import words_of

Row = tuple[str, str, str]

_PROMPTS = 8
_WORDS_OF_QUERY = 6


def check_rows(records: Sequence[PromptRecord], environment: Environment) -> list[Row]:
    """Score a few prompts with queries made of their own words.

    Raises `ValueError` where the index cannot be searched. A model that would have to be loaded is
    left alone.
    """
    assert isinstance(environment, RagEnvironment)
    rollouts = [canned_rollout(record) for record in records[:_PROMPTS]]
    planned = sum("plan" in record.metadata for record in records)
    rows = [("plans", f"{planned:,}", f"of {len(records):,} prompts")]
    if environment.wanted_encoder():
        return [*rows, ("canned queries", "not searched", "the encoder is not loaded in a dry run")]
    search = environment.open()
    found = search.find([rollout.completion.splitlines() for rollout in rollouts])
    rows.append(
        ("index", search.identity, f"{sum(map(len, (d.ids for d in found)))} documents found")
    )
    if environment.wanted_chat_model():
        return [*rows, ("canned step", "not scored", "the generator is not loaded in a dry run")]
    return [*rows, *_scored(rollouts, environment)]


def canned_rollout(record: PromptRecord) -> Rollout:
    """A reply whose queries are the first, the middle and the last words of the question."""
    words = words_of(record.metadata["question"]) or ["question"]
    step = max(1, (len(words) - _WORDS_OF_QUERY) // (NUMBER_OF_QUERIES - 1))
    lines = [
        f"Query {n + 1}: {' '.join(words[n * step : n * step + _WORDS_OF_QUERY])}"
        for n in range(NUMBER_OF_QUERIES)
    ]
    reply = "\n".join(lines)
    return Rollout(record.id, record.set_id, record.split, "", reply, record.metadata)


def _scored(rollouts: Sequence[Rollout], environment: RagEnvironment) -> list[Row]:
    started = time.perf_counter()
    scores = environment.score(rollouts)
    seconds = time.perf_counter() - started
    failed = [score.error.text for score in scores if score.error]
    right = sum(bool(score.evidence.get("correct")) for score in scores)
    note = f"{right} answered rightly, in {seconds:.2f} s"
    if failed:
        note += f"; {len(failed)} could not be scored: {failed[0]}"
    return [("canned step", f"{len(scores) - len(failed)} of {len(scores)} scored", note)]
