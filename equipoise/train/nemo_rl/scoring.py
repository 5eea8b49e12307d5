"""An environment's step for NeMo-RL, without Ray and torch: messages in, rewards out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.awaited_sets import sibling_means
from environments.base import TRAIN_SPLIT, Failure, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.models.template import render
from equipoise.run.history import step_row
from equipoise.run.rollouts import Choice, Sample, nothing
from equipoise.train.stages.job import score_within_budget

MessageLog = Sequence[Mapping[str, Any]]

#: NeMo-RL's asynchronous rollouts go on without the reply that the generation failed to give.
NOT_GENERATED = Failure("server_error", "the reply was not generated, see nemo_rl.log")


class MissingSiblingsError(ValueError):
    """A failed score would have to become a number that its group does not give."""


def metadata_of(record: PromptRecord) -> dict[str, Any]:
    """Return what travels with a prompt through NeMo-RL (`extra_env_info`)."""
    return {
        "prompt_id": record.id,
        "set_id": record.set_id,
        "split": record.split,
        "metadata": dict(record.metadata),
    }


def templated(record: PromptRecord, tokenizer: Any) -> tuple[str, Any]:
    """Return the prompt in the tokenizer's chat template, and its tokens, a tensor [length]."""
    text = render(tokenizer, record.messages, add_special_tokens=False)
    return text, tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]


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


def is_generated(messages: MessageLog) -> bool:
    """Whether a conversation has a reply, be it an empty one."""
    return any(message["role"] == "assistant" for message in messages)


def score_generated(
    environment: Environment, rollouts: Sequence[Rollout], generated: Sequence[bool]
) -> list[Score]:
    """Ask the environment for scores; a reply that was not generated costs the group that needs it.

    That is its counterfactual set, or its prompt's generations, where these are scored together,
    and the rollout alone where they are not.
    """
    keys = [
        {"set": rollout.set_id, "prompt": rollout.prompt_id, "rollout": str(row)}[environment.scope]
        for row, rollout in enumerate(rollouts)
    ]
    missing = {key for key, present in zip(keys, generated, strict=True) if not present}
    complete = [rollout for key, rollout in zip(keys, rollouts, strict=True) if key not in missing]
    scores = iter(score_within_budget(environment, complete) if complete else ())
    return [Score(None, error=NOT_GENERATED) if key in missing else next(scores) for key in keys]


def without_failures(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[float]:
    """Rewards in which a failed score is the mean of its prompt's valid siblings.

    NeMo-RL takes numbers alone. With that one the failed rollout has advantage 0, and the
    baseline of its siblings is what it would be without it. Where all of a prompt's scores failed,
    all are 0 and so are their advantages. Raises `MissingSiblingsError` for a failed score of a
    rollout that came alone: its siblings are in other calls.
    """
    number = Counter(rollout.prompt_id for rollout in rollouts)
    failed = [r for r, score in zip(rollouts, scores, strict=True) if score.value is None]
    if alone := [rollout.prompt_id for rollout in failed if number[rollout.prompt_id] == 1]:
        raise MissingSiblingsError(
            f"{len(alone)} rollouts failed and came without siblings, the first of {alone[0]}"
        )
    return sibling_means(rollouts, scores)


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One step of one split: a row for the history, and why scores failed, None for the others."""

    row: dict[str, float]
    errors: tuple[Failure | None, ...]
    sample: Sample = ()  # what is kept of the step's rollouts


@dataclass(slots=True)
class StepScorer:
    """Scores what NeMo-RL sends, and keeps it until the driver asks for the step's summary.

    One call is of one split, and holds whole groups: a step, or one of its batches.
    """

    environment: Environment
    choose: Choice = nothing
    _calls: list[tuple[list[Rollout], list[Score]]] = field(init=False, default_factory=list)

    def rewards(
        self, messages: Sequence[MessageLog], metadata: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """Return the reward of each message log. Raises `IncompleteSetError` on a part of a set."""
        rollouts = to_rollouts(messages, metadata)
        scores = score_generated(self.environment, rollouts, [is_generated(m) for m in messages])
        self._calls.append((rollouts, scores))
        return without_failures(rollouts, scores)

    def summary(self, split: str) -> StepSummary | None:
        """Summarise what was scored of a split since the last call; None when nothing was."""
        mine = [call for call in self._calls if call[0][0].split == split]
        self._calls = [call for call in self._calls if call[0][0].split != split]
        rollouts = [rollout for call, _ in mine for rollout in call]
        scores = [score for _, call in mine for score in call]
        if not rollouts:
            return None
        row = step_row(self.environment, rollouts, scores)
        sample = self.choose(rollouts, scores) if split == TRAIN_SPLIT else ()
        return StepSummary(row, tuple(score.error for score in scores), sample)
