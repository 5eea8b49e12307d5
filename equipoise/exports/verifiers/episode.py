"""Prompts as the tasks of verifiers, an agent that asks once, and episodes that are scored whole.

The prompts of a set, or one prompt, are one task. In its episode every prompt is asked, and the
replies are scored by one call. A trainer subtracts from a reward the mean of the prompt's other
replies, so each prompt of a set has an agent of its own, and all of its generations are in one
episode.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord, Rollout, Scope, Score
from equipoise.config.yaml_text import read_yaml
from equipoise.exports.task import RewardSettings, Scorer, groups_of, open_environment
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import rollout_of

#: An agent that needs no sandbox: it starts nothing.
IN_THIS_PROCESS = vf.AgentConfig(runtime=vf.SubprocessConfig())
_LOST = "a reply of the set was lost, and its rewards are of all of them together"
_ROLES = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}


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
        settings = settings_of(self.FOLDER)
        records = [record for record in read_records(settings.prompts) if record.split == split]
        for group in groups_of(records, settings.scope).values():
            ids = tuple(record.id for record in group)
            yield PromptsTask(PromptsData(id=ids[0], prompt_ids=ids, prompt=[]), self.config.task)


class ExportSettings(RewardSettings, frozen=True):
    """settings.yaml of an exported package."""

    scope: Scope


def settings_of(folder: Path) -> ExportSettings:
    """The settings of an exported package; their paths are below it."""
    content = read_yaml(folder / "settings.yaml")
    paths = {name: folder / content[name] for name in ("prompts", "reference") if content[name]}
    return ExportSettings.model_validate(content | paths)


class AskOnce(vf.Harness[vf.HarnessConfig]):
    """One chat completion from the messages of a task.

    The harnesses of verifiers start a program for each rollout, which takes seconds of CPU time.
    """

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
        messages: Any = data.prompt
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


class EpisodeConfig(vf.EnvConfig):
    """Agents are added by the exported package: one for each prompt of a task."""

    max_concurrent_agents: int | None = None
    generations: int = 1
    #: Rewards minus their prompt's mean, for a trainer that subtracts that of the whole episode.
    centered: bool = False


class EpisodeEnv(vf.Env[EpisodeConfig]):
    """The environment of an exported package, which names its folder and its agents."""

    FOLDER: ClassVar[Path]
    _records: dict[str, PromptRecord]
    _scorer: Scorer

    async def start(self) -> None:
        """Open what rewards are made with. Raises `EquipoiseError` with the remedy."""
        settings = settings_of(self.FOLDER)
        self._records = {record.id: record for record in read_records(settings.prompts)}
        self._scorer = Scorer(await asyncio.to_thread(open_environment, settings))

    async def stop(self) -> None:
        """Let the thread go, where one was started."""
        if hasattr(self, "_scorer"):
            self._scorer.close()

    async def run(self, task: PromptsTask, agents: vf.Agents) -> None:
        """Ask for every prompt as often as there are generations, all at once."""
        calls = []
        for agent, name in zip(self._agent_specs, task.data.prompt_ids, strict=True):
            messages = self._records[name].messages
            prompt: list[Any] = [_ROLES[m["role"]](content=m["content"]) for m in messages]
            of_prompt = task.with_data(id=name, prompt=prompt)
            calls += [(getattr(agents, agent), of_prompt)] * self.config.generations
        await asyncio.gather(*(agent.run(of_prompt) for agent, of_prompt in calls))

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
        values: dict[str, list[float]] = {}
        for rollout, score in zip(rollouts, scores, strict=True):
            if score.value is not None and self.config.centered:
                values.setdefault(rollout.prompt_id, []).append(score.value)
        for trace, rollout, score in zip(traces, rollouts, scores, strict=True):
            of_prompt = values.get(rollout.prompt_id)
            record(trace, score, fmean(of_prompt) if of_prompt else None)

    def _rollout(self, trace: vf.Trace) -> Rollout:
        replies = trace.assistant_messages
        completion = replies[-1].content if replies else None
        return rollout_of(self._records[trace.task.data.id], completion or "")


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
