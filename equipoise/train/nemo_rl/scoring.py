"""Prompts and replies in NeMo-RL's forms, and the scores of a step; without Ray and torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.awaited_sets import sibling_means
from environments.base import TRAIN_SPLIT, Failure, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.files.template import render
from equipoise.run.history import step_row
from equipoise.run.job import score_within_budget
from equipoise.run.rollouts import Choice, Sample

MessageLog = Sequence[Mapping[str, Any]]


def templated(record: PromptRecord, tokenizer: Any) -> tuple[str, Any]:
    """Return the prompt in the tokenizer's chat template, and its tokens, a tensor [length]."""
    text = render(tokenizer, record.messages, add_special_tokens=False)
    return text, tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]


def metadata_of(record: PromptRecord) -> dict[str, Any]:
    """Return what travels with a prompt through NeMo-RL (`extra_env_info`)."""
    ids = {"prompt_id": record.id, "set_id": record.set_id, "split": record.split}
    return ids | {"metadata": dict(record.metadata)}


def datum(
    record: PromptRecord, task: str, tokenizer: Any, max_length: int | None, idx: int
) -> dict[str, Any]:
    """NeMo-RL's `DatumSpec` of a prompt. Raises `ValueError` for one that is too long."""
    text, ids = templated(record, tokenizer)
    if max_length is not None and len(ids) > max_length:
        raise ValueError(f"prompt {record.id} has {len(ids)} tokens, more than {max_length}")
    return {
        "message_log": [{"role": "user", "content": text, "token_ids": ids}],
        "length": len(ids),
        "extra_env_info": metadata_of(record) | {"tokens": len(ids)},
        "loss_multiplier": 1.0,
        "idx": idx,
        "task_name": task,
    }


def to_rollouts(
    messages: Sequence[MessageLog], metadata: Sequence[Mapping[str, Any]]
) -> list[Rollout]:
    """Return the rollouts of one call; the first message is the templated prompt."""
    return [
        Rollout(
            info["prompt_id"],
            info["set_id"],
            info["split"],
            log[0]["content"],
            "".join([m["content"] for m in log if m["role"] == "assistant"]),
            info["metadata"],
        )
        for log, info in zip(messages, metadata, strict=True)
    ]


def single_turn_return(rewards: Sequence[float], metadata: list[Any]) -> Any:
    """Return NeMo-RL's `EnvironmentReturn` of conversations that are over.

    Observations are empty, for NeMo-RL appends them to the sequence that it trains on.
    """
    import torch
    from nemo_rl.environments.interfaces import EnvironmentReturn

    count = len(rewards)
    return EnvironmentReturn(
        observations=[{"role": "environment", "content": ""}] * count,
        metadata=metadata,
        next_stop_strings=[None] * count,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        terminateds=torch.ones(count),
        answers=None,
    )


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step of one split: a row for the history, and why scores failed, None for the others."""

    row: dict[str, float]
    errors: tuple[Failure | None, ...]
    prompt_tokens: int = 0
    sample: Sample = ()  # what is kept of the step's rollouts


class StepScorer:
    """Scores what NeMo-RL sends, and keeps it until the driver asks for the step's summary.

    One call is of one split, and holds whole groups: a step, one of its batches, or sets of it.
    """

    def __init__(self, environment: Environment, choose: Choice = lambda *_: ()) -> None:
        self.environment, self._choose = environment, choose
        self._calls: list[tuple[Sequence[Rollout], Sequence[Score]]] = []
        self._tokens: Counter[str] = Counter()  # of prompts, by split

    def rewards(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Return the rewards. Raises `IncompleteSetError` on a part of a set.

        NeMo-RL takes numbers alone: a failed score is the mean of its prompt's valid siblings, so
        its advantage is 0 and its siblings' baseline stays the same.
        """
        scores = score_within_budget(self.environment, rollouts)
        self.keep(rollouts, scores)
        return sibling_means(rollouts, scores)

    def keep(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        self._calls.append((rollouts, scores))

    def count(self, metadata: Sequence[Mapping[str, Any]]) -> None:
        """Count the tokens of the prompts that were replied to."""
        for info in metadata:
            self._tokens[info["split"]] += info["tokens"]

    def summary(self, split: str) -> StepSummary | None:
        """Summarise what was scored of a split since the last call; None when nothing was."""
        calls = [call for call in self._calls if call[0][0].split == split]
        self._calls = [call for call in self._calls if call[0][0].split != split]
        if not calls:
            return None
        rollouts = [rollout for part, _ in calls for rollout in part]
        scores = [score for _, part in calls for score in part]
        row = step_row(self.environment, rollouts, scores)
        sample = self._choose(rollouts, scores) if split == TRAIN_SPLIT else ()
        errors = tuple(score.error for score in scores)
        return StepSummary(row, errors, self._tokens.pop(split, 0), sample)
