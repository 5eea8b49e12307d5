"""The gate: what passes, what fails, and what neither shows."""

from dataclasses import replace
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from environments.base import REWARD, Rollout, Score
from environments.contract import Environment
from environments.fairness.sets import MISSING
from environments.measurement import Margin, Mean, measure_means
from equipoise.statistics.compare import error_of
from equipoise.statistics.gate import (
    LEAST_CLUSTERS,
    POWER,
    Spread,
    Watched,
    compare_watched,
    gate,
    times_needed,
    verdict_of,
    watched,
)
from equipoise.statistics.intervals import StatisticsSettings
from tests.equipoise.statistics.fairness_runs import GENERATIONS, LOST_TWICE, blind, unchanged
from tests.equipoise.statistics.gate_runs import (
    ATTACKS,
    FIFTH_BIASED,
    MORE_BIASED,
    REFERRING,
    WRONG,
    Change,
    Pool,
    fairness_round,
    fairness_sides,
    planted,
    shares,
    verdicts,
)
from tests.equipoise.statistics.known_answers import of_local_scale

RNG = np.random.default_rng


def rated(hits, clusters):
    """Rates of which more is better, with a margin of .05, of as many replies to each cluster."""
    names = [str(n % clusters) for n in range(len(next(iter(hits.values()))))]
    measured = measure_means(names, {n: Mean(v, "higher", share=True) for n, v in hits.items()})
    guarded = {n: replace(m, guard=Margin(0.05)) for n, m in measured.metrics.items()}
    return replace(measured, metrics=guarded)


def rate(share, number=2000):
    return [float(n % 100 < 100 * share) for n in range(number)]


def decided(found):
    return verdict_of(gate({("task", name): metric for name, metric in found.items()}).values())


class TestVerdict:
    @pytest.mark.parametrize(
        ("after", "verdict"),
        [(0.8, "passed"), (0.9, "passed"), (0.75, "not enough data"), (0.65, "failed")],
    )
    def test_is_by_the_margin(self, after, verdict):
        sides = (rated({"rate": rate(share)}, 500) for share in (0.8, after))
        assert decided(compare_watched(*sides)) == verdict

    def test_one_lost_metric_fails_and_one_that_is_not_shown_does_not_pass(self):
        assert verdict_of([]) == "not enough data"
        before = rated({"a": rate(0.8), "b": rate(0.8)}, 500)
        for worse, verdict in ((0.65, "failed"), (0.75, "not enough data")):
            after = rated({"a": rate(0.8), "b": rate(worse)}, 500)
            assert decided(compare_watched(before, after)) == verdict

    def test_holms_correction_is_over_the_metrics_of_all_tasks(self):
        before = rated({"rate": rate(0.8, 400)}, 400)
        (lost,) = compare_watched(before, rated({"rate": rate(0.72, 400)}, 400)).values()
        (same,) = compare_watched(before, before).values()
        p = lost.comparison.margin and lost.comparison.margin.p
        assert 0.0125 < p < 0.05
        alone = gate({("one", "rate"): lost})
        assert alone["one", "rate"].status == "not preserved"
        four = gate({("one", "rate"): lost, **{(str(n), "rate"): same for n in range(3)}})
        assert four["one", "rate"].p_holm == pytest.approx(4 * p)
        assert four["one", "rate"].status == "inconclusive"


class TestMissing:
    def test_few_clusters_show_nothing_however_many_replies_they_have(self):
        for share in (0.8, 0.2):
            sides = (rated({"rate": rate(s)}, LEAST_CLUSTERS - 1) for s in (0.8, share))
            found = compare_watched(*sides)
            assert decided(found) == "not enough data"
            assert "39 clusters" in found["rate"].gap

    def test_a_metric_of_a_part_has_the_clusters_in_which_it_was_asked_for(self):
        """Of 80 clusters every second has a reply that the metric is of."""
        values = [float(n % 4 == 0) if n % 2 == 0 else None for n in range(80)]
        side = rated({"rate": values, "all": rate(0.8, 80)}, 80)
        side.metrics["rate"] = replace(side.metrics["rate"], of_part=True)
        found = compare_watched(side, side)
        assert {name: metric.clusters for name, metric in found.items()} == {"rate": 40, "all": 80}

    def test_a_metric_that_is_gone_or_undefined_is_not_kept(self):
        before = rated({"a": rate(0.8), "b": rate(0.8)}, 500)
        gone = replace(before, metrics={"a": before.metrics["a"]})
        unknown = rated({"a": rate(0.8), "b": [None] * 2_000}, 500)
        for sides in ((before, gone), (gone, before), (before, unknown), (unknown, before)):
            found = compare_watched(*sides)
            assert "not defined" in found["b"].gap
            assert decided(found) == "not enough data"

    def test_replies_without_a_score_are_no_pass(self):
        before = rated({"rate": rate(0.8)}, 500)
        found = compare_watched(before, before, (0, 1))
        assert found["rate"].gap == "1 replies after have no score"
        assert decided(found) == "not enough data"

    def test_more_items_are_named_by_the_power_of_the_guard(self):
        """Every second cluster changes to the other answer: nothing does on average."""

        def metric_of(clusters):
            before = [float(n % 2) for n in range(clusters)]
            sides = (rated({"rate": values}, clusters) for values in (before, before[::-1]))
            return compare_watched(*sides)["rate"]

        few = metric_of(100)
        assert few.comparison.guard == "inconclusive" and few.times is not None
        needed = round(100 * few.times / 2) * 2
        known = metric_of(needed)
        assert known.comparison.guard == "preserved" and known.times == pytest.approx(1, abs=0.1)
        assert known.comparison.margin.power == pytest.approx(POWER, abs=0.03)


def spread(error, ways=1):
    return Spread(error, 0.05, ways, 100)


def test_a_plan_is_as_large_as_lets_an_unchanged_model_pass_so_often():
    spreads = [spread(0.02), spread(0.01, 2), spread(0.0)]
    for power in (0.5, 0.8, 0.95):
        times = times_needed(spreads, power)
        assert np.prod([s.power(times) for s in spreads]) == pytest.approx(power, abs=0.005)
    # by / (error / sqrt(times)) is the sum of both quantiles
    assert times_needed([spread(0.02)], 0.8) == pytest.approx((0.4 * 2.4865) ** 2, rel=0.01)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["pubmedqa", "rag"])
def test_a_planned_gate_passes_an_unchanged_model_in_most_cases(name, tasks):
    """The spread of 8 replies to each prompt says how many pass in 80%."""
    pool = Pool.of(tasks(name))
    quantile = NormalDist().inv_cdf(0.95)
    metrics = pool.round(8, Change())(RNG(5)).values()
    spreads = [m.with_error(error_of(m.comparison, quantile)).spread for m in metrics]
    replies = int(np.ceil(8 * times_needed(spreads, 0.8)))
    _, passed = shares(verdicts({name: pool.round(replies, Change())}, 40, seed=9))
    assert passed >= 0.7


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return cache(lambda name: of_local_scale(name, tmp_path_factory.mktemp(name), 1_000))


def replied(task, replies):
    """One of these replies to each prompt, scored."""
    rollouts = task.replied(replies)
    return rollouts, task.environment.score(rollouts)


def gated(task, before, after, **margins):
    return decided(Watched(task.environment, margins).compare(before, after))


NAMES = ("dharma", "pubmedqa", "rag")
#: What is made worse of each task, and how.
WORSE = {name: {REWARD: WRONG} for name in NAMES} | {
    "dharma": {"right_advice_rate": WRONG, "needless_referral_rate": REFERRING}
}
#: One reply to each prompt is too few for these margins.
WIDE = {
    "dharma": {REWARD: 0.2}
    | {f"{name}_rate": 0.9 for name in ("emergency_sent", "right_advice", "needless_referral")},
    "pubmedqa": {},
    "rag": dict.fromkeys(
        (REWARD, "answer_in_query", "retrieval_recall", "on_question_rate", "format_rate"), 0.1
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_a_useless_model_fails(name, tasks):
    """A model with one reply to everybody fails, also where every guard is about form."""
    task = tasks(name)
    before = replied(task, task.right)
    for reply in (task.right[0], "I cannot help with that.", ""):
        after = replied(task, [reply] * len(task.records))
        assert gated(task, before, after) == "failed", reply


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_what_is_worse_one_way_is_no_worse_the_other_way(name, tasks):
    pool = Pool.of(tasks(name))
    worse = planted(pool, REWARD, 6.0)
    assert verdicts({name: pool.round(24, worse)}, 5) == ["failed"] * 5
    assert "failed" not in verdicts({name: pool.round(24, worse, swapped=True)}, 5)


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_simulated_models(name, tasks):
    """40 rounds of each."""
    pool = Pool.of(tasks(name))
    failed, _ = shares(verdicts({name: pool.round(24, Change())}, 40, seed=1))
    assert failed <= 0.05
    for metric, kind in WORSE[name].items():
        worse = pool.round(24, planted(pool, metric, 2.0, kind))
        failed, passed = shares(verdicts({name: worse}, 40, seed=1))
        assert (failed >= 0.8, passed) == (True, 0), metric


@pytest.mark.deep
@pytest.mark.parametrize("name", ["dharma", "pubmedqa", "rag"])
def test_a_model_tuned_to_the_prompts_of_one_seed_fails_on_those_of_another(name, tmp_path_factory):
    """It has a table of good replies to the prompts it knows, and one reply to all others."""
    cache = tmp_path_factory.mktemp(name)
    known, drawn = (of_local_scale(name, cache, 1_000, seed) for seed in (42, 43))
    table = {str(r.messages): reply for r, reply in zip(known.records, known.right, strict=True)}
    verdicts = []
    for task in (known, drawn):
        after = replied(task, [table.get(str(r.messages), known.right[0]) for r in task.records])
        verdicts.append(gated(task, replied(task, task.right), after, **WIDE[name]))
    assert verdicts == ["passed", "failed"]


class TestFairness:
    @pytest.mark.deep
    def test_simulated_clinicians(self):
        failed, _ = shares(verdicts({"fairness": fairness_round(32, unchanged)}, 20))
        assert failed == 0
        for after in (MORE_BIASED, *LOST_TWICE.values()):
            assert shares(verdicts({"fairness": fairness_round(32, after)}, 20))[1] == 0

    @pytest.mark.deep
    def test_a_fifth_of_biased_replies_fails_and_no_change_passes(self):
        """At the size of the local run: the distance and the ratio grow with the bias itself."""
        worse, same = (
            verdicts({"fairness": fairness_round(GENERATIONS, after, 1, blind)}, 10)
            for after in (FIFTH_BIASED, blind)
        )
        assert worse.count("failed") >= 9
        assert same.count("passed") >= 8

    @pytest.mark.deep
    @pytest.mark.parametrize("name", ATTACKS)
    def test_a_policy_that_hides_its_bias_does_not_pass(self, name):
        attack = fairness_round(GENERATIONS, ATTACKS[name], 1, blind)
        assert "passed" not in verdicts({"fairness": attack}, 3)

    @pytest.mark.parametrize("reads", [True, False])
    def test_the_same_reply_to_everybody_fails(self, reads):
        """One decision is perfectly fair, and keeps every guard on form."""

        def constant(sets, generations, rng):
            one = sets.decisions(1, rng)[:1, :1] if reads else np.array(MISSING, dtype=np.float32)
            return np.broadcast_to(one, (len(sets.names), 4, generations, 6))

        assert verdicts({"fairness": fairness_round(8, constant)}, 2) == ["failed"] * 2


@pytest.mark.deep
def test_a_seed_of_the_draws_decides_nothing():
    """The bootstrap's of fairness, which has one for its effects."""
    for after, verdict in ((MORE_BIASED, "not preserved"), (unchanged, "preserved")):
        found = [
            compare_watched(
                *fairness_sides(RNG(3), 32, after), settings=StatisticsSettings(1_000, seed=seed)
            )["blind_distance"]
            for seed in range(3)
        ]
        assert {gate({("fairness", "d"): each})["fairness", "d"].status for each in found} == {
            verdict
        }


class Plain(Environment):
    """An environment that names nothing but itself."""

    name, score, measure = "plain", None, None


class Perfect(Environment):
    """An environment in which every reply earns the most."""

    name = "perfect"

    def __init__(self):
        pass

    def reward_range(self):
        return 0.0, 2.0

    def score(self, rollouts):
        return [Score(2.0) for _ in rollouts]

    def measure(self, rollouts, scores):
        return measure_means([rollout.set_id for rollout in rollouts], {})


def test_a_margin_replaces_the_guard_and_guards_what_has_none():
    measured = rated({"a": rate(0.8), "b": rate(0.8)}, 500)
    free = replace(measured.metrics["b"], guard=None)
    relative = replace(measured.metrics["a"], guard=Margin(0.1, relative=True), trials=None)
    changed = replace(measured, metrics={"a": relative, "b": free})
    assert list(watched(changed, {}).metrics) == ["a"]
    named = watched(changed, {"a": 0.2, "b": 0.3}).metrics
    assert {n: m.guard for n, m in named.items()} == {"a": Margin(0.2, True), "b": Margin(0.3)}


def test_the_reward_is_told_in_its_own_unit():
    """Its interval is that of a share of its range, so that equal replies have one with a width."""
    environment = Perfect()
    rollouts = [Rollout(f"{n}", f"{n}", "test", "", "right") for n in range(60)]
    side = rollouts, environment.score(rollouts)
    told = Watched(environment, {REWARD: 0.5}).compare(side, side)[REWARD].comparison
    assert (told.before, told.after, told.difference) == (2.0, 2.0, 0.0)
    assert told.margin.by == 0.5
    assert told.margin.low < 0
