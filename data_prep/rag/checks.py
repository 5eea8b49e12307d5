"""Checks of the retrieval task's prompts, and a trial of every part, for `--dry-run`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.contract import CheckRow
from data_prep.faults import named_faults
from data_prep.rag.prompts import PromptSettings
from environments.base import PromptRecord, Rollout
from environments.contract import Environment
from environments.rag import RagEnvironment
from environments.rag.corpus import words_of
from environments.rag.queries import NUMBER_OF_QUERIES

_PROMPTS = 8
_WORDS_OF_QUERY = 6


def check(
    settings: PromptSettings,  # noqa: ARG001
    records: Sequence[PromptRecord],
    environment: Environment,
) -> list[CheckRow]:
    """Score a few prompts with queries made of their own words.

    Raises `ValueError` where the index cannot be searched. A model that would have to be loaded or
    asked is left alone, and so is an index that is not there yet.
    """
    assert isinstance(environment, RagEnvironment)
    rollouts = [canned_rollout(record) for record in records[:_PROMPTS]]
    planned = sum("plan" in record.metadata for record in records)
    rows = [("plans", f"{planned:,}", f"of {len(records):,} prompts")]
    if not environment.settings.index.exists():
        return [*rows, ("index", "not there yet", "a run builds it")]
    if environment.wanted_encoder():
        return [*rows, ("canned queries", "not searched", "the encoder is not loaded in a dry run")]
    search = environment.open()
    hits = search.find([rollout.completion.splitlines() for rollout in rollouts])
    rows.append(("index", search.identity, f"{sum(len(hit.ids) for hit in hits)} documents found"))
    if environment.wanted_chat_model():
        return [*rows, ("canned step", "not scored", "the generator is not loaded in a dry run")]
    if environment.settings.generator.endpoint:
        return [*rows, ("canned step", "not scored", "the generator is not asked in a dry run")]
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


def _scored(rollouts: Sequence[Rollout], environment: RagEnvironment) -> list[CheckRow]:
    started = time.perf_counter()
    scores = environment.score(rollouts)
    seconds = time.perf_counter() - started
    failed = [score.error.text for score in scores if score.error]
    correct_count = sum(bool(score.evidence.get("correct")) for score in scores)
    note = f"{correct_count} answered rightly, in {seconds:.2f} s"
    if failed:
        note += f"; {len(failed)} could not be scored: {failed[0]}"
    return [("canned step", f"{len(scores) - len(failed)} of {len(scores)} scored", note)]


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that the environment could not score, from any source."""
    return named_faults(
        {
            "prompts have no question, options and gold among them in their metadata": [
                record.id for record in records if not _is_answerable(record.metadata)
            ]
        }
    )


def _is_answerable(metadata: Mapping[str, Any]) -> bool:
    question, options, gold = (metadata.get(key) for key in ("question", "options", "gold"))
    return (
        isinstance(question, str)
        and isinstance(options, Mapping)
        and all(isinstance(text, str) for text in options.values())
        and isinstance(gold, str)
        and gold in options
    )
