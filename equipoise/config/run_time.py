"""Hours of a NeMo-RL run, from the estimate of a step and what is sampled around the steps."""

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.config.models import ModelShape, model_shape
from equipoise.config.schema import Config
from equipoise.config.step_time import (
    FASTEST,
    SLOWEST,
    Duration,
    Lengths,
    sampling_seconds,
    step_time,
    total,
)
from equipoise.config.workload import Workload, generations

#: Of English text, in vocabularies of 100,000 words and more.
_CHARACTERS_PER_TOKEN = 4
#: Models are loaded and vLLM is compiled; assumed.
START_SECONDS = 900
#: Replies as short as this share of `max_new_tokens` in the mean, and ...
_SHORT_REPLIES, _FULL_REPLIES = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds of a step by its parts, and of all that is sampled outside the steps, by stage."""

    step: tuple[Duration, ...]
    evaluations: Mapping[str, float]
    steps: int

    @property
    def evaluation(self) -> float:
        """Seconds of all evaluations."""
        return sum(self.evaluations.values())

    @property
    def hours(self) -> float:
        """Of the run from its start."""
        return (START_SECONDS + self.steps * total(self.step) + self.evaluation) / 3_600


def run_time(config: Config, workload: Workload) -> tuple[RunTime, RunTime] | str:
    """The least and the most that is likely, or why there is no estimate.

    The least has replies of half of `max_new_tokens` and the fastest of the published steps, the
    most full replies and the slowest.
    """
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return f"unknown: {config.policy.model_name}"
    if config.equipoise.gpu is None:
        return "equipoise.gpu is null"
    if config.policy.precision == "float32":
        return "not known for policy.precision=float32"
    return (
        _run_time(config, shape, workload, _SHORT_REPLIES, FASTEST),
        _run_time(config, shape, workload, _FULL_REPLIES, SLOWEST),
    )


def _run_time(
    config: Config, shape: ModelShape, workload: Workload, replies: float, factor: float
) -> RunTime:
    lengths = _lengths(config, workload, replies)
    parts = tuple(
        Duration(part.name, factor * part.seconds, part.formula)
        for part in step_time(config, shape, lengths)
    )
    sampled = {
        stage: factor
        * sampling_seconds(config, shape, lengths, count, _sampled_at_once(config, stage))
        for stage, (count, _) in generations(config, "nemo_rl", workload).items()
        if stage != "training"
    }
    return RunTime(parts, sampled, workload.steps(config))


def _lengths(config: Config, workload: Workload, replies: float) -> Lengths:
    """Tokens are guessed from characters; no prompt is longer than what replies leave."""
    room = config.policy.max_total_sequence_length - config.policy.generation.max_new_tokens
    prompt, longest = (
        min(characters / _CHARACTERS_PER_TOKEN, max(1, room))
        for characters in (workload.prompt_characters, workload.longest_prompt)
    )
    reply = replies * config.policy.generation.max_new_tokens
    return Lengths(prompt, reply, longest, reply)


def _sampled_at_once(config: Config, stage: str) -> int:
    grpo = config.grpo
    if stage != "validation":
        return config.equipoise.evaluation.batch_size
    prompts = grpo.val_batch_size or grpo.max_val_samples or grpo.num_prompts_per_step
    return prompts * grpo.num_generations_per_prompt
