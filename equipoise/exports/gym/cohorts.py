"""Rollouts that come one by one, put together until the environment can score them.

A cohort is what one call must see: the generations of all prompts of a counterfactual set, or of
one prompt. Its key is (group, attempt), and every rollout has a seat in it:

    open ──all seats taken──> scored ──> every rollout has its answer
      ├──deadline────────────────────┬─> of a set, all who came are masked
      └──a newer attempt came────────┘   of a prompt whose rollouts are scored alone, they are

A lost rollout costs its own cohort and no other, and no rollout is waited for beyond the deadline,
which begins with the first one. After a cohort its group begins anew, for a later epoch has the
same sets. A reply that comes too late cannot be told from the first of the next epoch, so the seats
that a given-up cohort missed are remembered as owed:

    one rollout comes for an owed seat     it sits there in doubt: for one more deadline after the
                                           given-up cohort it may be late, and its cohort waits
    a second one comes for it              it takes the seat; the older one was late, and is masked
    none comes until the cohort's deadline it was not late, and the cohort is scored
    no other seat of the cohort is taken   all that came were late, and are masked

A seat is owed for three deadlines. What is late by one more deadline sits in doubt by then, in a
cohort that ends at most two deadlines later: one begins with what is in doubt, one with the first
that is not. After that a second rollout for a seat is refused, as where nothing was lost: it has
been sent twice, or is later than anything here can be told of.

A client that counts attempts has a late one masked at once. Everything runs on one event loop, and
nothing is awaited between looking and changing.
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

from environments.base import FailureKind, Rollout, Scope
from equipoise.errors import EquipoiseError
from equipoise.exports.task import Scorer
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
                "gym.unusable-answers-file",
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
    `created` is when its completion was made, in seconds; of equal ones the first to come is older.
    """

    key: Key
    index: int | None
    token: str
    rollout: Rollout
    created: float = 0.0

    def fits(self, seat: Seat) -> bool:
        """Whether it may sit there."""
        return seat[0] == self.rollout.prompt_id and self.index in (None, seat[1])


@dataclass(slots=True, eq=False)
class _Cohort:
    """Who has come, in order; in the seats `in_doubt` sit rollouts that may be late ones."""

    key: Key
    seats: Sequence[Seat]
    arrived: dict[Seat, Arrival] = field(default_factory=dict)
    in_doubt: set[Seat] = field(default_factory=set)
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
    _waiting: dict[str, asyncio.Future[Answer]] = field(init=False, default_factory=dict)
    #: Until when a rollout that a given-up cohort missed there may come late, oldest first; the
    #: seat is owed for two more deadlines.
    _owed: dict[tuple[Key, Seat], list[float]] = field(init=False, default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    async def ask(self, arrival: Arrival) -> Answer:
        """Answer a rollout as soon as its cohort has scores, and again the same if sent again.

        Cancelling one waiter does not affect the others: the rollout stays in its seat. Raises
        `NoSuchSeatError` and `SeatTakenError`.
        """
        if answer := self.store.get(arrival.token):
            return answer
        waiting = self._waiting.get(arrival.token)
        if waiting is None:
            self._refuse_no_seat(arrival)
            if stale := self._newer_attempt(arrival.key):
                return stale
            opened = _Cohort(arrival.key, self.seats_of[arrival.key[0]])
            waiting = self._seat(arrival, self._open.setdefault(arrival.key, opened))
        return await asyncio.shield(waiting)

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

    def _seat(self, arrival: Arrival, cohort: _Cohort) -> asyncio.Future[Answer]:
        """Seat a rollout; of two for an owed seat the newer. Raises `SeatTakenError`."""
        loop, late = asyncio.get_running_loop(), None
        free = [seat for seat in cohort.missing if arrival.fits(seat)]
        if free:
            seat = max(free, key=lambda seat: bool(self._debts(cohort.key, seat)))
            if max(self._debts(cohort.key, seat), default=0.0) > loop.time():
                cohort.in_doubt.add(seat)
        else:
            seat, late = self._late_one(cohort, arrival)
        waiting = self._waiting[arrival.token] = loop.create_future()
        if late is not arrival:
            cohort.arrived.pop(seat, None)
            cohort.arrived[seat] = arrival
        if late:
            self._end(cohort, [late], "its cohort was given up, and another rollout has its seat")
        if not cohort.missing and not cohort.in_doubt:
            self._give_up(cohort, "")
        elif cohort.timer is None or cohort.arrived.keys() - cohort.in_doubt == {seat}:
            if cohort.timer:  # a late rollout alone does not begin the deadline
                cohort.timer.cancel()
            why = f"the deadline of {self.deadline:g} s"
            cohort.timer = loop.call_later(self.deadline, self._give_up, cohort, why)
        return waiting

    def _late_one(self, cohort: _Cohort, arrival: Arrival) -> tuple[Seat, Arrival]:
        """Return the older of two for an owed seat, and the seat. Raises `SeatTakenError`."""
        filled = [seat for seat in cohort.arrived if arrival.fits(seat)]
        owed = [seat for seat in filled if self._debts(cohort.key, seat)]
        if not owed:
            group, attempt = cohort.key
            which = "every generation" if arrival.index is None else f"generation {arrival.index}"
            raise SeatTakenError(
                f"another rollout has come for {which} of {arrival.rollout.prompt_id!r} in attempt "
                f"{attempt} of {group!r}: send the whole group again with the next attempt"
            )
        paid = max(owed, key=lambda seat: seat in cohort.in_doubt)
        self._debts(cohort.key, paid).pop(0)
        cohort.in_doubt.discard(paid)
        seat = min(filled, key=lambda seat: cohort.arrived[seat].created)
        return seat, min(cohort.arrived[seat], arrival, key=lambda late: late.created)

    def _give_up(self, cohort: _Cohort, why: str) -> None:
        """End a cohort; of one that is not whole, remember for which seats rollouts may be late.

        After one more deadline, attempts may begin anew.
        """
        if cohort.timer:
            cohort.timer.cancel()
        del self._open[cohort.key]
        asyncio.get_running_loop().call_later(self.deadline, self._forget, cohort.key)
        if missing := cohort.missing:
            self._remember(cohort)
            prompt_id, number = missing[0]
            why = (
                f"{len(cohort.arrived)} of the {len(cohort.seats)} rollouts of {cohort.key[0]!r} "
                f"came before {why}; missing: generation {number} of {prompt_id!r}"
                + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            )
        self._end(cohort, cohort.arrivals, why if missing else "")

    def _remember(self, cohort: _Cohort) -> None:
        """Note the missing seats as owed; where all that came were late, those as paid instead."""
        until = asyncio.get_running_loop().time() + self.deadline
        if all(self._debts(cohort.key, seat) for seat in cohort.arrived):
            for seat in cohort.arrived:
                self._debts(cohort.key, seat).pop(0)
        else:
            for seat in cohort.missing:
                self._owed.setdefault((cohort.key, seat), []).append(until)

    def _debts(self, key: Key, seat: Seat) -> list[float]:
        """Return what the seat is owed for, without what is written off by now."""
        oldest = asyncio.get_running_loop().time() - 2 * self.deadline
        debts = [until for until in self._owed.pop((key, seat), []) if until > oldest]
        if debts:  # of a seat that owes nothing nothing is kept: there are as many as replies
            self._owed[key, seat] = debts
        return debts

    def _end(self, cohort: _Cohort, arrivals: Sequence[Arrival], why_incomplete: str) -> None:
        """Mask rollouts that are incomplete and not scored alone; have the others scored."""
        if why_incomplete and self.scope != "rollout":
            self._answer(arrivals, [_incomplete(why_incomplete)] * len(arrivals))
            return
        task = asyncio.get_running_loop().create_task(self._scored(cohort.key[0], arrivals))
        self._tasks.add(task)  # the loop alone would let it be collected
        task.add_done_callback(partial(self._done, arrivals))

    async def _scored(self, group: str, arrivals: Sequence[Arrival]) -> None:
        rollouts = [arrival.rollout for arrival in arrivals]
        scores = await self.scorer.score(group, rollouts)
        rewards = sibling_means(rollouts, scores)
        answers = [
            Answer(
                reward,
                dict(score.components),
                *((GYM_KINDS[score.error.kind], score.error.text) if score.error else ()),
            )
            for reward, score in zip(rewards, scores, strict=True)
        ]
        self._answer(arrivals, answers)

    def _done(self, arrivals: Sequence[Arrival], task: asyncio.Task[None]) -> None:
        """Pass an error, such as a full disk, to the calls that wait."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            for arrival in arrivals:
                if waiting := self._waiting.pop(arrival.token, None):
                    waiting.set_exception(error)

    def _answer(self, arrivals: Sequence[Arrival], answers: Sequence[Answer]) -> None:
        """Keep the answers, then give them: what was answered is never lost."""
        tokens = [arrival.token for arrival in arrivals]
        answers_by_token = dict(zip(tokens, answers, strict=True))
        self.store.put(answers_by_token)
        for token, answer in answers_by_token.items():
            self._waiting.pop(token).set_result(answer)

    def _forget(self, key: Key) -> None:
        if key not in self._open and self._newest.get(key[0]) == key[1]:
            del self._newest[key[0]]


def _incomplete(reason: str) -> Answer:
    return Answer(0.0, failure_kind=COHORT_INCOMPLETE, failure_reason=reason)
