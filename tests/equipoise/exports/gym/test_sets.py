"""Rollouts that come one by one: who is scored with whom, and who is masked."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.records import write_prompts
from environments.base import (
    FAILURE_KINDS,
    Failure,
    IncompleteSetError,
    Message,
    PromptRecord,
    Score,
)
from equipoise.exports.gym.sets import GYM_KINDS, INCOMPLETE, NoSuchSeatError, Sets
from equipoise.exports.task import RewardSettings, open_environment
from tests.refusals import refusal

VARIANTS, GENERATIONS = ("a", "b"), 3
SIZE = len(VARIANTS) * GENERATIONS
RECORDS = [
    PromptRecord(f"s{n}/{v}", "toy", (Message(role="user", content="Q"),), f"s{n}", "train", {})
    for n in range(4)
    for v in VARIANTS
]
JOBS = [(record.id, n, 0, str(n + 1)) for record in RECORDS for n in range(GENERATIONS)]
OF_FIRST = JOBS[:SIZE]


class Share:
    """The reward of a reply is its share of its set; an empty one cannot be scored."""

    name = "share"

    def __init__(self, scope="set"):
        self.scope, self.calls = scope, []

    def score(self, rollouts):
        self.calls.append(rollouts)
        if any(r.completion == "bug" for r in rollouts):
            raise RuntimeError("a bug of the environment")
        of_set = {}
        for r in rollouts:
            of_set.setdefault(r.set_id, []).append(r)
        if self.scope == "set" and any(len(members) != SIZE for members in of_set.values()):
            raise IncompleteSetError("a part of a set, or two of them")
        return [self._score(r, of_set[r.set_id]) for r in rollouts]

    def _score(self, rollout, members):
        if not rollout.completion:
            return Score(None, error=Failure("rate_limit", "busy"))
        if self.scope != "set":
            return Score(float(rollout.completion))
        return Score(float(rollout.completion) / sum(float(r.completion or 0) for r in members))


def settings(**changes):
    words = {"environment": "m.C", "prompts": "p", "generations": GENERATIONS}
    return RewardSettings.model_validate(words | changes)


def sets(environment=None, deadline=30.0):
    return Sets(environment or Share(), RECORDS, settings(deadline_seconds=deadline))


def asked(jobs, environment=None, deadline=30.0):
    """The answers in order, within seconds, so that nothing hangs unseen."""

    async def main():
        table = sets(environment, deadline)
        return await asyncio.gather(*(table.ask(*job) for job in jobs))

    return asyncio.run(asyncio.wait_for(main(), 20))


@given(st.permutations(JOBS))
def test_whatever_the_order_the_rewards_are_those_of_one_call(shuffled):
    answers = dict(zip(shuffled, asked(shuffled), strict=True))
    assert [answers[job].reward for job in JOBS] == [int(job[3]) / 12 for job in JOBS]
    assert not any(answer.failure_kind for answer in answers.values())


@given(st.sets(st.sampled_from(JOBS), min_size=1, max_size=4))
def test_a_lost_rollout_costs_its_own_set_and_no_other(lost):
    sent = [job for job in JOBS if job not in lost]
    hit = {job[0].partition("/")[0] for job in lost}
    for job, answer in zip(sent, asked(sent, deadline=0.05), strict=True):
        assert (answer.failure_kind == INCOMPLETE) == (job[0].partition("/")[0] in hit)
        assert answer.reward == (0.0 if answer.failure_kind else int(job[3]) / 12)


def test_a_set_that_ended_begins_anew():
    async def main():
        table = sets(deadline=0.05)
        late, *others = OF_FIRST
        lost = await asyncio.gather(*(table.ask(*job) for job in others))
        again = await asyncio.gather(*(table.ask(*job) for job in OF_FIRST))
        return lost, again, await table.ask(*late)

    lost, again, late = asyncio.run(main())
    assert {answer.failure_kind for answer in lost} == {INCOMPLETE} == {late.failure_kind}
    assert [answer.reward for answer in again] == [int(job[3]) / 12 for job in OF_FIRST]


def test_of_two_rollouts_for_a_seat_the_newer_counts():
    first = (*OF_FIRST[0][:3], "7")
    replaced, *answers = asked([first, *OF_FIRST])
    assert replaced.failure_kind == INCOMPLETE
    assert [answer.reward for answer in answers] == [int(job[3]) / 12 for job in OF_FIRST]


def test_a_group_that_is_sent_again_is_a_set_of_its_own():
    again = [(prompt, n, 1, text) for prompt, n, _, text in OF_FIRST]
    answers = asked([*OF_FIRST[1:], *again], deadline=0.05)
    assert {answer.failure_kind for answer in answers[: SIZE - 1]} == {INCOMPLETE}
    assert not any(answer.failure_kind for answer in answers[SIZE - 1 :])


def test_without_an_index_a_rollout_takes_a_free_seat_of_its_prompt():
    answers = asked([(prompt, None, attempt, text) for prompt, _, attempt, text in OF_FIRST])
    assert [answer.reward for answer in answers] == [int(job[3]) / 12 for job in OF_FIRST]


def test_who_hangs_up_takes_nothing_from_the_others():
    async def main():
        table = sets()
        gone = asyncio.create_task(table.ask(*OF_FIRST[0]))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.gather(*(table.ask(*job) for job in OF_FIRST[1:]))

    assert [answer.reward for answer in asyncio.run(main())] == [1 / 6, 1 / 4, 1 / 12, 1 / 6, 1 / 4]


@pytest.mark.parametrize("job", [("q", 0, 0, ""), ("s0/a", GENERATIONS, 0, "")])
def test_a_seat_that_is_not_there_is_refused(job):
    with pytest.raises(NoSuchSeatError):
        asked([job])


def test_a_reply_that_is_scored_by_itself_needs_no_other():
    answers = asked([("s0/a", 1, 0, "1"), ("s0/a", 2, 0, "2")], Share("rollout"), deadline=0.05)
    assert [answer.reward for answer in answers] == [1.0, 2.0]


def test_a_failed_score_is_masked_with_its_siblings_mean():
    jobs = [("s0/a", n, 0, text) for n, text in enumerate(("", "1", "2"))]
    answers = asked(jobs, Share("rollout"))
    assert [answer.reward for answer in answers] == [1.5, 1.0, 2.0]
    assert [answer.failure_kind for answer in answers] == ["judge_failed", None, None]


@pytest.mark.parametrize("text", ["bug", "nan"])
def test_a_fault_at_one_set_is_a_failure_of_that_set_alone(text, caplog):
    answers = asked([(*JOBS[0][:3], text), *JOBS[1:]])
    assert {answer.failure_kind for answer in answers[:SIZE]} == {"verifier_error"}
    assert [a.reward for a in answers[SIZE:]] == [int(job[3]) / 12 for job in JOBS[SIZE:]]
    assert ("a bug of the environment" in caplog.text) == (text == "bug")  # with its traceback


def test_what_waits_is_scored_by_one_call():
    environment = Share()
    asked(JOBS, environment)
    assert len(environment.calls) <= 2


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"generations": 0}, {"deadline_seconds": 0}, {"deadline_seconds": "inf"}, {"no": 1}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        settings(**wrong)


@pytest.mark.parametrize(
    ("task", "words", "code"),
    [
        ("fairness.FairnessEnvironment", {}, "rewards.no-reference"),
        ("fairness.FairnessEnvironment", {"reference": "{}/none.jsonl"}, "rollouts.no-file"),
        ("rag.RagEnvironment", {"settings": {"index": "{}/index"}}, "index.no-folder"),
    ],
)
def test_what_scores_need_and_is_not_there_is_said_at_the_start(task, words, code, tmp_path):
    write_prompts(tmp_path / "prompts.jsonl", RECORDS, {})
    here = {
        name: {k: v.format(tmp_path) for k, v in value.items()}
        if isinstance(value, dict)
        else value.format(tmp_path)
        for name, value in words.items()
    }
    with refusal(code):
        open_environment(settings(environment=f"environments.{task}", **here))


def test_every_kind_of_failure_has_the_name_in_nemo_gym_that_the_documentation_says():
    rows = Path("docs/judges.md").read_text("utf-8").splitlines()
    documented = {row.split("`")[1]: row.split("`")[-2] for row in rows if row.startswith("| `")}
    assert {kind: documented[kind] for kind in FAILURE_KINDS} == {
        kind: GYM_KINDS.get(kind, kind) for kind in FAILURE_KINDS
    }
