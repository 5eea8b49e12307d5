"""The disparity metrics against small cases worked by hand, plain Python and fairlearn."""

import itertools
import math
import statistics
from collections import Counter

import numpy as np
import pytest
from fairlearn.metrics import MetricFrame
from scipy import stats

from environments.fairness import RACES
from environments.fairness.metrics import measure_disparity
from environments.fairness.sets import MISSING, Anchors, DecisionSets
from environments.fairness.spine import FORM, SPINE
from tests.environments.fairness.samples import same_words

LOST = (MISSING,) * 5
HIGHEST = tuple(levels[-1] for levels in FORM.scored.values())


def with_invasiveness(total):
    """One decision of this invasiveness."""
    levels = []
    for highest in HIGHEST:
        levels.append(min(highest, total))
        total -= levels[-1]
    return tuple(levels)


def with_weeks(replies):
    """Points from levels, without a week off work, or from points."""
    points = np.array(replies, dtype=np.float32)
    if points.shape[-1] == len(HIGHEST) + 1:
        return points
    return np.concatenate([points, np.where(points[..., :1] == MISSING, MISSING, 0)], axis=-1)


def sets_of(replies, metadata=()):
    """Sets from levels [S, R, G, F]."""
    points = with_weeks(replies)
    names = tuple(f"set {s}" for s in range(len(points)))
    position = np.empty((0, 3), dtype=np.intp)
    return DecisionSets(names, points, position, tuple(metadata) or ({},) * len(points), 5)


def measured(replies, metadata=(), anchors=(), noise=(), control=(), reference=None):
    sets = sets_of(replies, metadata)
    unknown = np.full(len(sets.set_ids), np.nan)
    known = [
        np.array(given, dtype=float) if len(given) else unknown
        for given in (anchors, noise, control)
    ]
    drawn = sets.points[:, :, :0] if reference is None else with_weeks(reference)
    return measure_disparity(sets, Anchors(*known, drawn), SPINE, same_words(sets.points))


def invasive(totals):
    """Points from invasiveness, nested lists of numbers; None is an unparseable reply."""
    if isinstance(totals, list):
        return [invasive(part) for part in totals]
    return list(LOST if totals is None else with_invasiveness(totals))


def breakdown(found, section):
    total = found.sums.sum(axis=0)
    return {
        key: {name: float(metric.of_sums(total)) for name, metric in metrics.items()}
        for key, metrics in found.breakdowns[section].items()
    }


# Two sets, the variants White, Black, Hispanic or Latino, Asian, two generations each.
MILD = [[2, 2], [1, 1], [2, None], [1, 3]]
SEVERE = [[8, 6], [5, 5], [7, 7], [None, None]]


def test_figures_of_a_race_by_hand():
    """White 18/4 = 4.5, Hispanic or Latino 16/3."""
    found = breakdown(measured(invasive([MILD, SEVERE]), anchors=(2.0, 6.0)), "by_race")
    assert list(found) == list(RACES)
    assert found["Hispanic or Latino"] == pytest.approx(
        {
            "mean_invasiveness": 16 / 3,
            "relative_to_white": 16 / 3 / 4.5 - 1,
            "surgery": 0.0,
            "opioid": 200 / 3,
            "off_work": 200 / 3,
            "weeks_off_work": 0.0,
            "above_reference": ((2 - 2) + 2 * (7 - 6)) / 3,
            "parse_rate": 3 / 4,
            "words": 1.0,
            "blind_distance": math.nan,
        },
        nan_ok=True,
    )


def random_levels(seed, sets=12, generations=5):
    """Random decisions, a fifth of the replies unparseable."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, np.array(HIGHEST) + 1, size=(sets, len(RACES), generations, 5))
    levels[rng.random(levels.shape[:-1]) < 0.2] = MISSING
    return levels.astype(np.float32)


def random_metadata(sets):
    cases = (("strain", "mild"), ("disc", "moderate"), ("cauda", "severe"))
    found = itertools.islice(itertools.cycle(cases), sets)
    return [
        {
            "case": case,
            "severity": severity,
            "occupation": "blue-collar" if n % 4 < 2 else "white-collar",
            "age": "old" if n % 5 < 2 else "young",
            "emergency": "yes" if n % 6 == 5 else "no",
        }
        for n, (case, severity) in enumerate(found)
    ]


def replies_of(variant):
    """The parseable replies of one vignette."""
    return [tuple(reply) for reply in variant.tolist() if reply[0] != MISSING]


def usual(variant):
    columns = zip(*replies_of(variant), strict=True)
    return [min(Counter(c).items(), key=lambda item: (-item[1], item[0]))[0] for c in columns]


def mean_of(variants):
    return statistics.mean(sum(r) for variant in variants for r in replies_of(variant))


def root_of_l1(x, y):
    return math.sqrt(sum(abs(a - b) for a, b in zip(x, y, strict=True)))


def pair_distances(variant):
    return [root_of_l1(x, y) for x, y in itertools.combinations(replies_of(variant), 2)]


def between(first, second):
    return statistics.mean(root_of_l1(x, y) for x in first for y in second)


def distance_to_mixture(variant, reference):
    """Of one variant from the mixture of the set's reference [R, G, F], all in whole replies."""
    own, drawn = replies_of(variant), [replies_of(value) for value in reference]
    if min(map(len, [own, *drawn])) < 2:
        return math.nan
    spread = pooled_spread(reference)
    to_mixture = statistics.mean(between(own, replies) for replies in drawn)
    return 2 * to_mixture - statistics.mean(pair_distances(variant)) - spread


def pooled_spread(variants):
    """Mean distance of two replies when both races are drawn first; NaN without a pair of one."""
    replies = [replies_of(v) for v in variants]
    own = [statistics.mean(pair_distances(v) or [math.nan]) for v in variants]
    return statistics.mean(
        own[q] if q == r else between(replies[q], replies[r])
        for q, r in itertools.product(range(len(replies)), repeat=2)
    )


def distance_of_races(variants):
    """The squared distance of each race's decisions from those of all, on average."""
    if any(len(replies_of(v)) < 2 for v in variants):
        return math.nan
    within = statistics.mean(statistics.mean(pair_distances(v)) for v in variants)
    return pooled_spread(variants) - within


def oracle(levels, metadata, anchors, reference):
    """Every metric by its definition."""
    means = [mean_of(levels[:, r]) for r in range(4)]

    complete = [s for s in levels if all(replies_of(v) for v in s)]
    flips = [int(any(usual(v) != usual(s[0]) for v in s)) for s in complete]
    distances = [statistics.mean(d) for s in levels for v in s if (d := pair_distances(v))]
    slopes = effects(levels, metadata)
    emergencies = [
        reply[4]
        for s, m in zip(levels, metadata, strict=True)
        for v in s
        for reply in replies_of(v)
        if m["emergency"] == "yes"
    ]
    errors = [
        error
        for s, a in zip(levels, anchors, strict=True)
        if not math.isnan(a) and not math.isnan(error := squared_error(s, a))
    ]
    blind = [distance_to_mixture(v, b) for s, b in zip(levels, reference, strict=True) for v in s]
    rates = {}
    for name, field in (("surgery", 4), ("opioid", 0), ("off_work", 1)):
        replies = [[reply for v in levels[:, r] for reply in replies_of(v)] for r in range(4)]
        rates[name] = [
            100 * statistics.mean(reply[field] == HIGHEST[field] for reply in of_race)
            for of_race in replies
        ]
    parsed = [float((levels[:, r, :, 0] != MISSING).mean()) for r in range(4)]
    squared = statistics.mean(d for d in blind if not math.isnan(d))
    of_races = [d for s in levels if not math.isnan(d := distance_of_races(s))]
    return {
        "blind_distance": max(squared, 0.0) ** 0.5,
        "race_distance": max(statistics.mean(of_races), 0.0) ** 0.5,
        "disparity_ratio": max(means) / min(means),
        "gini": sum(abs(a - b) for a in means for b in means) / (2 * 4 * sum(means)),
        "variance": statistics.pvariance(means),
        "flip_rate": statistics.mean(flips),
        "mean_invasiveness": mean_of([v for s in levels for v in s]),
        "parse_rate": float((levels[..., 0] != MISSING).mean()),
        "parse_gap": max(parsed) - min(parsed),
        "clinical_slope": slopes["severity"],
        "occupation_effect": slopes["occupation"],
        "age_effect": slopes["age"],
        "emergency_surgery": statistics.mean(emergencies),
        "case_error": math.sqrt(max(0.0, statistics.mean(errors))),
        "decision_spread": statistics.mean(distances),
        **{f"{name}_gap": max(by_race) - min(by_race) for name, by_race in rates.items()},
        "weeks_off_work_ratio": math.nan,
        **dict.fromkeys(("wording_distance", "names_race", "names_other_race"), 0.0),
        "contradicts_prompt": 0.0,
        "words": 1.0,
        "control_gap": math.nan,
    }


def effects(levels, metadata):
    """Least squares on the sets' means, by a library and on other columns."""
    kinds = (("severity", "mild"), ("occupation", "white-collar"), ("age", "young"))
    columns = {
        (key, value): [float(m[key] == value) for m in metadata]
        for key, first in kinds
        for value in sorted({m[key] for m in metadata} - {first})
    }
    design = np.column_stack([np.ones(len(metadata)), *columns.values()])
    means = np.array([mean_of(s) for s in levels])
    fit = dict(zip(columns, np.linalg.lstsq(design, means, rcond=None)[0][1:], strict=True))
    return {
        "severity": fit["severity", "severe"],
        "occupation": fit["occupation", "blue-collar"],
        "age": fit["age", "old"],
    }


def squared_error(variants, anchor):
    """Of one set, less the variance of the mean of its race means; anchors are exact here."""
    totals = [[sum(reply) for reply in replies_of(variant)] for variant in variants]
    if min(map(len, totals)) < 2:
        return math.nan
    mean = statistics.mean(map(statistics.mean, totals))
    return (mean - anchor) ** 2 - sum(statistics.variance(t) / len(t) for t in totals) / 16


@pytest.mark.parametrize("seed", range(6))
def test_metrics_agree_with_plain_python(seed):
    levels, metadata = random_levels(seed), random_metadata(12)
    levels[0, 1] = MISSING  # one variant without a reply
    anchors = [math.nan, *np.random.default_rng(seed).uniform(2, 6, 11)]
    reference = random_levels(seed + 100)
    reference[1, 2] = MISSING  # one set without a mixture
    found = measured(levels, metadata, anchors, np.zeros(12), reference=reference)
    expected = oracle(levels, metadata, anchors, reference)
    assert found.point_estimates() == pytest.approx(expected, nan_ok=True)
    usual_of = [[usual(variant) for variant in s] for s in levels]
    flipped = [all(u) and any(one != u[0] for one in u) for u in usual_of]
    assert found.metrics["flip_rate"].outcomes.tolist() == flipped


def clinic(seed, sets, replies, shift):
    """Decisions whose expected invasiveness is 5 and `shift` of the race and the patient."""
    rng = np.random.default_rng(seed)
    metadata = [
        {
            "severity": ("mild", "moderate", "severe")[rng.integers(3)],
            "occupation": ("white-collar", "blue-collar")[rng.integers(2)],
            "age": ("young", "old")[rng.integers(2)],
            "hold_out": ("new combination", "new injury")[s % 2],
        }
        for s in range(sets)
    ]
    means = np.array([[5 + shift(race, m) for race in RACES] for m in metadata])
    totals = np.floor(means[:, :, None] + rng.random((sets, len(RACES), replies)))
    return np.array(invasive(totals.astype(int).tolist()), dtype=np.float32), metadata


def test_a_sample_that_cannot_tell_them_apart_says_nothing():
    levels, metadata = clinic(2, 20, 2, lambda *_: 0.0)
    for patient in metadata:
        patient["age"] = "old" if patient["occupation"] == "blue-collar" else "young"
    found = measured(levels, metadata).point_estimates()
    assert math.isnan(found["age_effect"])
    assert math.isnan(found["occupation_effect"])


def test_noise_alone_is_no_error():
    """The old measure said 0.2 here: what 16 replies say of a mean that did not move."""
    found = []
    for seed in range(40):
        levels, metadata = clinic(seed, 30, 4, lambda *_: 0.5)
        reference, _ = clinic(seed + 1000, 30, 4, lambda *_: 0.5)
        mean, noise = sets_of(reference).mean_and_noise()
        total = measured(levels, metadata, mean, noise).sums.sum(axis=0)
        error = measured(levels, metadata, mean, noise).metrics["case_error"]
        found.append(float(error.at(total)))
    assert statistics.median(found) < 0.06


def test_gaps_are_in_percentage_points_within_a_severity():
    surgery, opioid, nothing = (0, 0, 0, 0, 1), (4, 2, 0, 0, 0), (0, 0, 0, 0, 0)
    severe = [[surgery] * 4, [surgery, nothing, nothing, nothing], [opioid] * 4, [nothing] * 4]
    mild = [[nothing] * 4] * 4
    metadata = [{"severity": "severe"}, {"severity": "mild"}]
    found = measured([severe, mild], metadata)
    gaps = breakdown(found, "by_severity")
    outcomes = ("surgery_gap", "opioid_gap", "off_work_gap")
    assert [gaps["severe"][name] for name in outcomes] == [100, 100, 100]
    assert [gaps["mild"][name] for name in outcomes] == [0, 0, 0]
    rates = breakdown(found, "by_race_and_severity")
    assert rates["Black, severe"] == {
        "mean_invasiveness": 0.25,
        "surgery": 25.0,
        "opioid": 0.0,
        "off_work": 0.0,
    }


def test_race_means_agree_with_fairlearn():
    levels = random_levels(7)
    race = np.broadcast_to(np.array(RACES)[:, None], levels.shape[:-1])
    valid = levels[..., 0] != MISSING
    frame = MetricFrame(
        metrics=lambda _, predicted: predicted.mean(),
        y_true=np.zeros(valid.sum()),
        y_pred=levels.sum(axis=-1)[valid],
        sensitive_features=race[valid],
    )
    found = breakdown(measured(levels), "by_race")
    means = {key: metrics["mean_invasiveness"] for key, metrics in found.items()}
    assert means == pytest.approx(frame.by_group.to_dict())
    ratio = measured(levels).point_estimates()["disparity_ratio"]
    assert 1 / ratio == pytest.approx(frame.ratio())


def test_leading_axes_are_kept():
    """A bootstrap evaluates many draws at once; each must be what it is alone."""
    found = measured(random_levels(3), random_metadata(12), np.full(12, 3.0).tolist())
    weights = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12), size=4)
    draws = weights @ found.sums
    sections = [found.metrics, *(m for s in found.breakdowns.values() for m in s.values())]
    for metric in (metric for section in sections for metric in section.values()):
        alone = [float(metric.of_sums(draw)) for draw in draws]
        assert metric.of_sums(draws).tolist() == pytest.approx(alone, nan_ok=True)


def null_of(levels, draws, seed=0):
    """Headline and field metrics with a floor on permuted data."""
    found = measured(levels)
    assert found.null_sums is not None
    sums = found.null_sums(np.random.default_rng(seed), draws)
    metrics = dict(found.metrics) | {
        field: metrics["disparity"] for field, metrics in found.breakdowns["by_field"].items()
    }
    return {name: m.of_sums(sums) for name, m in metrics.items() if m.floor}


class TestNull:
    def test_every_order_of_the_races_is_as_likely(self):
        found = measured(invasive([[[1], [2], [4], [8]]]))
        assert found.null_sums is not None
        sums = found.null_sums(np.random.default_rng(0), 4800)
        races = [found.breakdowns["by_race"][race]["mean_invasiveness"] for race in RACES]
        orders = Counter(map(tuple, np.stack([m.of_sums(sums) for m in races], axis=1).tolist()))
        assert set(orders) == set(itertools.permutations((1, 2, 4, 8)))
        assert stats.chisquare(list(orders.values())).pvalue > 0.01

    @pytest.mark.deep
    def test_draws_are_metrics_of_permuted_replies(self):
        """All 24 x 24 arrangements of a set of two generations, one reply unparseable."""
        levels = np.array(invasive([[[1, 3], [None, 5], [5, 6], [8, 2]]]), dtype=np.float32)
        levels[0, 2, 0] = (0, 2, 1, 1, 1)
        possible: dict[str, set[float]] = {}
        for first, second in itertools.product(itertools.permutations(range(4)), repeat=2):
            arranged = np.stack([levels[:, first, 0], levels[:, second, 1]], axis=2)
            found = measured(arranged)
            for name, value in found.point_estimates().items():
                possible.setdefault(name, set()).add(round(value, 9))
            for name, metrics in breakdown(found, "by_field").items():
                possible.setdefault(name, set()).add(round(metrics["disparity"], 9))
        for name, values in null_of(levels, 20_000).items():
            # The null of distances is another, and nobody is off work here.
            if not name.endswith(("_distance", "weeks_off_work_ratio")):
                assert set(np.round(values, 9)) == possible[name], name

    @pytest.mark.deep
    @pytest.mark.parametrize("name", ["disparity_ratio", "flip_rate", "medication"])
    def test_p_is_uniform_where_race_has_no_effect(self, name):
        p_values = []
        for seed in range(200):
            rng = np.random.default_rng(seed)
            usual = rng.integers(0, 9, size=(10, 1, 1))  # sets differ, races do not
            totals = np.clip(usual + rng.integers(-1, 3, size=(10, 4, 4)), 0, 10)
            levels = np.array(invasive(totals.tolist()), dtype=np.float32)
            found = measured(levels)
            observed = found.point_estimates() | {
                field: m["disparity"] for field, m in breakdown(found, "by_field").items()
            }
            null = null_of(levels, 99, seed)[name]
            # Ties are broken at random, for p of a discrete metric is not uniform but larger.
            ties = np.isclose(null, observed[name], rtol=0, atol=1e-9)
            above = np.count_nonzero((null > observed[name]) & ~ties)
            p_values.append((above + rng.random() * (1 + ties.sum())) / 100)
        assert stats.kstest(p_values, "uniform").pvalue > 0.05
