"""Trivial baselines: the search for what a reward pays for nothing, and what beats them."""

import math
from functools import cache

import numpy as np
import pytest

from environments.base import Failure, PromptRecord, Rollout, Score
from environments.contract import Environment
from environments.measurement import Mean, measure_means
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.statistics.trivial import (
    REFUSALS,
    REWARD,
    Measured,
    ahead,
    best_constant,
    best_of_n,
    copy_prompt,
    copy_prompt_end,
    differences,
    first_of_each,
    not_beaten,
    vote,
)
from tests.equipoise.statistics.known_answers import of_local_scale

SETTINGS = StatisticsSettings(bootstrap_draws=500)
FAILED = Failure("policy", "no decision")


def rollouts(*replies):
    return [Rollout(prompt, prompt, "test", "<Q>", reply) for prompt, reply in replies]


def words_that_pay(reply):
    """Pays for each of three words once, and takes a little for every word."""
    paid = sum(word in reply.lower() for word in ("rest", "doctor", "water"))
    return paid - 0.1 * len(reply.split())


class TestBestConstant:
    CANDIDATES = ("Hello there. Rest.", "See a doctor. It is late.", "Drink water.", "Rest.")

    def test_sentences_of_other_replies_are_added_as_long_as_they_pay_and_rounds_last(self):
        best = best_constant(words_that_pay, self.CANDIDATES, 5)
        assert sorted(best.reply.split(". ")) == sorted(["Rest", "Drink water", "See a doctor."])
        assert best.worth == pytest.approx(words_that_pay(best.reply)) == pytest.approx(2.4)

        assert best_constant(words_that_pay, self.CANDIDATES, 1).reply == "Rest. Drink water."


def test_copying_takes_the_last_message_and_its_last_sentence():
    messages = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I fell. Does it hurt? Say what to do."},
    )
    records = [PromptRecord("p", "t", messages, "p", "test")]
    assert copy_prompt(records) == {"p": "I fell. Does it hurt? Say what to do."}
    assert copy_prompt_end(records) == {"p": "Say what to do."}


def test_vote_and_best_of_n_choose_among_the_replies_of_a_prompt():
    drawn = rollouts(("a", "x"), ("a", "y"), ("a", "y"), ("b", "z"), ("c", "w"))
    values = [3.0, 1.0, 1.0, 2.0, None]
    scores = [Score(v, error=None if v else FAILED) for v in values]
    assert vote(drawn) == {"a": "y", "b": "z", "c": "w"}
    assert best_of_n(drawn, scores) == {"a": "x", "b": "z"}
    assert [r.completion for r in first_of_each(drawn, 2)] == ["x", "y", "z", "w"]


class Right(Environment):
    """Pays a right reply, and measures how long replies are besides."""

    score = None

    def measure(self, drawn, scores):
        lengths = Mean([len(r.completion) for r in drawn], better="lower")
        right = Mean([s.value for s in scores], better="higher", yes_or_no=True)
        return measure_means([r.prompt_id for r in drawn], {"accuracy": right, "length": lengths})


def measured(share, prompts=60):
    right = [n < share * prompts for n in range(prompts)]
    drawn = rollouts(*((f"p{n}", "yes" if r else "no") for n, r in enumerate(right)))
    return Measured.of(Right(), drawn, [Score(float(r)) for r in right])


def test_a_policy_has_the_reward_and_every_metric_with_intervals():
    figures = measured(0.5).figures(SETTINGS)
    assert list(figures) == [REWARD, "accuracy", "length"]
    assert figures[REWARD].value == figures["accuracy"].value == 0.5
    assert figures[REWARD].low < 0.5 < figures[REWARD].high
    assert figures["length"].value == 2.5


def test_only_what_is_clearly_below_the_model_is_beaten():
    baselines = {"bad": measured(0.2), "like": measured(0.85), "above": measured(1.0)}
    baselines["best_of_n"] = measured(1.0)  # which has seen the reward
    against = differences(baselines, measured(0.9), SETTINGS)
    assert {name: list(each) for name, each in against.items()} == {
        name: [REWARD, "accuracy"] for name in baselines
    }
    assert against["bad"][REWARD].difference == pytest.approx(0.7)
    assert against["bad"][REWARD].verdict == against["bad"]["accuracy"].verdict == "better"
    assert against["bad"]["accuracy"].test == "mid-p McNemar"
    assert not_beaten(against, REWARD) == ["like", "above"]
    before = differences(baselines, measured(0.6), SETTINGS)
    assert ahead(before, REWARD) == ["like", "above", "best_of_n"]


class Short(Right):
    """Its objective is to be short; a reply of no word has no length."""

    objective = "length"

    def measure(self, drawn, scores):
        lengths = [len(r.completion) or None for r in drawn]
        means = {"length": Mean(lengths, better="lower"), "words": Mean([1.0] * len(drawn))}
        return measure_means([r.prompt_id for r in drawn], means)


def replying(*replies):
    """Thirty prompts with one of the replies each; the longer earns more."""
    drawn = rollouts(*((f"p{n}", replies[n % len(replies)]) for n in range(30)))
    return Measured.of(Short(), drawn, [Score(float(len(r.completion))) for r in drawn])


def test_an_environment_that_names_its_objective_is_compared_by_it_and_not_by_the_reward():
    baselines = {
        "short": replying("a", "bb"),
        "long": replying("aaaa", "bbbbb"),
        "none": replying(""),
    }
    model = replying("aa", "bbb")
    against = differences(baselines, model, SETTINGS)
    assert {tuple(each) for each in against.values()} == {("length", "words")}
    assert against["long"]["length"].verdict == "better"
    assert ahead(against, model.objective) == ["short"]
    assert not_beaten(against, model.objective) == ["short"]  # none is not known, and no opponent
    worth = [each.worth("length") for each in (baselines["short"], model, baselines["long"])]
    assert worth == sorted(worth, reverse=True)
    assert baselines["none"].worth("length") == -math.inf


def test_holm_is_over_the_policies():
    one = differences({"a": measured(0.8)}, measured(0.9), SETTINGS)["a"][REWARD]
    same = {name: measured(0.8) for name in "abcde"}
    of_five = differences(same, measured(0.9), SETTINGS)["a"][REWARD]
    assert one.p == of_five.p == one.p_holm
    assert of_five.p_holm == pytest.approx(min(1.0, 5 * one.p))


TASKS = ("dharma", "pubmedqa", "rag")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return cache(lambda name: of_local_scale(name, tmp_path_factory.mktemp(name)))


def trivial_replies(task):
    """The policies of the probe, and one that replies with what is right for another prompt."""
    environment, number = task.environment, len(task.records)
    constants = {reply: [reply] * number for reply in (*REFUSALS, *task.right[:3])}
    copies = {
        copy.__name__: [copy(task.records)[record.id] for record in task.records]
        for copy in (copy_prompt, copy_prompt_end)
    }
    shuffled = np.random.default_rng(1).permutation(number)
    others = {"another prompt's": [task.right[n] for n in shuffled]}
    constants |= {reply: [reply] * number for reply in environment.constant_replies()}
    own = environment.trivial_replies(task.replied(others["another prompt's"]), 0)
    return {**constants, **copies, **others, **own}


@pytest.mark.deep
@pytest.mark.parametrize("name", TASKS)
def test_no_trivial_baseline_is_better_than_who_knows_the_answer(name, tasks):
    task = tasks(name)
    oracle = task.worth(task.right)
    worths = {policy: task.worth(replies) for policy, replies in trivial_replies(task).items()}
    assert len(worths) >= 8
    assert {policy: worth for policy, worth in worths.items() if worth >= oracle} == {}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_each_of_its_own_policies_does(name, tasks):
    task = tasks(name)
    if not task.environment.offers(Environment.trivial_replies):
        return
    words = task.environment.presentation.words
    policies = task.environment.trivial_replies(task.replied(task.right), 0)
    assert policies and [policy for policy in policies if not words[policy].note] == []
