"""Collect replies that arrive one by one, and score each complete set in one call.

A set is what one call of `score` must see: all generations of all variants of a counterfactual set,
or of one prompt. Its first reply starts the clock. At the limit a set that is not whole fails,
except that replies which are scored by themselves are scored without those that were lost.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from environments.base import Failure, Rollout, Scope, Score

_LOG = logging.getLogger(__name__)
#: A retried call comes within it after its set was closed, in seconds; then its reward is dropped.
KEPT = 300.0


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of a reply, and the number for a trainer that takes numbers alone.

    The number of a failure is the mean of its prompt's valid replies, or 0 where there are none: so
    its advantage is 0, and the baseline of the others is what it would be without it.
    """

    score: Score
    number: float


def sibling_means(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[float]:
    """Return the scores' values; a failed one is the mean of its prompt's valid ones, or 0."""
    valid: dict[str, list[float]] = {rollout.prompt_id: [] for rollout in rollouts}
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.value is not None:
            valid[rollout.prompt_id].append(score.value)
    means = {name: fmean(values) if values else 0.0 for name, values in valid.items()}
    return [
        means[rollout.prompt_id] if score.value is None else score.value
        for rollout, score in zip(rollouts, scores, strict=True)
    ]


#: A reply, and the future of its reward.
_Reply = tuple[Rollout, asyncio.Future[Reward]]


@dataclass(slots=True, eq=False)
class _Set:
    """The replies that have come, by prompt and slot, and the calls that brought them."""

    name: str
    attempt: Hashable
    generations: int
    replies: dict[tuple[str, Hashable], _Reply] = field(default_factory=dict)
    calls: list[Hashable] = field(default_factory=list)
    timer: asyncio.TimerHandle = field(init=False)

    def has_seat(self, seat: tuple[str, Hashable]) -> bool:
        """Whether a reply can replace an older one, or take a free slot of its prompt."""
        count = sum(prompt_id == seat[0] for prompt_id, _ in self.replies)
        return seat in self.replies or count < self.generations


class AwaitedSets:
    """Gathers single replies and has whole sets scored; one event loop uses it.

    `score` runs in a thread, one call at a time. Sets that become whole meanwhile are scored
    together by the next call: a judge is asked as many questions at once as in a step of training.
    `on_scores` gets the replies and the scores of every set once, be it scored or failed. `limit`
    is in seconds.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Rollout]], Sequence[Score]],
        *,
        scope: Scope,
        set_size: int,
        limit: float,
        on_scores: Callable[[Sequence[Rollout], Sequence[Score]], None] | None = None,
    ) -> None:
        self._score, self._scope, self._limit, self._on_scores = score, scope, limit, on_scores
        self._variants = set_size if scope == "set" else 1
        #: A name has several sets where more replies came for a prompt than one of them takes.
        self._open: dict[tuple[str, Hashable], list[_Set]] = {}
        #: By the call.
        self._rewards: dict[Hashable, asyncio.Future[Reward]] = {}
        self._closed: list[tuple[str, list[_Reply]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def ask(
        self,
        rollout: Rollout,
        generations: int,
        call: Hashable,
        slot: Hashable = None,
        attempt: Hashable = 0,
    ) -> Reward:
        """Return the reward of a reply when its set is scored, or at the limit.

        `generations` is the number of replies to each prompt of the set. A reply that the same
        `call` brings again gets the same reward. `slot` says which of its prompt's replies it is: a
        newer one takes the place of the older, which fails; without it any free place does. Sets of
        another `attempt` are apart. Cancelling one waiter does not affect the others.
        """
        key = (call, attempt, slot, rollout.prompt_id, hash(rollout.completion))
        if key not in self._rewards:
            self._rewards[key] = asyncio.get_running_loop().create_future()
            seat = (rollout.prompt_id, ("call", key) if slot is None else ("slot", slot))
            gathered = self._set_with(seat, rollout, generations, attempt)
            if older := gathered.replies.get(seat):
                older[1].set_result(Reward(_lost("another reply has come in its place"), 0.0))
            gathered.replies[seat] = (rollout, self._rewards[key])
            gathered.calls.append(key)
            if len(gathered.replies) == self._variants * gathered.generations:
                self._close(gathered)
        return await asyncio.shield(self._rewards[key])

    def _set_with(
        self, seat: tuple[str, Hashable], rollout: Rollout, generations: int, attempt: Hashable
    ) -> _Set:
        """Return the first open set that has the seat, or a new one."""
        name = rollout.set_id if self._scope == "set" else rollout.prompt_id
        siblings = self._open.setdefault((name, attempt), [])
        for candidate in siblings:
            if candidate.has_seat(seat):
                return candidate
        new_set = _Set(name, attempt, generations)
        new_set.timer = asyncio.get_running_loop().call_later(self._limit, self._close, new_set)
        siblings.append(new_set)
        return new_set

    def _close(self, closed: _Set) -> None:
        """Score a set, or fail it if a reply that its scores need is missing."""
        loop = asyncio.get_running_loop()
        closed.timer.cancel()
        loop.call_later(KEPT, self._forget, closed.calls)
        siblings = self._open[closed.name, closed.attempt]
        siblings.remove(closed)
        if not siblings:
            del self._open[closed.name, closed.attempt]
        # Sorted, so that the order of arrival has no effect.
        replies = sorted(closed.replies.values(), key=lambda r: (r[0].prompt_id, r[0].completion))
        size = self._variants * closed.generations
        if len(replies) < size and self._scope != "rollout":
            missing = f"{len(replies)} of the {size} replies of {closed.name!r} came"
            self._answer([replies], [[_lost(f"{missing} within {self._limit:g} s")] * len(replies)])
            return
        self._closed.append((closed.name, replies))
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())

    def _forget(self, calls: Sequence[Hashable]) -> None:
        for call in calls:
            del self._rewards[call]

    async def _work(self) -> None:
        while self._closed:
            # At most one set of each name: `score` would merge two.
            batch = dict(reversed(self._closed))
            self._closed = [(name, s) for name, s in self._closed if s is not batch[name]]
            sets = list(batch.values())
            rollouts = [[rollout for rollout, _ in replies] for replies in sets]
            self._answer(sets, await asyncio.to_thread(self._score_sets, rollouts))

    def _score_sets(self, sets: Sequence[Sequence[Rollout]]) -> list[list[Score]]:
        """Score all sets in one call; if it raises, score them singly, so that only one fails.

        Every waiter gets an answer, whatever `score` raises.
        """
        try:
            scores = iter(self._score([rollout for rollouts in sets for rollout in rollouts]))
            return [[next(scores) for _ in rollouts] for rollouts in sets]
        except Exception as error:  # noqa: BLE001  the log has the traceback
            if len(sets) > 1:
                return [self._score_sets([rollouts])[0] for rollouts in sets]
            _LOG.exception("cannot score the replies to %s", sets[0][0].prompt_id)
            failure = Failure("verifier_error", f"{type(error).__name__}: {error}")
            return [[Score(None, error=failure)] * len(sets[0])]

    def _answer(self, sets: Sequence[Sequence[_Reply]], scores: Sequence[Sequence[Score]]) -> None:
        """Answer all waiters, then call the listener, which runs before any waiter resumes."""
        rollouts = [[rollout for rollout, _ in replies] for replies in sets]
        for replies, of_set, scored in zip(sets, rollouts, scores, strict=True):
            numbers = sibling_means(of_set, scored)
            for (_, reward), score, number in zip(replies, scored, numbers, strict=True):
                reward.set_result(Reward(score, number))
        if self._on_scores:
            for of_set, scored in zip(rollouts, scores, strict=True):
                self._on_scores(of_set, scored)


def _lost(reason: str) -> Score:
    return Score(None, error=Failure("cohort_incomplete", reason))
