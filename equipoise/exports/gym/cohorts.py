"""Rollouts that come one by one, put together until the environment can score them.

A cohort is what one call must see: the generations of all prompts of a counterfactual set, or of
one prompt. Its key is (group, attempt), and every rollout has a seat in it:

    open ──all seats taken──> scored ──> every rollout has its answer
      ├──deadline────────────────────┬─> of a set, all who came are masked
      └──a newer attempt came────────┘   of a prompt whose rollouts are scored alone, they are

A lost rollout costs its own cohort and no other, and no rollout is waited for beyond the deadline,
which begins with the first one. After a cohort its group begins anew, for a later epoch has the
same sets: what comes too late waits for its own deadline, since it cannot be told from the first of
the next epoch. A client that counts attempts has it masked at once. Everything runs on one event
loop, and nothing is awaited between looking and changing.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from environments.base import FailureKind, Rollout, Scope, Score
from equipoise.errors import EquipoiseError
from equipoise.exports.rewards import Scorer
from equipoise.train.nemo_rl.scoring import sibling_means

_LOG = logging.getLogger(__name__)

#: Each kind of failure in NeMo Gym's vocabulary, see docs/judge-client.md. What Gym has no name for
#: stands in a name space of its own, as Gym asks for.
GYM_KINDS: Mapping[FailureKind, str] = MappingProxyType(
    {
        "transport_timeout": "transport_timeout",
        "transport_unreachable": "transport_unreachable",
        "server_error": "judge_failed",
        "rate_limit": "judge_failed",
        "rejected": "judge_failed",
        "invalid_reply": "judge_unparseable",
        "policy": "verifier_error",
        "no_comparison": "equipoise:no_comparison",
        "budget": "equipoise:budget",
        "verifier_error": "verifier_error",
    }
)
#: Gym's name for a rollout whose companions did not come.
COHORT_INCOMPLETE = "cohort_incomplete"


@dataclass(frozen=True, slots=True)
class Answer:
    """The reward of a rollout; where `failure_kind` is set it is to be masked.

    A masked rollout's reward is the mean of its valid siblings, so that a trainer which does not
    mask gives it advantage 0 and its siblings the baseline that they have without it; 0 where there
    are none, for then all of a prompt's rollouts have 0.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    failure_kind: str | None = None  # in NeMo Gym's vocabulary
    failure_reason: str | None = None


def answers_of(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[Answer]:
    """The answers to rollouts that were scored together, in order."""
    rewards = sibling_means(rollouts, scores)
    return [_answer(*both) for both in zip(rewards, scores, strict=True)]


def _answer(reward: float, score: Score) -> Answer:
    kind = GYM_KINDS[score.error.kind] if score.error else None
    return Answer(reward, dict(score.components), kind, score.error.text if score.error else None)


# --- The store ------------------------------------------------------------------------------------

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, token TEXT UNIQUE, "
    "answer TEXT NOT NULL)"
)
_GET = "SELECT answer FROM answers WHERE token = ?"
_PUT = "INSERT OR REPLACE INTO answers (token, answer) VALUES (?, ?)"
_TRIM = "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?"


class KeptAnswers:
    """Answers by token, the last `capacity` of them, in SQLite; without a path in memory alone.

    A `put` is one transaction, which survives the end of the process and not every loss of power.
    The file must lie on a disk of this machine. Raises `EquipoiseError` where it cannot be opened;
    trouble after that is logged, and every waiter is answered all the same.
    """

    def __init__(self, path: Path | None = None, capacity: int = 100_000) -> None:
        self._capacity = capacity
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time uses it: the event loop's.
            self._connection = sqlite3.connect(path or ":memory:", check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise EquipoiseError(
                f"the answers that were given cannot be kept in {path}: {error}",
                "Name another file in equipoise.answers; it must lie on a disk of this machine.",
            ) from error

    def get(self, token: str) -> Answer | None:
        """The answer that was given; None where there was none."""
        try:
            row = self._connection.execute(_GET, (token,)).fetchone()
        except sqlite3.Error:
            _LOG.exception("answers that were given cannot be read")
            return None
        return Answer(**json.loads(row[0])) if row else None

    def put(self, answers: Mapping[str, Answer]) -> None:
        """Keep answers by token."""
        rows = [(token, json.dumps(asdict(answer))) for token, answer in answers.items()]
        try:
            with self._connection:
                self._connection.executemany(_PUT, rows)
                self._connection.execute(_TRIM, (self._capacity,))
        except sqlite3.Error:
            _LOG.exception("answers cannot be kept: a restart would lose them")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


# --- Cohorts --------------------------------------------------------------------------------------

#: A prompt, and the number of the generation.
Seat = tuple[str, int]
#: A group, and the number of the attempt.
Key = tuple[str, int]


class SeatTakenError(ValueError):
    """Two rollouts came for one seat: which of them was meant cannot be known."""


class NoSuchSeatError(ValueError):
    """A rollout came for a prompt or a generation that its group does not have."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rollout as it comes; its `token` is the same when it is sent again, and no other's.

    `index` is the number of the generation; None takes any seat of the prompt that is free.
    """

    key: Key
    index: int | None
    token: str
    rollout: Rollout


@dataclass(slots=True, eq=False)
class _Cohort:
    """Who has come; `answers` has one for each token, once there are any."""

    key: Key
    seats: Sequence[Seat]
    answers: asyncio.Future[Mapping[str, Answer]]
    arrived: dict[Seat, Arrival] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    @property
    def missing(self) -> list[Seat]:
        return [seat for seat in self.seats if seat not in self.arrived]

    @property
    def arrivals(self) -> list[Arrival]:
        """In the order of the seats, so that the order of arrival decides nothing."""
        return [self.arrived[seat] for seat in self.seats if seat in self.arrived]


@dataclass(slots=True)
class Cohorts:
    """Gathers rollouts and has them scored. `seats_of` has the seats of every group, in order."""

    scorer: Scorer
    store: KeptAnswers
    scope: Scope
    seats_of: Mapping[str, Sequence[Seat]]
    deadline: float  # seconds
    _open: dict[Key, _Cohort] = field(init=False, default_factory=dict)
    _newest: dict[str, int] = field(init=False, default_factory=dict)
    _waiting: dict[str, asyncio.Future[Mapping[str, Answer]]] = field(
        init=False, default_factory=dict
    )
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    async def ask(self, arrival: Arrival) -> Answer:
        """Answer a rollout as soon as its cohort has scores, and again the same if sent again.

        Cancelling one waiter does not affect the others: the rollout stays in its seat. Raises
        `NoSuchSeatError` and `SeatTakenError`.
        """
        if answer := self.store.get(arrival.token):
            return answer
        if arrival.token not in self._waiting:
            self._refuse_no_seat(arrival)
            if stale := self._newer_attempt(arrival.key):
                return stale
            self._seat(arrival, self._open.get(arrival.key) or self._opened(arrival.key))
        answers = await asyncio.shield(self._waiting[arrival.token])
        return answers[arrival.token]

    def _refuse_no_seat(self, arrival: Arrival) -> None:
        group, prompt_id = arrival.key[0], arrival.rollout.prompt_id
        numbers = [number for name, number in self.seats_of.get(group, ()) if name == prompt_id]
        if not numbers:
            raise NoSuchSeatError(f"{prompt_id!r} is no prompt of {group!r}")
        if arrival.index is not None and arrival.index not in numbers:
            raise NoSuchSeatError(
                f"generation {arrival.index} of {prompt_id!r}: there are {len(numbers)}, from 0 on"
            )

    def _newer_attempt(self, key: Key) -> Answer | None:
        """The answer to an attempt that another one has replaced; a new one closes the old."""
        group, attempt = key
        newest = self._newest.setdefault(group, attempt)
        if attempt < newest:
            return _incomplete(f"attempt {attempt} of {group!r} was replaced by attempt {newest}")
        if attempt > newest:
            self._newest[group] = attempt
            if replaced := self._open.get((group, newest)):
                self._give_up(replaced, f"it was replaced by attempt {attempt}")
        return None

    def _opened(self, key: Key) -> _Cohort:
        loop = asyncio.get_running_loop()
        cohort = _Cohort(key, self.seats_of[key[0]], loop.create_future())
        self._open[key] = cohort
        late = f"the deadline of {self.deadline:g} s"
        cohort.timer = loop.call_later(self.deadline, self._give_up, cohort, late)
        return cohort

    def _seat(self, arrival: Arrival, cohort: _Cohort) -> None:
        cohort.arrived[_free_seat(cohort, arrival)] = arrival
        self._waiting[arrival.token] = cohort.answers
        if not cohort.missing:
            self._score(cohort)

    def _give_up(self, cohort: _Cohort, why: str) -> None:
        """End a cohort that is not whole: score what is scored alone, mask what is not."""
        if self.scope == "rollout":
            self._score(cohort)
            return
        missing = cohort.missing
        prompt_id, number = missing[0]
        masked = _incomplete(
            f"{len(cohort.arrived)} of the {len(cohort.seats)} rollouts of {cohort.key[0]!r} came "
            f"before {why}; missing: generation {number} of {prompt_id!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        )
        self._close(cohort)
        self._answer(cohort, [masked] * len(cohort.arrived))

    def _score(self, cohort: _Cohort) -> None:
        self._close(cohort)
        task = asyncio.get_running_loop().create_task(self._scored(cohort))
        self._tasks.add(task)  # the loop alone would let it be collected
        task.add_done_callback(partial(self._done, cohort))

    async def _scored(self, cohort: _Cohort) -> None:
        rollouts = [arrival.rollout for arrival in cohort.arrivals]
        scores = await self.scorer.score(cohort.key[0], rollouts)
        self._answer(cohort, answers_of(rollouts, scores))

    def _done(self, cohort: _Cohort, task: asyncio.Task[None]) -> None:
        """Pass an error, such as a full disk, to the calls that wait."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not cohort.answers.done():
            cohort.answers.set_exception(error)
            self._dismiss(cohort)

    def _answer(self, cohort: _Cohort, answers: Sequence[Answer]) -> None:
        """Keep the answers, then give them: what was answered is never lost."""
        tokens = [arrival.token for arrival in cohort.arrivals]
        answers_by_token = dict(zip(tokens, answers, strict=True))
        self.store.put(answers_by_token)
        cohort.answers.set_result(answers_by_token)
        self._dismiss(cohort)

    def _dismiss(self, cohort: _Cohort) -> None:
        for arrival in cohort.arrivals:
            self._waiting.pop(arrival.token, None)

    def _close(self, cohort: _Cohort) -> None:
        """Close it to rollouts; after one more deadline, attempts may begin anew."""
        if cohort.timer:
            cohort.timer.cancel()
        del self._open[cohort.key]
        asyncio.get_running_loop().call_later(self.deadline, self._forget, cohort.key)

    def _forget(self, key: Key) -> None:
        if key not in self._open and self._newest.get(key[0]) == key[1]:
            del self._newest[key[0]]


def _free_seat(cohort: _Cohort, arrival: Arrival) -> Seat:
    """Return the seat of a rollout. Raises `SeatTakenError`."""
    prompt_id, index = arrival.rollout.prompt_id, arrival.index
    free = (s for s in cohort.missing if s[0] == prompt_id and index in (None, s[1]))
    seat = next(free, None)
    if seat is None:
        group, attempt = cohort.key
        which = "every generation" if index is None else f"generation {index}"
        raise SeatTakenError(
            f"another rollout has come for {which} of {prompt_id!r} in attempt {attempt} of "
            f"{group!r}: send the whole group again with the next attempt"
        )
    return seat


def _incomplete(reason: str) -> Answer:
    return Answer(0.0, failure_kind=COHORT_INCOMPLETE, failure_reason=reason)
