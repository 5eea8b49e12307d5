"""Every environment as a task of Inspect: its providers ask, our code scores and measures.

One sample is one reply to a prompt of the evaluated split. Where rewards are of single replies, a
sample's score is its reward; whole counterfactual sets are scored when all samples are there.
"""

import logging
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial

from anyio import CapacityLimiter, to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import TaskState, generate
from pydantic import TypeAdapter

from environments.base import PromptRecord
from environments.contract import Environment
from equipoise.commands.export.task import ROOT
from equipoise.config import Options, load_config
from equipoise.files.errors import UsageError
from equipoise.run.rollouts import read_rollouts, rollout_of
from equipoise.run.task import make_environment, make_prompts, prepare_task, provide_models


@task(name="equipoise")
def equipoise(
    task: str, config: str = "nemo_configs/small.yaml", reference: str | None = None, keys: str = ""
) -> Task:
    """A task of ours for Inspect. Raises `EquipoiseError`.

    `config` and `keys`, words such as `equipoise.data.num_samples=64`, are those of a recipe;
    `reference` is the reference.jsonl of an evaluation, for an environment that compares with it.
    Both files are below the repository, for Inspect moves into this folder, or whole paths.
    """
    options = Options((ROOT / config,), assignments=tuple(shlex.split(keys)))
    loaded = load_config(task, options, to_train=False)
    prepare_task(loaded, logging.getLogger(__name__).info)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    provide_models(environment, loaded.config.equipoise.cache_dir)
    if environment.reference_generations:
        if reference is None:
            raise UsageError(
                "inspect.no-reference",
                f"{environment.name} compares with what a model decides on average",
                "Name it with -T reference=FILE: `equipoise evaluate` writes reference.jsonl.",
            )
        environment.set_reference(read_rollouts(ROOT / reference))
    split = loaded.config.equipoise.evaluation.split
    tested = [record for record in make_prompts(loaded, to_train=False) if record.split == split]
    records = sorted(tested, key=lambda record: record.set_id)  # so that --limit takes whole sets
    generations = loaded.config.equipoise.evaluation.generations
    samples = [
        Sample(
            input=TypeAdapter(list[ChatMessage]).validate_python(record.messages),
            id=f"{record.id}#{number}",
            metadata={"prompt_id": record.id, "set_id": record.set_id, **record.metadata},
        )
        for record in records
        for number in range(generations)
    ]
    rewards = scoring(environment, records, generations)
    return Task(dataset=samples, solver=generate(), scorer=rewards)


def scoring(environment: Environment, records: Sequence[PromptRecord], generations: int) -> Scorer:
    """The reward of each reply, and the environment's own metrics over all of them."""
    by_id = {record.id: record for record in records}
    prompts = Counter(record.set_id for record in records)
    one_at_a_time = CapacityLimiter(1)  # an environment keeps state

    @metric(name="measured")
    def measured() -> Metric:
        def compute(scores: list[SampleScore]) -> dict[str, float]:
            prompt_ids = [str(score.sample_id).rpartition("#")[0] for score in scores]
            replies = [
                rollout_of(by_id[prompt_id], score.score.answer or "")
                for prompt_id, score in zip(prompt_ids, scores, strict=True)
            ]
            if environment.scope == "set":  # without those that --limit cut
                counts = Counter(rollout.set_id for rollout in replies)
                complete = {s for s, count in counts.items() if count == generations * prompts[s]}
                replies = [rollout for rollout in replies if rollout.set_id in complete]
            count = {"replies_measured": float(len(replies))}
            if not replies:
                return count
            # What a remote scorer has said of a reply is in its cache by now.
            figures = environment.measure(replies, environment.score(replies)).point_estimates()
            return count | {n: math.nan if v is None else float(v) for n, v in figures.items()}

        return compute

    @scorer(name="reward", metrics=[measured()])
    def reward() -> Scorer:
        async def score(state: TaskState, _target: Target) -> Score:
            reply = state.output.completion
            if environment.scope != "rollout":
                return Score(value="scored with the others", answer=reply)
            rollout = rollout_of(by_id[state.metadata["prompt_id"]], reply)
            alone = partial(environment.score, [rollout])
            (ours,) = await to_thread.run_sync(alone, limiter=one_at_a_time)
            metadata = {"components": dict(ours.components), "evidence": dict(ours.evidence)}
            if ours.value is None:
                failure = f"{ours.error.kind}: {ours.error.text}" if ours.error else None
                return Score.unscored(reason=failure, answer=reply, metadata=metadata)
            return Score(value=ours.value, answer=reply, metadata=metadata)

        return score

    return reward()
