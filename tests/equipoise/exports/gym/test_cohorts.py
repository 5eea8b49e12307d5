"""Rollouts that come one by one: who is scored with whom, who is masked, who is refused."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Failure, IncompleteSetError, Rollout, Score
from equipoise.exports.gym.cohorts import (
    Answer,
    Arrival,
    Cohorts,
    KeptAnswers,
    NoSuchSeatError,
    SeatTakenError,
)
from equipoise.exports.task import Scorer

SETS = [f"s{n}" for n in range(4)]
VARIANTS, GENERATIONS = ("a", "b"), 3
SIZE = len(VARIANTS) * GENERATIONS


class Rank:
    """The reward of a reply is its share of its set; an empty one cannot be scored."""

    name, scope, set_size = "rank", "set", 2

    def __init__(self, scope="set"):
        self.scope = scope
        self.calls = []

    def score(self, rollouts):
        self.calls.append(rollouts)
        if any(r.completion == "bug" for r in rollouts):
            raise RuntimeError("a bug of the environment")
        of_set = {}
        for r in rollouts:
            of_set.setdefault(r.set_id, []).append(r)
        if self.scope == "set":
            for name, members in of_set.items():
                if len(members) != SIZE:
                    raise IncompleteSetError(f"{name} has {len(members)}")
        return [self._score(r, of_set[r.set_id]) for r in rollouts]

    def _score(self, rollout, members):
        if not rollout.completion:
            return Score(None, error=Failure("rate_limit", "busy"))
        if self.scope != "set":
            return Score(float(rollout.completion))
        return Score(float(rollout.completion) / sum(float(r.completion or 0) for r in members))


def seats(scope="set"):
    every = {
        name: [(f"{name}/{v}", n) for v in VARIANTS for n in range(GENERATIONS)] for name in SETS
    }
    if scope == "set":
        return every
    prompts = {}
    for group in every.values():
        for seat in group:
            prompts.setdefault(seat[0], []).append(seat)
    return prompts


def cohorts(environment=None, deadline=30.0, kept=None):
    environment = environment or Rank()
    table = seats(environment.scope)
    return Cohorts(Scorer(environment), kept or KeptAnswers(), environment.scope, table, deadline)


def arrival(prompt_id, index, text="1", attempt=0, token=None, scope="set", created=0.0):
    set_id = prompt_id.partition("/")[0]
    rollout = Rollout(prompt_id, set_id, "train", "", text)
    group = set_id if scope == "set" else prompt_id
    token = token or f"{prompt_id} {index} {attempt} {text}"
    return Arrival((group, attempt), index, token, rollout, created)


def of_set(name, attempt=0, first=1, tag=""):
    return [
        arrival(f"{name}/{v}", n, str(first + k), attempt, tag and f"{tag} {name} {k}")
        for k, (v, n) in enumerate((v, n) for v in VARIANTS for n in range(GENERATIONS))
    ]


async def ask_all(table, arrivals):
    return await asyncio.gather(*(table.ask(one) for one in arrivals))


def run(coroutine):
    """Within seconds, so that nothing hangs unseen."""
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def truth(arrivals, environment=None):
    scores = (environment or Rank()).score([one.rollout for one in arrivals])
    return [score.value for score in scores]


@given(st.randoms(use_true_random=False))
def test_whatever_the_order_the_rewards_are_those_of_one_call(rng):
    arrivals = [one for name in SETS for one in of_set(name)]
    shuffled = rng.sample(arrivals, len(arrivals))
    tokens = [one.token for one in shuffled]
    answers = dict(zip(tokens, run(_asked(shuffled)), strict=True))
    assert [answers[one.token].reward for one in arrivals] == truth(arrivals)
    assert not any(answer.failure_kind for answer in answers.values())


async def _asked(arrivals):
    return await ask_all(cohorts(), arrivals)


@given(st.data())
def test_a_lost_rollout_masks_its_own_set_and_no_other(data):
    arrivals = [one for name in SETS for one in of_set(name)]
    lost = data.draw(st.sets(st.sampled_from(range(len(arrivals))), min_size=1, max_size=4))
    hit = {arrivals[n].key for n in lost}
    sent = [one for n, one in enumerate(arrivals) if n not in lost]

    async def main():
        return await ask_all(cohorts(deadline=0.01), sent)

    whole = [one for one in arrivals if one.key not in hit]
    expected = dict(zip([one.token for one in whole], truth(whole), strict=True))
    for one, answer in zip(sent, run(main()), strict=True):
        if one.key in hit:
            assert answer.failure_kind == "cohort_incomplete"
            assert "missing: generation" in answer.failure_reason
        else:
            assert answer == Answer(expected[one.token])


def test_a_failed_score_is_masked_with_its_siblings_mean():
    arrivals = of_set("s0")
    arrivals[0] = replace(arrivals[0], rollout=replace(arrivals[0].rollout, completion=""))
    first, *others = run(_asked(arrivals))
    assert (first.failure_kind, first.failure_reason) == ("judge_failed", "busy")
    assert first.reward == pytest.approx((others[0].reward + others[1].reward) / 2)
    assert not any(other.failure_kind for other in others)


def test_who_hangs_up_takes_nothing_from_the_others():
    async def main():
        table, arrivals = cohorts(), of_set("s0")
        gone = asyncio.create_task(table.ask(arrivals[0]))
        await asyncio.sleep(0)
        gone.cancel()
        answers = await ask_all(table, arrivals[1:])
        return [await table.ask(arrivals[0]), *answers]  # and it may ask again

    assert [answer.reward for answer in run(main())] == truth(of_set("s0"))


def test_a_rollout_that_is_sent_twice_is_one():
    async def main():
        table, arrivals = cohorts(), of_set("s0")
        return await ask_all(table, [*arrivals[:2], *arrivals])

    assert [answer.reward for answer in run(main())][2:] == truth(of_set("s0"))


def test_another_rollout_for_a_seat_is_refused_and_the_set_goes_on():
    async def main():
        table, arrivals = cohorts(), of_set("s0")
        first = asyncio.create_task(table.ask(arrivals[0]))
        await asyncio.sleep(0)
        with pytest.raises(SeatTakenError, match=r"generation 0 of 's0/a'.* the next attempt"):
            await table.ask(arrival("s0/a", 0, "another"))
        return [*await ask_all(table, arrivals[1:]), await first]

    assert len(run(main())) == SIZE


@pytest.mark.parametrize(
    ("prompt_id", "index"), [("s0/a", GENERATIONS), ("s0/a", -1), ("s0/c", 0), ("s9/a", 0)]
)
def test_a_seat_that_is_not_there_is_refused(prompt_id, index):
    with pytest.raises(NoSuchSeatError):
        run(_asked([arrival(prompt_id, index)]))


def test_without_an_index_a_rollout_takes_a_free_seat_of_its_prompt():
    arrivals = [replace(one, index=None) for one in of_set("s0")]

    async def main():
        table = cohorts()
        waiting = [asyncio.create_task(table.ask(one)) for one in arrivals[:3]]
        await asyncio.sleep(0)
        with pytest.raises(SeatTakenError, match="for every generation of 's0/a'"):
            await table.ask(replace(arrival("s0/a", None, "9"), token="fourth"))
        others = await ask_all(table, arrivals[3:])
        return [*await asyncio.gather(*waiting), *others]

    assert [answer.reward for answer in run(main())] == truth(arrivals)


def test_the_next_attempt_replaces_what_hangs():
    async def main():
        table = cohorts()
        old = [asyncio.create_task(table.ask(one)) for one in of_set("s0")[:2]]
        await asyncio.sleep(0)
        new = await ask_all(table, of_set("s0", attempt=1))
        late = await table.ask(of_set("s0")[3])
        return await asyncio.gather(*old), new, late

    old, new, late = run(main())
    assert {answer.failure_kind for answer in (*old, late)} == {"cohort_incomplete"}
    assert "replaced by attempt 1" in old[0].failure_reason
    assert "replaced by attempt 1" in late.failure_reason
    assert [answer.reward for answer in new] == truth(of_set("s0"))


def test_what_comes_after_the_deadline_is_masked_at_its_own():
    async def main():
        table, arrivals = cohorts(deadline=0.05), of_set("s0")
        await ask_all(table, arrivals[1:])
        return await table.ask(arrivals[0])

    late = run(main())
    assert late.failure_kind == "cohort_incomplete"
    assert late.failure_reason.startswith("1 of the 6 rollouts of 's0' came before the deadline")


def test_a_rollout_that_never_comes_does_not_spoil_the_next_epoch():
    async def main():
        table = cohorts(deadline=0.02)
        await ask_all(table, of_set("s0")[1:])
        table.deadline = 0.5  # in which it may still come
        return await ask_all(table, of_set("s0", first=5, tag="next epoch"))

    assert [answer.reward for answer in run(main())] == truth(of_set("s0", first=5))


class TestALateReplyOfAnEndedCohort:
    """Its seat is another rollout's by then: it is masked, and the current cohort is whole."""

    @given(st.data())
    def test_takes_no_seat_of_the_next_epoch(self, data):
        """Whichever came late, in whatever order, and whether or not a rollout has a number."""
        numbered, late_ones = data.draw(st.booleans()), data.draw(some_of(of_set("s0")))
        order = data.draw(st.permutations(range(SIZE + len(late_ones))))
        current = [replace(one, created=9.0) for one in of_set("s0", first=5, tag="now")]
        if not numbered:
            late_ones, current = (
                [replace(one, index=None) for one in group] for group in (late_ones, current)
            )

        async def main():
            table = cohorts(deadline=0.02)
            tokens = {one.token for one in late_ones}
            early = [one for one in of_set("s0") if one.token not in tokens]
            await ask_all(table, early)
            table.deadline = 30
            sent = [*current, *late_ones]
            answers = await ask_all(table, [sent[n] for n in order])
            return [answer for _, answer in sorted(zip(order, answers, strict=True))]

        answers = run(main())
        if numbered:  # else which completion has which number is open
            assert [answer.reward for answer in answers[:SIZE]] == truth(current)
        assert not any(answer.failure_kind for answer in answers[:SIZE])
        assert {answer.failure_kind for answer in answers[SIZE:]} == {"cohort_incomplete"}
        for answer in answers[SIZE:]:
            assert "its cohort was given up" in answer.failure_reason

    def test_of_the_same_age_is_the_one_that_came_first(self):
        async def main():
            table, current = cohorts(deadline=0.02), of_set("s0", first=5, tag="now")
            await ask_all(table, of_set("s0")[1:])
            table.deadline = 30
            return await ask_all(table, [of_set("s0")[0], *current])

        late, *answers = run(main())
        assert late.failure_kind == "cohort_incomplete"
        assert [answer.reward for answer in answers] == truth(of_set("s0", first=5))

    def test_does_not_end_the_wait_for_the_current_one(self):
        """All other seats are taken when it comes: the rollout that is still missing decides."""

        async def main():
            table, current = cohorts(deadline=0.4), of_set("s0", first=5, tag="now")
            await ask_all(table, of_set("s0")[1:])
            table.deadline = 30
            sent = [of_set("s0")[0], *current[1:]]
            waiting = [asyncio.create_task(table.ask(one)) for one in sent]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in waiting)
            return [await table.ask(current[0]), *await asyncio.gather(*waiting[1:])]

        assert [answer.reward for answer in run(main())] == truth(of_set("s0", first=5))

    def test_does_not_shorten_the_deadline_of_the_current_ones(self):
        async def main():
            table, current = cohorts(deadline=0.4), of_set("s0", first=5, tag="now")
            await ask_all(table, of_set("s0")[2:])
            late = asyncio.create_task(table.ask(of_set("s0")[0]))
            await asyncio.sleep(0.3)
            waiting = [asyncio.create_task(table.ask(one)) for one in current[1:]]
            await asyncio.sleep(0.2)
            answers = [await table.ask(current[0]), *await asyncio.gather(*waiting)]
            return await late, answers

        late, answers = run(main())
        assert late.failure_kind == "cohort_incomplete"
        assert [answer.reward for answer in answers] == truth(of_set("s0", first=5))

    def test_of_whole_cohorts_nothing_is_remembered(self):
        """A long run has as many seats as replies."""

        async def main():
            table = cohorts(deadline=30)
            await ask_all(table, of_set("s0"))
            return table

        assert not run(main())._owed

    def test_that_comes_alone_leaves_no_seat_owed(self):
        """The rollouts that did not come with it were answered: nothing of them can be late."""

        async def main():
            table = cohorts(deadline=0.02)
            await ask_all(table, of_set("s0")[1:])
            late = await table.ask(of_set("s0")[0])
            table.deadline = 30
            first, *others = of_set("s0", first=5, tag="now")
            waiting = [asyncio.create_task(table.ask(first))]
            await asyncio.sleep(0)
            with pytest.raises(SeatTakenError):
                await table.ask(arrival("s0/a", 0, "another"))
            answers = await ask_all(table, others)
            return late, [*await asyncio.gather(*waiting), *answers]

        late, answers = run(main())
        assert late.failure_kind == "cohort_incomplete"
        assert [answer.reward for answer in answers] == truth(of_set("s0", first=5))

    def test_sent_twice_long_after_a_loss_is_refused(self):
        """Three deadlines after it no late one is settled any more, so that it is a doubled one."""

        async def main():
            table = cohorts(deadline=0.05)
            await ask_all(table, of_set("s0")[1:])
            await asyncio.sleep(4 * table.deadline)
            first, *others = of_set("s0", first=5, tag="now")
            waiting = asyncio.create_task(table.ask(first))
            await asyncio.sleep(0)
            with pytest.raises(SeatTakenError):
                await table.ask(arrival("s0/a", 0, "another", created=9.0))
            answers = await ask_all(table, others)
            return [await waiting, *answers]

        assert [answer.reward for answer in run(main())] == truth(of_set("s0", first=5))

    @pytest.mark.parametrize("times_lost", [1, 3])
    def test_is_told_until_it_can_no_longer_be_in_doubt(self, times_lost):
        """It comes within one deadline, and its cohort takes two more."""

        async def main():
            table = cohorts(deadline=0.5)
            for number in range(times_lost):
                await ask_all(table, of_set("s0", tag=f"epoch {number}")[1:])
            await asyncio.sleep(0.8 * table.deadline)
            late = asyncio.create_task(table.ask(of_set("s0")[0]))
            await asyncio.sleep(0.8 * table.deadline)
            current = of_set("s0", first=5, tag="now")
            waiting = [asyncio.create_task(table.ask(one)) for one in current[1:]]
            await asyncio.sleep(0.8 * table.deadline)
            answers = [await table.ask(current[0]), *await asyncio.gather(*waiting)]
            return await late, answers

        late, answers = run(main())
        assert late.failure_kind == "cohort_incomplete"
        assert [answer.reward for answer in answers] == truth(of_set("s0", first=5))

    def test_is_scored_where_every_rollout_is_scored_by_itself(self):
        async def main():
            table = cohorts(Rank("rollout"), deadline=0.02)
            old, new = (
                [arrival("s0/a", n, f"{k + n}", scope="rollout") for n in range(GENERATIONS)]
                for k in (0, 5)
            )
            await ask_all(table, old[1:])
            table.deadline = 30
            return await ask_all(table, [old[0], *new])

        assert [answer.reward for answer in run(main())] == [0.0, 5.0, 6.0, 7.0]

    def test_of_an_earlier_attempt_takes_no_seat_of_a_later_epoch(self):
        async def main():
            table = cohorts(deadline=0.02)
            old = [asyncio.create_task(table.ask(one)) for one in of_set("s0")[1:]]
            await asyncio.sleep(0)
            await ask_all(table, of_set("s0", attempt=1))
            await asyncio.gather(*old)
            await asyncio.sleep(0.1)
            table.deadline = 30
            current = of_set("s0", first=5, tag="now")
            return await ask_all(table, [of_set("s0")[0], *current])

        late, *answers = run(main())
        assert late.failure_kind == "cohort_incomplete"
        assert [answer.reward for answer in answers] == truth(of_set("s0", first=5))


def some_of(arrivals):
    """At least one, and not all of them."""
    return st.lists(
        st.sampled_from(arrivals), min_size=1, max_size=SIZE - 1, unique_by=lambda one: one.token
    )


def test_the_same_set_is_scored_in_every_epoch():
    async def main():
        table = cohorts()
        await ask_all(table, of_set("s0", attempt=2))
        return await ask_all(table, of_set("s0", attempt=2, first=5, tag="next epoch"))

    assert [answer.reward for answer in run(main())] == truth(of_set("s0", first=5))


def test_attempts_begin_anew_in_a_later_epoch():
    async def main():
        table = cohorts(deadline=0.02)
        await ask_all(table, of_set("s0", attempt=1))
        await asyncio.sleep(0.1)
        return await ask_all(table, of_set("s0", first=5, tag="next epoch"))

    assert [answer.reward for answer in run(main())] == truth(of_set("s0", first=5))


class TestWhereEveryRolloutIsScoredByItself:
    def test_a_lost_one_costs_nothing(self):
        async def main():
            table = cohorts(Rank("rollout"), deadline=0.05)
            arrivals = [arrival("s0/a", n, str(n), scope="rollout") for n in range(GENERATIONS)]
            early = await ask_all(table, arrivals[1:])
            return [await table.ask(arrivals[0]), *early]

        assert [answer.reward for answer in run(main())] == [0.0, 1.0, 2.0]

    def test_a_failure_takes_its_siblings_mean(self):
        async def main():
            table = cohorts(Rank("rollout"))
            texts = ("", "1", "2")
            arrivals = [arrival("s0/a", n, t, scope="rollout") for n, t in enumerate(texts)]
            return await ask_all(table, arrivals)

        answers = run(main())
        assert [answer.reward for answer in answers] == [1.5, 1.0, 2.0]
        assert [answer.failure_kind for answer in answers] == ["judge_failed", None, None]


def test_a_bug_at_one_set_is_a_failure_of_that_set_alone(caplog):
    arrivals = [one for name in SETS for one in of_set(name)]
    arrivals[0] = replace(arrivals[0], rollout=replace(arrivals[0].rollout, completion="bug"))
    answers = run(_asked(arrivals))
    assert {answer.failure_kind for answer in answers[:SIZE]} == {"verifier_error"}
    assert answers[0].failure_reason == "RuntimeError: a bug of the environment"
    assert [answer.reward for answer in answers[SIZE:]] == truth(arrivals[SIZE:])
    assert "a bug of the environment" in caplog.text  # with its traceback


def test_a_score_that_is_no_number_is_masked():
    arrivals = of_set("s0")
    arrivals[0] = replace(arrivals[0], rollout=replace(arrivals[0].rollout, completion="nan"))
    answers = run(_asked(arrivals))
    assert {answer.failure_kind for answer in answers} == {"verifier_error"}
    assert {answer.reward for answer in answers} == {0.0}


def test_what_waits_is_scored_by_one_call_and_a_set_never_twice_in_it():
    environment = Rank()

    async def main():
        table = cohorts(environment)
        arrivals = [one for name in SETS for one in of_set(name)]
        later = of_set("s0", first=5, tag="next epoch")
        return await ask_all(table, random.Random(0).sample(arrivals, len(arrivals)) + later)

    run(main())
    assert len(environment.calls) <= 3
    for call in environment.calls:
        assert len(call) == SIZE * len({r.set_id for r in call})


class TestARestart:
    def test_what_was_answered_is_answered_again_without_the_environment(self, tmp_path):
        before = run(self._asked(tmp_path, Rank(), of_set("s0")))
        silent = Rank()
        after = run(self._asked(tmp_path, silent, of_set("s0")[:2]))
        assert after == before[:2]
        assert not silent.calls

    def test_what_was_not_is_scored_when_it_is_sent_again(self, tmp_path):
        async def die_halfway():
            table = self._table(tmp_path, Rank())
            for one in of_set("s1")[:3]:
                asyncio.create_task(table.ask(one))  # noqa: RUF006
            await ask_all(table, of_set("s0"))

        run(die_halfway())
        answers = run(self._asked(tmp_path, Rank(), of_set("s1", attempt=1)))
        assert [answer.reward for answer in answers] == truth(of_set("s1"))

    def test_failures_are_kept_as_well(self, tmp_path):
        arrivals = of_set("s0")
        arrivals[0] = replace(arrivals[0], rollout=replace(arrivals[0].rollout, completion=""))
        before = run(self._asked(tmp_path, Rank(), arrivals))
        assert run(self._asked(tmp_path, Rank(), arrivals)) == before

    @staticmethod
    def _table(folder, environment):
        return cohorts(environment, kept=KeptAnswers(folder / "answers.sqlite3"))

    async def _asked(self, folder, environment, arrivals):
        return await ask_all(self._table(folder, environment), arrivals)


def test_a_disk_that_is_full_leaves_nobody_waiting(tmp_path, caplog):
    async def main():
        kept = KeptAnswers(tmp_path / "answers.sqlite3")
        kept._connection.execute("PRAGMA query_only = ON")
        return await ask_all(cohorts(kept=kept), of_set("s0"))

    assert [answer.reward for answer in run(main())] == truth(of_set("s0"))
    assert "a restart would lose them" in caplog.text


def test_only_so_many_answers_are_kept():
    kept = KeptAnswers(capacity=3)
    kept.put({str(n): Answer(float(n)) for n in range(5)})
    assert [kept.get(str(n)) for n in range(5)] == [None, None, *map(Answer, (2.0, 3.0, 4.0))]
