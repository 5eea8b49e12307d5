"""How often intervals hold and tests reject in simulated runs whose truth is known.

Every function draws `rounds` measurements and asks the code under test about each. Shares are
drawn from a beta-binomial distribution with a correlation within clusters; values behind a noise
floor are those of counterfactual sets: four races, eight replies, a level of each set that its
races share, and, where races differ, an effect that differs between sets.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from environments.measurement import Margin, Measurement, Metric, quotient
from equipoise.statistics.compare import compare
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.intervals import (
    Shares,
    StatisticsSettings,
    difference_bounds,
    mcnemar,
    share_bounds,
    swap_p,
)

RACES, REPLIES = 4, 8
SETTINGS = StatisticsSettings(bootstrap_draws=1_000, permutations=500)
MEAN = Metric(lambda t: quotient(t[..., 0], t[..., 1]), "higher")


def rate(hits):
    """The share of rounds in which something happened."""
    return float(np.mean(np.asarray(hits, dtype=np.float64)))


def clustered(rng, clusters, mean=3.0):
    """Totals and numbers [C, 2] of 1 to 8 skewed values a cluster that share a part."""
    numbers = rng.integers(1, 9, size=clusters)
    shared = rng.gamma(2.0, 0.7, size=clusters) - 1.4
    own = rng.normal(0.0, 1.0, size=clusters) / np.sqrt(numbers)
    return np.column_stack([(mean + shared + own) * numbers, numbers]).astype(np.float64)


def measured(sums, strata=None):
    """Of so many named clusters."""
    names = tuple(f"{row:04}" for row in range(len(sums)))
    return Measurement(names, sums, {"mean": MEAN}, strata=strata)


def mean_held(clusters, rounds):
    """Coverage of the interval of a mean."""
    rng = np.random.default_rng(clusters)
    found = [headline_figures(measured(clustered(rng, clusters)), SETTINGS) for _ in range(rounds)]
    return rate([f["mean"].low <= 3.0 <= f["mean"].high for f in found])


def stratified_mean_held(clusters, rounds):
    """Coverage where six strata far apart have fixed sizes; the truth is their mean."""
    rng = np.random.default_rng(clusters)
    stratum = np.arange(clusters) % 6
    names = tuple(f"case {n}" for n in stratum)
    hits = []
    for _ in range(rounds):
        values = 2.0 * stratum + rng.gamma(2.0, 0.7, size=clusters)
        sums = np.column_stack([values, np.ones(clusters)])
        found = headline_figures(measured(sums, names), SETTINGS)["mean"]
        hits.append(found.low <= 2.0 * stratum.mean() + 1.4 <= found.high)
    return rate(hits)


def paired(rng, clusters, change):
    """Before and after of the same clusters."""
    before = clustered(rng, clusters)
    moved = change + rng.normal(0, 0.5, clusters)
    after = np.column_stack([before[:, 0] + moved * before[:, 1], before[:, 1]])
    return before, after


def mean_difference(clusters, rounds, change):
    """Coverage of the interval of a change, and how often its test rejects."""
    rng = np.random.default_rng(clusters)
    held, rejected = [], []
    for _ in range(rounds):
        before, after = paired(rng, clusters, change)
        found = compare(measured(before), measured(after), SETTINGS)["mean"]
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        held.append(found.low <= change <= found.high)
        rejected.append(found.p < 0.05)
    return rate(held), rate(rejected)


def guard_kept(clusters, rounds, change, margin):
    """How often a mean that moved by so much is said to be kept, and the power that is told."""
    rng = np.random.default_rng(clusters)
    guarded = replace(MEAN, better=None, guard=Margin(margin))
    kept, told = [], []
    for _ in range(rounds):
        pair = (
            replace(measured(s), metrics={"mean": guarded}) for s in paired(rng, clusters, change)
        )
        found = compare(*pair, SETTINGS)["mean"]
        assert found.margin is not None
        kept.append(found.guard == "preserved")
        told.append(found.margin.power)
    return rate(kept), rate(told)


def beta_binomial(rng, chances, trials, correlation):
    """Hits of trials [..., C] that are alike within a cluster."""
    if correlation:
        weight = (1 - correlation) / correlation
        chances = rng.beta(
            np.multiply(chances, weight), np.multiply(1 - chances, weight), trials.shape
        )
    return rng.binomial(trials.astype(int), chances).astype(np.float64)


def shares_of(hits, trials):
    """Of one stratum."""
    return Shares(hits, trials, np.zeros(hits.shape[-1], dtype=np.intp))


def sizes(rng, shape, trials):
    """So many trials a cluster; 0 is 1 to 8 of them, by chance."""
    drawn = rng.integers(1, 9, shape) if trials == 0 else np.full(shape, trials)
    return drawn.astype(np.float64)


def share_held(clusters, rounds, chance, *, trials=4, correlation=0.3):
    """Coverage of the interval of a share. No interval may be without width."""
    rng = np.random.default_rng(clusters)
    counts = sizes(rng, (rounds, clusters), trials)
    hits = beta_binomial(rng, chance, counts, correlation if trials != 1 else 0.0)
    low, high = share_bounds(shares_of(hits, counts), 0.95)
    assert (low < high).all()
    return rate((low <= chance) & (chance <= high))


def share_difference(clusters, rounds, before, after):
    """Coverage of the interval of a change of shares, and how often its test rejects.

    A cluster that is prone to hits before is prone to them after.
    """
    rng = np.random.default_rng(clusters)
    counts = np.full((rounds, clusters), 4.0)
    prone = rng.beta(0.5, 0.5, (rounds, clusters)) * 2  # of mean 1
    pair = [
        shares_of(beta_binomial(rng, np.clip(chance * prone, 0, 1), counts, 0.0), counts)
        for chance in (before, after)
    ]
    low, high = difference_bounds(pair[0], pair[1], 0.95)
    held = (low <= after - before) & (after - before <= high)
    few = min(rounds, 1_000)
    p = [
        swap_p(*(replace(s, hits=s.hits[r], trials=s.trials[r]) for s in pair), 500, rng)
        for r in range(few)
    ]
    return rate(held), rate(np.array(p) < 0.05)


def share_guard_kept(clusters, rounds, before, after, margin):
    """How often the 90% interval of a change of shares is above minus the margin."""
    rng = np.random.default_rng(clusters)
    counts = np.full((rounds, clusters), 4.0)
    pair = [shares_of(beta_binomial(rng, c, counts, 0.1), counts) for c in (before, after)]
    low, _ = difference_bounds(pair[0], pair[1], 0.9)
    return rate(low > -margin)


def mcnemar_rejected(clusters, rounds):
    """How often McNemar's test rejects that nothing changed."""
    rng = np.random.default_rng(clusters)
    chances = rng.beta(1, 1, (rounds, clusters))
    before, after = (rng.random((rounds, clusters)) < chances for _ in range(2))
    return rate([mcnemar(*pair) < 0.05 for pair in zip(before, after, strict=True)])


#: What a row is of, its truth, figures by clusters and rounds, the share of the rounds.
Row = tuple[str, str, Callable[[int, int], tuple[float, ...]], int]


def row(what, setting, share, simulate, **truth):
    """A row of a simulation."""

    def figures(clusters, rounds):
        found = simulate(clusters, rounds, **truth)
        return found if isinstance(found, tuple) else (found,)

    return what, setting, figures, share


def first_of(simulate, number=1):
    """The first figures of a simulation alone."""
    return lambda *sizes, **truth: simulate(*sizes, **truth)[:number]


def coverages():
    """Whether intervals hold."""
    yield row("mean", "skewed values, clusters of 1 to 8", 2, mean_held)
    yield row("mean", "six strata of fixed sizes", 2, stratified_mean_held)
    yield row("change of a mean", "0", 2, mean_difference, change=0.0)
    yield row("change of a mean", "0.3", 2, first_of(mean_difference), change=0.3)
    for chance in (0.005, 0.02, 0.05, 0.2, 0.5, 0.98):
        for trials, correlation in ((1, 0.0), (4, 0.1), (4, 0.3), (0, 0.3), (8, 0.3)):
            setting = f"{chance}; {trials or '1 to 8'} trials each"
            setting += f", correlation {correlation}" if trials != 1 else ""
            truth = {"chance": chance, "trials": trials, "correlation": correlation}
            yield row("share", setting, 10, share_held, **truth)
    for before, after in ((0.02, 0.02), (0.05, 0.05), (0.3, 0.3), (0.05, 0.01), (0.3, 0.2)):
        simulate = first_of(share_difference, 2 if before == after else 1)
        setting = f"{before} to {after}"
        yield row("change of a share", setting, 4, simulate, before=before, after=after)


def levels():
    """Tests and guards: how often they reject, or keep, where at most 5% should."""
    at_margin = {"change": 0.3, "margin": 0.3}
    yield row("McNemar", "no change", 4, mcnemar_rejected)
    yield row("guard of a mean", "at its margin", 2, first_of(guard_kept), **at_margin)
    for before, after, margin in ((0.9, 0.85, 0.05), (0.99, 0.97, 0.02)):
        truth = {"before": before, "after": after, "margin": margin}
        setting = f"at its margin, {before} to {after}".replace("0.", ".")
        yield row("guard of a share", setting, 10, share_guard_kept, **truth)
