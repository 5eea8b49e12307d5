"""Replies that come one by one: who is scored with whom, and who fails."""

import asyncio
import random
import selectors
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import settings

from environments.awaited_sets import KEPT, AwaitedSets, Reward
from environments.base import Failure, Rollout, Score

VARIANTS, LIMIT, SCORING = "ab", 10.0, 3.0
INTERLEAVINGS = 100 * settings.default.max_examples


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, and which never waits for ever.

    A thread's work takes a random time of this clock, and is done in the loop.
    """

    def __init__(self):
        self.now, self.rng, self.errors = 0.0, random.Random(0), []
        super().__init__(_Jump(self))

    def time(self):
        return self.now

    def call_exception_handler(self, context):
        self.errors.append(context)

    def run_in_executor(self, executor, function, *arguments):
        future = self.create_future()
        seconds = self.rng.choice([0.0, self.rng.uniform(0, SCORING)])
        self.call_later(seconds, lambda: future.set_result(function(*arguments)))
        return future


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        assert timeout is not None, "somebody waits, and nothing will ever happen"
        self.loop.now += max(timeout, 0)
        return super().select(0)


@pytest.fixture
def loop():
    loop = VirtualTime()
    yield loop
    assert not loop.errors
    loop.close()


@dataclass(frozen=True)
class Ask:
    """A reply that a caller sends at a time; it may stop waiting."""

    at: float
    rollout: Rollout
    call: str
    slot: int | None
    attempt: int
    patience: float | None = None

    @property
    def key(self):
        return (self.call, self.attempt, self.slot, self.rollout.prompt_id, self.rollout.completion)


def reply(set_id, variant, text):
    return Rollout(f"{set_id}/{variant}", set_id, "train", "", text)


class Incarnation:
    """One life of the process that holds the sets, and what it saw."""

    def __init__(self, generations):
        self.size = len(VARIANTS) * generations
        self.asks, self.scored, self.ended, self.parts = [], [], [], []
        self.sets = AwaitedSets(
            self.score, scope="set", set_size=len(VARIANTS), limit=LIMIT, on_scores=self.listen
        )
        self.died = asyncio.get_running_loop().create_future()

    def score(self, rollouts):
        """The value of a reply is the number of its set among those that were scored."""
        sets = {}
        for rollout in rollouts:
            sets.setdefault(rollout.set_id, []).append(rollout.completion)
        self.parts += [texts for texts in sets.values() if len(texts) != self.size]
        number = {set_id: len(self.scored) + n for n, set_id in enumerate(sets)}
        self.scored += map(frozenset, sets.values())
        return [Score(float(number[rollout.set_id])) for rollout in rollouts]

    def listen(self, rollouts, scores):
        self.ended.append(frozenset(rollout.completion for rollout in rollouts))
        assert len({score.value for score in scores}) == 1


@dataclass(eq=False)
class ModelSet:
    """A set of the model: its places, each with the key of the newest reply."""

    opened: float
    name: tuple
    places: dict = field(default_factory=dict)
    closed: float | None = None
    whole: bool = False

    def texts(self):
        return frozenset(key[-1] for key in self.places.values())


def model(asks, generations):
    """The sets of one incarnation, and of each ask its set and its place, by plain lists."""
    sets, known, seats = [], {}, []
    for at, ask in asks:
        for one in sets:
            if one.closed is None and one.opened + LIMIT <= at:
                one.closed = one.opened + LIMIT
        seat = known.get(ask.key)
        if seat is None or (seat[0].closed is not None and seat[0].closed + KEPT <= at):
            prompt = ask.rollout.prompt_id
            place = (prompt, ask.key if ask.slot is None else ask.slot)
            name = (ask.rollout.set_id, ask.attempt)
            for one in sets:
                count = sum(of_prompt == prompt for of_prompt, _ in one.places)
                free = place in one.places or count < generations
                if one.name == name and one.closed is None and free:
                    break
            else:
                one = ModelSet(at, name)
                sets.append(one)
            one.places[place] = ask.key
            if len(one.places) == len(VARIANTS) * generations:
                one.closed, one.whole = at, True
            seat = known[ask.key] = (one, place)
        seats.append(seat)
    return sets, seats


def planned(rng, generations):
    """Replies in time, slow, lost, doubled and of callers that start again."""
    asks, with_slots = [], rng.random() < 0.5
    names = [("s", 0), rng.choice([("s", 0), ("s", 1), ("t", 0)])][: rng.randint(1, 2)]
    for epoch, (set_id, attempt) in enumerate(names):
        for variant, n in [(v, n) for v in VARIANTS for n in range(generations)]:
            call = f"{epoch}{set_id}{attempt}{variant}{n}"
            slot = n if with_slots else None
            text = f"{call}, first"
            at = rng.uniform(0, 6)
            fate = rng.random()
            if fate < 0.05:
                continue
            if fate < 0.1:
                at += rng.uniform(4, 25)
            ask = Ask(at, reply(set_id, variant, text), call, slot, attempt)
            if rng.random() < 0.2:
                ask = Ask(at, ask.rollout, call, slot, attempt, patience=rng.uniform(0, 8))
                again, rollout = call, ask.rollout
                if with_slots and rng.random() < 0.5:
                    again, rollout = f"{call}, again", reply(set_id, variant, f"{call}, second")
                asks.append(Ask(at + rng.uniform(8, 12), rollout, again, slot, attempt))
            asks.append(ask)
            if rng.random() < 0.2:
                late = rng.choice([rng.uniform(0, 25), rng.uniform(KEPT - 10, KEPT + 25)])
                asks.append(Ask(at + late, ask.rollout, call, slot, attempt))
    return asks


async def interleaving(rng):
    """Run planned replies against the class, and compare what each of them got with the model."""
    loop, generations = asyncio.get_running_loop(), rng.randint(1, 2)
    lives, outcomes, start = [Incarnation(generations)], [], loop.time()

    async def caller(ask):
        await asyncio.sleep(ask.at)
        while True:
            life, asked_at = lives[-1], loop.time()
            life.asks.append((asked_at, ask))
            number = len(life.asks) - 1
            waiting = asyncio.ensure_future(
                life.sets.ask(ask.rollout, generations, ask.call, ask.slot, ask.attempt)
            )
            await asyncio.wait(
                {waiting, life.died}, timeout=ask.patience, return_when="FIRST_COMPLETED"
            )
            if waiting.done():
                assert loop.time() - asked_at <= LIMIT + 9 * SCORING
                outcomes.append((life, number, waiting.result()))
                return
            waiting.cancel()
            if not life.died.done():
                return  # out of patience

    async def restart(at):
        await asyncio.sleep(at)
        lives.append(Incarnation(generations))
        lives[-2].died.set_result(None)

    restarts = [restart(rng.uniform(0, 20))] if rng.random() < 0.3 else []
    await asyncio.gather(*map(caller, planned(rng, generations)), *restarts)
    await asyncio.sleep(LIMIT + 9 * SCORING)
    seats = {}
    for life in lives:
        sets, seats[life] = model(life.asks, generations)
        assert not life.parts, "no call sees a part of a set, or two of them"
        whole = Counter(one.texts() for one in sets if one.whole)
        assert Counter(life.scored) == whole, "each whole set is scored once"
        failed = Counter(one.texts() for one in sets if not one.whole)
        assert Counter(life.ended) == whole + failed, "each set ends once"
    for life, number, got in outcomes:
        ask, (seat, place) = life.asks[number][1], seats[life][number]
        if seat.whole and seat.places[place] == ask.key:
            assert life.scored[int(got.score.value)] == seat.texts()
        else:
            assert (got.score.error.kind, got.number) == ("cohort_incomplete", 0.0)
    return loop.time() - start, sum(len(life.scored) for life in lives)


def test_each_set_is_scored_once_and_nothing_waits_for_ever(loop):
    """Slow, lost and doubled replies, callers and processes that start again."""
    scored = 0
    for seed in range(INTERLEAVINGS):
        seconds, sets = loop.run_until_complete(interleaving(random.Random(seed)))
        assert seconds < KEPT + 200, seed
        scored += sets
    assert scored > INTERLEAVINGS / 2


class Share:
    """The value of a reply is its share of its set's sum; some cannot be scored."""

    def __init__(self):
        self.calls = []

    def __call__(self, rollouts):
        self.calls.append(rollouts)
        if any(rollout.completion == "bug" for rollout in rollouts):
            raise RuntimeError("a bug of the environment")
        return [
            Score(None, error=Failure("rate_limit", "busy"))
            if not rollout.completion
            else Score(float(rollout.completion))
            for rollout in rollouts
        ]


def asked(loop, replies, scope, score=None, generations=3):
    """The rewards in order, and the seconds that they took."""

    async def main():
        sets = AwaitedSets(score or Share(), scope=scope, set_size=len(VARIANTS), limit=LIMIT)
        return await asyncio.gather(
            *(sets.ask(one, generations, call) for call, one in enumerate(replies))
        )

    return loop.run_until_complete(main())


def whole_set(set_id, *texts):
    return [reply(set_id, v, text) for v in VARIANTS for text in texts or ("1", "2", "3")]


def test_a_reply_that_is_scored_by_itself_is_scored_without_the_lost(loop):
    rewards = asked(loop, [reply("s", "a", "1"), reply("s", "a", "2")], "rollout")
    assert [reward.number for reward in rewards] == [1.0, 2.0]
    assert loop.time() >= LIMIT


def test_the_generations_of_a_prompt_wait_for_no_other_prompt(loop):
    rewards = asked(loop, [reply("s", "a", text) for text in "123"], "prompt")
    assert [reward.number for reward in rewards] == [1.0, 2.0, 3.0]
    assert loop.time() < LIMIT


def test_a_failed_score_has_the_mean_of_its_siblings_as_its_number(loop):
    rewards = asked(loop, whole_set("s", "", "1", "2"), "set")
    assert [reward.number for reward in rewards] == [1.5, 1.0, 2.0] * 2
    assert rewards[0] == Reward(Score(None, error=Failure("rate_limit", "busy")), 1.5)


@pytest.mark.parametrize("text", ["bug", "nan"])
def test_a_fault_at_one_set_is_a_failure_of_that_set_alone(loop, text, caplog):
    rewards = asked(loop, [*whole_set("s", text, "2", "3"), *whole_set("t")], "set")
    assert [reward.score.error and reward.score.error.kind for reward in rewards] == [
        *["verifier_error"] * 6,
        *[None] * 6,
    ]
    assert ("a bug of the environment" in caplog.text) == (text == "bug")  # with its traceback


def test_what_waits_is_scored_by_one_call_in_an_order_of_its_own(loop):
    first, second = Share(), Share()
    replies = [*whole_set("s"), *whole_set("t")]
    asked(loop, replies, "set", first)
    asked(loop, replies[::-1], "set", second)
    assert len(first.calls) == 1
    by_set = partial(sorted, key=lambda rollout: rollout.set_id)
    assert by_set(first.calls[0]) == by_set(second.calls[0])
