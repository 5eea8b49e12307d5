"""Prompts as the tasks of verifiers, an agent that asks once, and episodes that are scored whole.

The prompts of a set, or one prompt, are one task. In its episode every prompt is asked, and the
replies are scored by one call. A trainer subtracts from a reward the mean of the prompt's other
replies, so each prompt of a set has an agent of its own, and all of its generations are in one
episode.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import aiohttp
import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord, Rollout, Score
from equipoise.config.yaml_text import read_yaml
from equipoise.exports.task import RewardSettings, Scorer, give_reference, open_environment
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import rollout_of

#: An agent that needs no sandbox: it starts nothing.
IN_THIS_PROCESS = vf.AgentConfig(runtime=vf.SubprocessConfig())
_LOST = "a reply of the set was lost, and its rewards are of all of them together"


# --- Tasks ----------------------------------------------------------------------------------------


class PromptsData(vf.TaskData):
    """The names of the prompts; what decides a reward stays out of the traces."""

    prompt_ids: tuple[str, ...]


class PromptsTask(vf.Task[PromptsData]):
    """Prompts whose replies are scored together, by the environment of the episode."""


class PromptsConfig(vf.TasksetConfig):
    """Which of the exported prompts are asked: those of training, or those of validation."""

    validation: bool = False


class PromptsTaskset(vf.Taskset[PromptsTask, PromptsConfig]):
    """The prompts of an exported package, which names its folder."""

    FOLDER: ClassVar[Path]

    def load(self) -> Iterator[PromptsTask]:
        """One task for each seat of the episode's agents, in the order of the file."""
        split = VALIDATION_SPLIT if self.config.validation else TRAIN_SPLIT
        for records in together(self.FOLDER, split):
            ids = tuple(record.id for record in records)
            yield PromptsTask(PromptsData(id=ids[0], prompt_ids=ids, prompt=[]), self.config.task)


def together(folder: Path, split: str) -> Iterator[Sequence[PromptRecord]]:
    """The prompts of a split that are scored together; the file has them one after the other."""
    settings = settings_of(folder)
    prompts = (r for r in read_records(settings.prompts) if r.split == split)
    if not settings.sets:
        yield from ([record] for record in prompts)
        return
    for _, records in groupby(prompts, key=lambda record: record.set_id):
        yield list(records)


class ExportSettings(RewardSettings, frozen=True):
    """settings.yaml of an exported package."""

    sets: bool


def settings_of(folder: Path) -> ExportSettings:
    """The settings of an exported package; their paths are below it."""
    content = read_yaml(folder / "settings.yaml")
    return ExportSettings.below(folder, content)


def messages_of(record: PromptRecord) -> list[vf.Message]:
    """A prompt's messages as verifiers has them. Raises `KeyError` for a role of its own."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    return [kinds[m["role"]](content=m["content"]) for m in record.messages]


# --- Agents ---------------------------------------------------------------------------------------


class AskOnceConfig(vf.HarnessConfig):
    """It has no keys of its own."""


class AskOnce(vf.Harness[AskOnceConfig]):
    """One chat completion from the messages of a task.

    The harnesses of verifiers start a program for each rollout, which takes seconds of CPU time.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002  it records by itself
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Ask; what was answered is recorded on the way. A status that is not 200 is a failure."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = (
            [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        )
        if system is not None:
            messages = [vf.SystemMessage(content=system), *messages]
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in messages]}
        unlimited = aiohttp.ClientTimeout(total=None)  # an agent's timeout is in its configuration
        async with aiohttp.ClientSession(timeout=unlimited) as session:
            headers = {"Authorization": f"Bearer {secret}"}
            url = f"{endpoint}/chat/completions"
            async with session.post(url, json=body, headers=headers) as response:
                text = await response.text()
        if response.status == 200:
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        return vf.ProgramResult(exit_code=1, stdout="", stderr=f"HTTP {response.status}: {text}")


# --- Episodes -------------------------------------------------------------------------------------


class EpisodeConfig(vf.EnvConfig):
    """Agents are added by the exported package: one for each prompt of a task."""

    max_concurrent_agents: int | None = None
    generations: int = Field(1, ge=1, description="replies of each agent in an episode")
    centered: bool = Field(
        False,
        description="rewards minus the mean of their prompt's, for a trainer that subtracts the "
        "mean of the whole episode",
    )


class EpisodeEnv(vf.Env[EpisodeConfig]):
    """The environment of an exported package, which names its folder and its agents."""

    FOLDER: ClassVar[Path]
    _records: dict[str, PromptRecord]
    _scorer: Scorer

    async def start(self) -> None:
        """Open what rewards are made with. Raises `EquipoiseError` with the remedy."""
        settings = settings_of(self.FOLDER)
        environment = await asyncio.to_thread(open_environment, settings)
        give_reference(environment, settings)
        self._records = {record.id: record for record in read_records(settings.prompts)}
        self._scorer = Scorer(environment)

    async def stop(self) -> None:
        """Let the thread go, where one was started."""
        if hasattr(self, "_scorer"):
            self._scorer.close()

    async def run(self, task: PromptsTask, agents: vf.Agents) -> None:
        """Ask for every prompt as often as there are generations, all at once."""
        seats = zip(self._agent_specs, task.data.prompt_ids, strict=True)
        calls: list[tuple[Any, PromptsTask]] = []
        for seat, name in seats:
            prompt = messages_of(self._records[name])
            calls.append((getattr(agents, seat), task.with_data(id=name, prompt=prompt)))
        await asyncio.gather(
            *(
                agent.run(agent_task)
                for agent, agent_task in calls
                for _ in range(self.config.generations)
            )
        )

    async def finalize(self, task: PromptsTask, episode: vf.Episode) -> None:
        """Give the rewards. A trace without one fails, so that no trainer uses it."""
        traces = episode.traces
        expected = len(task.data.prompt_ids) * self.config.generations
        if len(traces) != expected or not all(trace.ok for trace in traces):
            for trace in traces:
                fail(trace, _LOST)
            return
        rollouts = [self._rollout(trace) for trace in traces]
        scores = await self._scorer.score(task.data.id, rollouts)
        means = prompt_means(rollouts, scores) if self.config.centered else {}
        for trace, rollout, score in zip(traces, rollouts, scores, strict=True):
            record(trace, score, means.get(rollout.prompt_id))

    def _rollout(self, trace: vf.Trace) -> Rollout:
        replies = trace.assistant_messages
        completion = replies[-1].content if replies else None
        return rollout_of(self._records[trace.task.data.id], completion or "")


def prompt_means(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> dict[str, float]:
    """The mean of each prompt's valid scores."""
    values: dict[str, list[float]] = defaultdict(list)
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.value is not None:
            values[rollout.prompt_id].append(score.value)
    return {prompt_id: fmean(of_prompt) for prompt_id, of_prompt in values.items()}


def record(trace: vf.Trace, score: Score, baseline: float | None) -> None:
    """Write a score into the trace of its reply; minus a baseline it stays a metric as it was."""
    trace.record_metrics(dict(score.components))
    if score.value is not None:
        if baseline is not None:
            trace.record_metrics({"reward_of_environment": score.value})
        trace.record_reward("reward", score.value - (baseline or 0.0))
    else:
        fail(trace, f"{score.error.kind}: {score.error.text}" if score.error else "no score")


def fail(trace: vf.Trace, why: str) -> None:
    """Make a trace a failed one, where it is none yet; trainers leave failed ones out."""
    if trace.ok:
        trace.record_error(vf.EnvError(why))
