"""One episode: every prompt of a task is asked, and the replies are scored by one call.

A trainer subtracts from a reward the mean of the prompt's other replies. So each prompt of a set
has an agent of its own, and all of its generations are in one episode.
"""

import asyncio
from pathlib import Path
from typing import ClassVar

import verifiers.v1 as vf
from pydantic import Field

from environments.base import PromptRecord, Rollout, Score
from equipoise.exports.rewards.opening import give_reference, open_environment
from equipoise.exports.rewards.scoring import Scorer
from equipoise.exports.verifiers.taskset import PromptsTask, messages_of, settings_of
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import rollout_of

#: An agent that needs no sandbox: it starts nothing.
IN_THIS_PROCESS = vf.AgentConfig(runtime=vf.SubprocessConfig())
_LOST = "a reply of the set was lost, and its rewards are of all of them together"


class EpisodeConfig(vf.EnvConfig):
    """Agents are added by the exported package: one for each prompt of a task."""

    max_concurrent_agents: int | None = None
    generations: int = Field(1, ge=1, description="replies of each agent in an episode")


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
        calls = [(getattr(agents, seat), self._prompt_task(task, name)) for seat, name in seats]
        await asyncio.gather(
            *(
                agent.run(agent_task)
                for agent, agent_task in calls
                for _ in range(self.config.generations)
            )
        )

    def _prompt_task(self, task: PromptsTask, prompt_id: str) -> PromptsTask:
        prompt = messages_of(self._records[prompt_id])
        prompt_task: PromptsTask = task.with_data(id=prompt_id, prompt=prompt)
        return prompt_task

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
        for trace, score in zip(traces, scores, strict=True):
            record(trace, score)

    def _rollout(self, trace: vf.Trace) -> Rollout:
        replies = trace.assistant_messages
        completion = replies[-1].content if replies else None
        return rollout_of(self._records[trace.task.data.id], completion or "")


def record(trace: vf.Trace, score: Score) -> None:
    """Write a score into the trace of its reply."""
    trace.record_metrics(dict(score.components))
    if score.value is not None:
        trace.record_reward("reward", score.value)
    else:
        fail(trace, f"{score.error.kind}: {score.error.text}" if score.error else "no score")


def fail(trace: vf.Trace, why: str) -> None:
    """Make a trace a failed one, where it is none yet; trainers leave failed ones out."""
    if trace.ok:
        trace.record_error(vf.EnvError(why))
