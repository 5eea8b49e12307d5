"""The environment of a mixture, which lets each task's own environment score its replies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pvariance
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from environments.base import (
    REWARD,
    TRAIN_SPLIT,
    DealtReply,
    Message,
    PromptRecord,
    Rollout,
    Scope,
    Score,
    SetupError,
    outcomes_of,
)
from environments.chat import ChatModel
from environments.contract import Environment
from environments.encoder import Encoder, EncoderSettings
from environments.measurement import Mean, Measurement, measure_means
from environments.mixture.measurement import Objective, TaskPart, joined, presentation_of
from environments.mixture.settings import MixtureSettings, scale_sets

#: The metadata key that says of which task a prompt is.
TASK_KEY = "task"
#: The mean over tasks of their objectives.
MEAN_OBJECTIVE = "mean_objective"
#: Beside evaluation.json: the scales, and what they were measured from.
SCALES = "mixture.json"


Model = TypeVar("Model", str, EncoderSettings)


class MixtureSetupError(SetupError):
    """Two tasks need what one process can hold once, or one lacks what a mixture needs."""

    remedy: ClassVar[str] = "Change env.mixture.tasks; null leaves a task out."


class TaskScore(BaseModel, frozen=True):
    """The score of a task's own environment, without what only a reader needs."""

    value: float | None
    components: dict[str, float]
    outcome: dict[str, Any] | None


class MixtureEnvironment(Environment):
    """Scores each reply as its task alone does, and divides by the constant scale of the task.

    A group's deviation would bring tasks to one scale, too, and breaks a reward whose mean is a
    coefficient of a gradient: it rewards giving up the spread. See docs/mixture.md.
    """

    name = "mixture"
    scope: ClassVar[Scope] = "set"
    set_size: ClassVar[int] = 2  # never read: settings say the prompts of a round
    objective: ClassVar[str] = MEAN_OBJECTIVE
    #: Each task may lose one margin of its own; on average, no more.
    objective_margin: ClassVar[float] = 1.0
    Settings = MixtureSettings

    settings: MixtureSettings

    def __init__(self, settings: MixtureSettings) -> None:
        if not settings.mixed:
            raise MixtureSetupError(
                "mixture.too-few-tasks", "a mixture has at least two tasks, and none is named"
            )
        self.settings = settings
        #: Every task's own environment.
        self.tasks: dict[str, Environment] = {
            name: task.environment_class(task.environment_settings)
            for name, task in settings.mixed.items()
        }
        self._spreads: dict[str, float] = {}
        self._objectives: dict[str, Objective] = {}
        for name, task in self.tasks.items():
            margin = task.margin()
            if margin is None:
                raise MixtureSetupError(
                    "mixture.no-margin",
                    f"the task {task.name} does not say how much worse its {task.objective} may be "
                    "(objective_margin), and tasks are counted in such margins",
                )
            self._objectives[name] = Objective(task.objective, margin)
        self.presentation = presentation_of(self.tasks, MEAN_OBJECTIVE)
        self._chat_model = _single([task.wanted_chat_model() for task in self.tasks.values()])
        self._encoder = _single([task.wanted_encoder() for task in self.tasks.values()])

    # --- rewards ---------------------------------------------------------------------------------

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order. Raises `ValueError` for a prompt of no task, or before the reference."""
        scores: dict[int, Score] = {}
        for name, rows in self._rows(rollouts).items():
            task_scores = self.tasks[name].score([rollouts[n] for n in rows])
            scale = self.scale(name)
            scores |= {
                n: _scaled(name, score, scale) for n, score in zip(rows, task_scores, strict=True)
            }
        return [scores[n] for n in range(len(rollouts))]

    def scale(self, name: str) -> float:
        """The divisor of a task's rewards. Raises `ValueError` before it is measured."""
        if (scale := self.settings.mixed[name].scale) is not None:
            return scale
        if name not in self._spreads:
            raise ValueError(f"the scale of {name} is not measured: call set_reference first")
        return self._spreads[name] or 1.0  # replies that all score the same say nothing of a scale

    def reward_range(self) -> tuple[float, float] | None:
        """The bounds over all tasks; not known before each has its scale."""
        names = [name for name, task in self.settings.mixed.items() if not task.scale]
        ranges = [(name, task.reward_range()) for name, task in self.tasks.items()]
        if not self._spreads.keys() >= set(names) or not all(bounds for _, bounds in ranges):
            return None
        scaled = [
            (bounds[0] / self.scale(name), bounds[1] / self.scale(name))
            for name, bounds in ranges
            if bounds
        ]
        return min(low for low, _ in scaled), max(high for _, high in scaled)

    def _rows(self, rollouts: Sequence[Rollout]) -> dict[str, list[int]]:
        """The indices of each task's rollouts; a task without any is left out."""
        rows: dict[str, list[int]] = {}
        for n, rollout in enumerate(rollouts):
            rows.setdefault(self._task_of(rollout), []).append(n)
        return {name: rows[name] for name in self.tasks if name in rows}

    def _task_of(self, prompt: Rollout | PromptRecord) -> str:
        name = prompt.metadata.get(TASK_KEY)
        if name not in self.tasks:
            raise ValueError(
                f"a prompt of set {prompt.set_id!r} is of {name!r}, which is no task of this "
                f"mixture; it has {', '.join(self.tasks)}"
            )
        return str(name)

    @property
    def reference_generations(self) -> int:
        """Completions of the frozen model per prompt."""
        return self.settings.reference_size

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Hand each task its part, and measure the scales that are not set.

        They depend on the reference alone, which a run keeps: they are the same in every process
        and after every `--resume`.
        """
        for name, rows in self._rows(rollouts).items():
            task, task_rollouts = self.tasks[name], [rollouts[n] for n in rows]
            if task.reference_generations:
                task.set_reference(task_rollouts)
            if self.settings.mixed[name].scale is None:
                sets = scale_sets(task_rollouts)
                sample = [r for r in task_rollouts if r.split == TRAIN_SPLIT and r.set_id in sets]
                self._spreads[name] = spread(sample, task.score(sample))

    # --- figures ---------------------------------------------------------------------------------

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The metrics of all tasks, and the mean of their objectives.

        A task whose objective is its mean reward has that among its metrics.
        """
        task_scores = [
            replace(score, value=None, components={}, outcome=None)
            if task_score is None
            else replace(
                score,
                value=None if score.error else task_score.value,
                components=task_score.components,
                outcome=task_score.outcome,
            )
            for score, task_score in zip(scores, outcomes_of(scores, TaskScore), strict=True)
        ]
        parts = []
        for name, rows in self._rows(rollouts).items():
            replies, reply_scores = [rollouts[n] for n in rows], [task_scores[n] for n in rows]
            parts.append(TaskPart(name, self.tasks[name].measure(replies, reply_scores)))
            if self.tasks[name].objective == REWARD:
                values = Mean([score.value for score in reply_scores], better="higher")
                reward = measure_means([reply.set_id for reply in replies], {REWARD: values})
                parts.append(TaskPart(name, reward))
        return joined(parts, self._objectives, MEAN_OBJECTIVE)

    def exports(
        self,
        rollouts: Sequence[Rollout],  # noqa: ARG002  the scales are those of any evaluation
        scores: Sequence[Score],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """The scales."""
        return {
            SCALES: {
                name: {
                    "weight": task.weight,
                    "prompts_of_a_round": self.settings.round[name].prompts,
                    "scale": self.scale(name),
                    "spread": self._spreads.get(name),
                }
                for name, task in self.settings.mixed.items()
            }
        }

    # --- what the tasks need and say -------------------------------------------------------------

    def wanted_chat_model(self) -> str | None:
        """The model that tasks ask in this process."""
        return self._chat_model

    def set_chat_model(self, model: ChatModel) -> None:
        """Hand it to the tasks that asked for it."""
        for task in self.tasks.values():
            if task.wanted_chat_model():
                task.set_chat_model(model)

    def wanted_encoder(self) -> EncoderSettings | None:
        """The encoder of the tasks."""
        return self._encoder

    def set_encoder(self, encoder: Encoder) -> None:
        """Hand it to the tasks that asked for it."""
        for task in self.tasks.values():
            if task.wanted_encoder():
                task.set_encoder(encoder)

    def sources(self) -> Mapping[str, str]:
        """Those of the tasks."""
        return {
            f"{name}/{source}": identity
            for name, task in self.tasks.items()
            for source, identity in task.sources().items()
        }

    def check(self) -> str | None:
        """The first fault of a task."""
        faults = ((name, task.check()) for name, task in self.tasks.items())
        return next((f"{name}: {fault}" for name, fault in faults if fault), None)

    # --- what a trained model is compared with ---------------------------------------------------

    def constant_replies(self) -> Sequence[str]:
        """Those of the tasks."""
        return [reply for task in self.tasks.values() for reply in task.constant_replies()]

    def trivial_replies(
        self, rollouts: Sequence[Rollout], seed: int
    ) -> Mapping[str, Sequence[str]]:
        """Those of each task, on its prompts; to the others the untrained model's replies stay."""
        policies: dict[str, list[str]] = {}
        for name, rows in self._rows(rollouts).items():
            task_policies = self.tasks[name].trivial_replies([rollouts[n] for n in rows], seed)
            for policy, replies in task_policies.items():
                completions = [rollout.completion for rollout in rollouts]
                for n, reply in zip(rows, replies, strict=True):
                    completions[n] = reply
                policies[f"{name}.{policy}"] = completions
        return policies

    def blinded(self, record: PromptRecord) -> tuple[Message, ...]:
        """The messages as the task blinds them; unchanged where nothing must not decide."""
        task = self.tasks[self._task_of(record)]
        return task.blinded(record) if task.offers(Environment.blinded) else record.messages

    def example_reply(self, record: PromptRecord) -> str | None:
        """That of the task."""
        return self.tasks[self._task_of(record)].example_reply(record)

    def dealt_replies(
        self,
        records: Sequence[PromptRecord],
        reference: Sequence[Rollout],
        passes: int,
        seed: int,
    ) -> list[DealtReply]:
        """Those of the tasks that deal; in the others each prompt keeps its own replies.

        Its own replies teach nothing, and keep what teaching the first tasks would take away.
        """
        dealt: list[DealtReply] = []
        kept: list[DealtReply] = []
        rows = self._rows(reference)
        for name, task in self.tasks.items():
            mine = [record for record in records if self._task_of(record) == name]
            replies = [reference[n] for n in rows.get(name, ())]
            if task.deals_replies:
                dealt += task.dealt_replies(mine, replies, passes, seed)
            else:
                kept += _own_replies(mine, replies, passes)
        return dealt + kept if dealt else []

    @property
    def deals_replies(self) -> bool:
        """Whether a task has replies to deal out."""
        return any(task.deals_replies for task in self.tasks.values())


def spread(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> float:
    """The deviation of rewards within a prompt: the root of the mean variance over prompts.

    Divided by it, the advantages of the model before training have a mean square of 1 in each task.
    """
    values: dict[str, list[float]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.value is not None:
            values.setdefault(rollout.prompt_id, []).append(score.value)
    return math.sqrt(fmean(map(pvariance, values.values()))) if values else 0.0


def _own_replies(
    records: Sequence[PromptRecord], reference: Sequence[Rollout], passes: int
) -> list[DealtReply]:
    """Each prompt with another one of the replies to it in each pass, until they begin anew."""
    replies: dict[str, list[str]] = {}
    for rollout in reference:
        replies.setdefault(rollout.prompt_id, []).append(rollout.completion)
    return [
        DealtReply(record, record, texts[n % len(texts)])
        for n in range(passes)
        for record in records
        if (texts := replies.get(record.id))
    ]


def _scaled(name: str, score: Score, scale: float) -> Score:
    outcome = None if score.outcome is None else dict(score.outcome)
    stored = TaskScore(value=score.value, components=dict(score.components), outcome=outcome)
    components = {f"{name}.{term}": value for term, value in score.components.items()}
    if score.value is not None:
        components[f"{name}.{REWARD}"] = score.value
    value = None if score.value is None else score.value / scale
    has_outcome = score.outcome is not None or score.error is None
    return Score(
        value, components, score.error, score.evidence, stored.model_dump() if has_outcome else None
    )


def _single(models: Sequence[Model | None]) -> Model | None:
    """The model that is wanted, if any. Raises `MixtureSetupError` for two that differ."""
    distinct = [model for model in dict.fromkeys(models) if model]
    if len(distinct) > 1:
        names = " and ".join(map(str, distinct))
        raise MixtureSetupError(
            "mixture.several-models", f"tasks want different models in this process: {names}"
        )
    return distinct[0] if distinct else None
