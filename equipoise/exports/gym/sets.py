"""Rollouts that come one by one, put together until the environment can score them.

A set is what one call must see: the generations of all prompts of a counterfactual set, or of one
prompt. Its first rollout starts the clock. A whole set is scored; at the deadline an incomplete one
fails, except that replies which are scored by themselves are scored. What comes after that begins a
new set, for a later epoch has the same prompts.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from environments.awaited_sets import sibling_means
from environments.base import FailureKind, PromptRecord, Rollout
from environments.contract import Environment
from equipoise.exports.task import RewardSettings, Scorer, groups_of
from equipoise.run.rollouts import rollout_of

#: Failures that have another name in NeMo Gym, see docs/judges.md; what Gym has no name for
#: stands in a name space of its own, as Gym asks for.
GYM_KINDS: Mapping[FailureKind, str] = {
    **dict.fromkeys(("server_error", "rate_limit", "rejected"), "judge_failed"),
    "invalid_reply": "judge_unparseable",
    "policy": "verifier_error",
    "no_comparison": "equipoise:no_comparison",
    "budget": "equipoise:budget",
}
#: Gym's name for a rollout whose companions did not come.
INCOMPLETE = "cohort_incomplete"

#: A prompt, and the number of the generation.
Seat = tuple[str, int]


class NoSuchSeatError(ValueError):
    """A rollout came for a prompt or a generation that its group does not have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reward of a rollout; where `failure_kind` is set it is to be masked.

    A failed score has the mean of its valid siblings, so that a trainer which does not mask gives
    it advantage 0 and its siblings the baseline that they have without it; 0 where there are none.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    failure_kind: str | None = None  # in NeMo Gym's vocabulary
    failure_reason: str | None = None


class _Set:
    """The rollouts that have come by their seats, and who waits for their answers."""

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.rollouts: dict[Seat, Rollout] = {}
        self.waiting: dict[Seat, asyncio.Future[Answer]] = {}


class Sets:
    """Gathers rollouts and has whole sets scored, in one event loop."""

    def __init__(
        self, environment: Environment, records: Sequence[PromptRecord], settings: RewardSettings
    ) -> None:
        self._scope, self._deadline = environment.scope, settings.deadline_seconds
        self._scorer = Scorer(environment)
        self._records = {record.id: record for record in records}
        self._generations = settings.generations
        #: The seats of each group, in order, and the group of each prompt.
        self._seats: dict[str, list[Seat]] = {}
        self._group: dict[str, str] = {}
        for group, prompts in groups_of(records, self._scope).items():
            self._group |= dict.fromkeys((record.id for record in prompts), group)
            numbers = range(self._generations)
            self._seats[group] = [(record.id, n) for record in prompts for n in numbers]
        self._open: dict[tuple[str, int], _Set] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, prompt_id: str, index: int | None, attempt: int, reply: str) -> Answer:
        """Answer a rollout when its set has scores, or at the deadline.

        `index` is the number of the generation; without it a free seat of the prompt is taken. Of
        two rollouts for one seat the newer counts. A group that is sent again has the next
        `attempt`. Cancelling one waiter does not affect the others. Raises `NoSuchSeatError`.
        """
        if prompt_id not in self._records:
            raise NoSuchSeatError(f"the server's file has no prompt {prompt_id!r}")
        if index is not None and index >= self._generations:
            raise NoSuchSeatError(
                f"generation {index} of {prompt_id!r}: there are {self._generations}, from 0 on"
            )
        loop, group = asyncio.get_running_loop(), self._group[prompt_id]
        if (group, attempt) not in self._open:
            timer = loop.call_later(self._deadline, self._close, group, attempt)
            self._open[group, attempt] = _Set(timer)
        filling = self._open[group, attempt]
        free = (n for n in range(self._generations) if (prompt_id, n) not in filling.rollouts)
        seat = (prompt_id, next(free, 0) if index is None else index)
        if replaced := filling.waiting.get(seat):
            replaced.set_result(_failed("another rollout has come for its seat"))
        filling.rollouts[seat] = rollout_of(self._records[prompt_id], reply)
        waiting = filling.waiting[seat] = loop.create_future()
        if len(filling.rollouts) == len(self._seats[group]):
            self._close(group, attempt)
        return await asyncio.shield(waiting)

    def _close(self, group: str, attempt: int) -> None:
        """Have a set scored, or fail it where a part is missing that its scores need."""
        closed, size = self._open.pop((group, attempt)), len(self._seats[group])
        closed.timer.cancel()
        if len(closed.rollouts) < size and self._scope != "rollout":
            count = f"{len(closed.rollouts)} of the {size} rollouts of {group!r}"
            for waiting in closed.waiting.values():
                waiting.set_result(_failed(f"{count} came within {self._deadline:g} s"))
            return
        task = asyncio.get_running_loop().create_task(self._score(group, closed))
        self._tasks.add(task)  # the loop alone would let it be collected
        task.add_done_callback(self._tasks.discard)

    async def _score(self, group: str, closed: _Set) -> None:
        # In the order of the seats, so that the order of arrival decides nothing.
        seats = [seat for seat in self._seats[group] if seat in closed.rollouts]
        rollouts = [closed.rollouts[seat] for seat in seats]
        scores = await self._scorer.score(group, rollouts)
        rewards = sibling_means(rollouts, scores)
        for seat, reward, score in zip(seats, rewards, scores, strict=True):
            failure = (
                (GYM_KINDS.get(score.error.kind, score.error.kind), score.error.text)
                if score.error
                else ()
            )
            closed.waiting[seat].set_result(Answer(reward, dict(score.components), *failure))


def _failed(reason: str) -> Answer:
    return Answer(0.0, failure_kind=INCOMPLETE, failure_reason=reason)
