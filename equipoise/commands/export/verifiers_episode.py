"""Prompts as the tasks of verifiers, an agent that asks once, and episodes that are scored whole.

The prompts of a set, or one prompt, are one task. A trainer subtracts from a reward the mean of the
prompt's other replies, so each prompt of a set has an agent of its own, and all of its generations
are in one episode.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, Scope, Score
from equipoise.commands.export.task import Rewards, RewardSettings, groups_of
from equipoise.files.disk import read_yaml
from equipoise.run.rollouts import rollout_of

#: An agent that needs no sandbox: it starts nothing.
IN_THIS_PROCESS = vf.AgentConfig(runtime=vf.SubprocessConfig())


class PromptsData(vf.TaskData):
    """The names of the prompts; what decides a reward stays out of the traces."""

    prompt_ids: tuple[str, ...]


class PromptsTask(vf.Task[PromptsData]):
    """Prompts whose replies are scored together, by the environment of the episode."""


class PromptsConfig(vf.TasksetConfig):
    """Which of the exported prompts are asked: those of training, or those of validation."""

    validation: bool = False


class PromptsTaskset(vf.Taskset[PromptsTask, PromptsConfig]):
    """The prompts of an exported package, which names its folder and what is scored together."""

    FOLDER: ClassVar[Path]
    SCOPE: ClassVar[Scope]

    def load(self) -> Iterator[PromptsTask]:
        """One task for each seat of the episode's agents, in the order of the file."""
        split = VALIDATION_SPLIT if self.config.validation else TRAIN_SPLIT
        records = [r for r in settings_of(self.FOLDER).records() if r.split == split]
        for group in groups_of(records, self.SCOPE).values():
            ids = tuple(record.id for record in group)
            yield PromptsTask(PromptsData(id=ids[0], prompt_ids=ids, prompt=[]), self.config.task)


def settings_of(folder: Path) -> RewardSettings:
    return RewardSettings.model_validate(read_yaml(folder / "settings.yaml"))


class AskOnce(vf.Harness[vf.HarnessConfig]):
    """One chat completion from the messages of a task.

    The harnesses of verifiers start a program for each rollout, which takes seconds of CPU time.
    """

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, _trace: Any, _runtime: Any, url: str, secret: str, _urls: Any, data: Any
    ) -> vf.ProgramResult:
        """Ask; what was answered is recorded on the way. A status that is not 200 is a failure."""
        body = {"model": ctx.model, "messages": [message_to_wire(m) for m in data.prompt]}
        headers = {"Authorization": f"Bearer {secret}"}
        unlimited = aiohttp.ClientTimeout(total=None)  # an agent's timeout is in its configuration
        async with (
            aiohttp.ClientSession(timeout=unlimited, headers=headers) as session,
            session.post(f"{url}/chat/completions", json=body) as response,
        ):
            failure = "" if response.ok else f"HTTP {response.status}: {await response.text()}"
        return vf.ProgramResult(exit_code=int(bool(failure)), stdout="", stderr=failure)


class EpisodeConfig(vf.EnvConfig):
    """Agents are added by the exported package: one for each prompt of a task."""

    max_concurrent_agents: int | None = None
    generations: int = 1
    #: Rewards minus their prompt's mean, for a trainer that subtracts that of the whole episode.
    centered: bool = False


class EpisodeEnv(vf.Env[EpisodeConfig]):
    """The environment of an exported package, which names its folder and its agents."""

    FOLDER: ClassVar[Path]
    _rewards: Rewards

    async def start(self) -> None:
        """Open what rewards are made with. Raises `EquipoiseError` with the remedy."""
        self._rewards = await asyncio.to_thread(Rewards, settings_of(self.FOLDER))

    async def run(self, task: PromptsTask, agents: vf.Agents) -> None:
        """Ask for every prompt as often as there are generations, all at once."""
        calls = []
        for agent, name in zip(self._agent_specs, task.data.prompt_ids, strict=True):
            prompt = self._rewards.records[name].messages
            data = PromptsData.model_validate({"id": name, "prompt_ids": [name], "prompt": prompt})
            task_of_prompt = PromptsTask(data, self.taskset.config.task)
            calls += [(getattr(agents, agent), task_of_prompt)] * self.config.generations
        await asyncio.gather(*(agent.run(prompt) for agent, prompt in calls))

    async def finalize(self, _task: PromptsTask, episode: vf.Episode) -> None:
        """Give the rewards. A trace without one fails, so that no trainer uses it."""
        if not all(trace.ok for trace in episode.traces):
            for trace in episode.traces:
                if trace.ok:
                    trace.record_error(vf.EnvError("a reply was lost that is scored with it"))
            return
        scores = await asyncio.gather(*(self._score(t, episode.id) for t in episode.traces))
        values: dict[str, list[float]] = {}
        scored = list(zip(episode.traces, scores, strict=True))
        for trace, score in scored:
            if score.value is not None and self.config.centered:
                values.setdefault(trace.task.data.id, []).append(score.value)
        for trace, score in scored:
            of_prompt = values.get(trace.task.data.id)
            record(trace, score, fmean(of_prompt) if of_prompt else None)

    async def _score(self, trace: vf.Trace, episode_id: str) -> Score:
        replies, record = trace.assistant_messages, self._rewards.records[trace.task.data.id]
        rollout = rollout_of(record, (replies[-1].content if replies else None) or "")
        generations = self.config.generations
        reward = await self._rewards.sets.ask(rollout, generations, trace.id, attempt=episode_id)
        return reward.score


def record(trace: vf.Trace, score: Score, baseline: float | None) -> None:
    """Write a score into the trace of its reply; minus a baseline it stays a metric as it was."""
    trace.record_metrics(dict(score.components))
    if score.error:
        trace.record_error(vf.EnvError(f"{score.error.kind}: {score.error.text}"))
    elif score.value is not None:
        if baseline is not None:
            trace.record_metrics({"reward_of_environment": score.value})
        trace.record_reward("reward", score.value - (baseline or 0.0))
