"""The environment behind a queue: one call of `score` at a time, with all that waits.

An environment keeps state (an index, a policy, a client with its cache), so one thread calls it.
Parts that come while a call runs are scored together by the next one: another model is
asked as many questions at once as it would be in a step of training.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from environments.base import Failure, Rollout, Score
from environments.contract import Environment
from equipoise.train.stages.failures import score_within_budget

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rollouts that must be scored together: of one set, or of one prompt."""

    group: str
    rollouts: Sequence[Rollout]
    scores: asyncio.Future[list[Score]]


@dataclass(slots=True)
class Scorer:
    """Scores parts as they come; one event loop uses it."""

    environment: Environment
    _waiting: list[_Part] = field(init=False, default_factory=list)
    _worker: asyncio.Task[None] | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")

    async def score(self, group: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores in order; an error of the environment is the failure of each."""
        part = _Part(group, rollouts, asyncio.get_running_loop().create_future())
        self._waiting.append(part)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await part.scores

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            parts = self._next()
            batches = [part.rollouts for part in parts]
            scored = await loop.run_in_executor(
                self._thread, score_parts, self.environment, batches
            )
            for part, scores in zip(parts, scored, strict=True):
                if not part.scores.done():
                    part.scores.set_result(scores)

    def _next(self) -> list[_Part]:
        """Take what waits, but one part of each group: two of them would be taken for one."""
        first = {part.group: part for part in reversed(self._waiting)}
        self._waiting = [part for part in self._waiting if part is not first[part.group]]
        return list(first.values())

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def score_parts(environment: Environment, parts: Sequence[Sequence[Rollout]]) -> list[list[Score]]:
    """The scores of each part, by one call; where that raises, by one for each of them.

    So one part at which the environment raises costs no other its scores.
    """
    try:
        scores = iter(
            score_within_budget(environment, [rollout for part in parts for rollout in part])
        )
        return [[_finite(next(scores)) for _ in part] for part in parts]
    except Exception as error:  # noqa: BLE001  the server goes on, and the log has the traceback
        if len(parts) > 1:
            return [score_parts(environment, [part])[0] for part in parts]
        _LOG.exception("%s cannot score %s", environment.name, parts[0][0].prompt_id)
        failure = Failure("verifier_error", f"{type(error).__name__}: {error}")
        return [[Score(None, error=failure)] * len(parts[0])]


def _finite(score: Score) -> Score:
    """The score, or a failure where it is no number that JSON and a trainer can take."""
    if score.value is None or math.isfinite(score.value):
        return score
    return Score(None, error=Failure("verifier_error", f"the score is {score.value}"))
