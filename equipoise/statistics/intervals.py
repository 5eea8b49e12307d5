"""Intervals, floors and tests for metrics that are functions of sums over clusters.

Nothing here knows of a task. Shapes: C clusters, K statistics, D draws. A metric may
be undefined in a draw (NaN): such draws are left out as long as they are few, and where they are
more than `MAX_UNDEFINED` of all it gives neither interval nor p-value, for what is left would be a
selection.

References: Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapters 13, 15 and 16.
Rao, Wu & Yue (1992), Survey Methodology 18, 209-217: resampling clusters within strata.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from environments.measurement import Array, Direction, Measurement, Metric, mean_of, quotient

Key = TypeVar("Key", bound=Hashable)

#: The share of draws in which a metric may be undefined.
MAX_UNDEFINED = 0.01
#: Cluster weights held in memory at once (16 MB).
_WEIGHTS_AT_ONCE = 2**21
#: Sums of draws held in memory at once (2 MB).
_SUMS_AT_ONCE = 2**18
#: Values this near to each other are equal, but for rounding.
TIE = 1e-9
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """Number of draws, width of the intervals, and the seed of all draws."""

    bootstrap_draws: int = 10_000
    permutations: int = 2_000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of a confidence interval."""

    low: float
    high: float


class Floor(NamedTuple):
    """A metric by chance: median, upper bound, and how rarely it reaches the observed."""

    median: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Clusters:
    """Distinct clusters [C] by name, their sums [C, K], and the number of each one's stratum.

    A stratum has at least two clusters, unless there is but one in all.
    """

    names: NDArray[np.str_]
    sums: Array
    strata: NDArray[np.intp]

    @property
    def total(self) -> Array:
        """The sums of all clusters together, [K]."""
        return np.asarray(self.sums.sum(axis=0))

    @property
    def degrees(self) -> int:
        """Degrees of freedom of a variance between clusters: clusters less strata."""
        return len(self.names) - len(np.unique(self.strata))


def merge_clusters(
    clusters: Sequence[str], sums: Array, strata: Sequence[str] | None = None
) -> Clusters:
    """Distinct clusters, sorted by name; rows of one name are added up, small strata joined.

    Raises `ValueError` for a cluster that is in two strata.
    """
    names, first, row = np.unique(
        np.asarray(clusters, dtype=np.str_), return_index=True, return_inverse=True
    )
    merged = np.zeros((len(names), sums.shape[1]))
    np.add.at(merged, row, sums)
    codes = np.zeros(len(clusters), dtype=np.intp)
    if strata is not None:
        codes = np.unique(np.asarray(strata, dtype=np.str_), return_inverse=True)[1]
    if len(torn := np.flatnonzero(codes != codes[first][row])):
        raise ValueError(f"cluster {clusters[torn[0]]!r} is in two strata")
    return Clusters(names, merged, _joined(codes[first]))


def bootstrap_sums(clusters: Clusters, draws: int, rng: np.random.Generator) -> Iterator[Array]:
    """Total sums [d, K] of clusters resampled within strata, in chunks of d draws.

    A draw weights the clusters, so that a chunk is one matrix product. Of a single cluster all
    draws are NaN: it does not say how clusters differ.
    """
    count = len(clusters.names)
    if count == 0:
        raise ValueError("there is nothing to resample: no clusters")
    chunk = max(1, _WEIGHTS_AT_ONCE // count)
    part = max(1, _SUMS_AT_ONCE // max(1, clusters.sums.shape[1]))
    for start in range(0, draws, chunk):
        weights = _weights(clusters.strata, min(chunk, draws - start), rng)
        for first in range(0, len(weights), part):
            yield weights[first : first + part] @ clusters.sums


def _weights(strata: NDArray[np.intp], draws: int, rng: np.random.Generator) -> Array:
    """Weight of each cluster in each draw, [draws, C].

    From the n clusters of a stratum n - 1 are drawn with replacement, each weighing n / (n - 1)
    (Rao, Wu & Yue 1992): n of them would vary by (n - 1) / n of what the sample does.
    """
    weights = np.full((draws, len(strata)), np.nan)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        if (n := len(members)) > 1:
            times = rng.multinomial(n - 1, np.full(n, 1 / n), size=draws)
            weights[:, members] = times * (n / (n - 1))
    return weights


def _joined(strata: NDArray[np.intp]) -> NDArray[np.intp]:
    """The strata, those of one cluster joined: they could not vary by themselves.

    A last single one joins the smallest of the others, as surveys do (Cochran 1977, section
    5A.12); their variance is then too large rather than too small.
    """
    sizes = np.bincount(strata, minlength=1)
    joined = np.where(sizes[strata] == 1, -1, strata)
    if np.count_nonzero(joined == -1) == 1 and len(strata) > 1:
        joinable_sizes = np.where(sizes > 1, sizes, len(strata) + 1)
        joined = np.where(joined == -1, int(joinable_sizes.argmin()), joined)
    return joined


def metric_draws(totals: Iterable[Array], metrics: Mapping[Key, Metric]) -> dict[Key, Array]:
    """Evaluate every metric [D] on chunks of total sums."""
    chunks: dict[Key, list[Array]] = {key: [] for key in metrics}
    for total in totals:
        for key, metric in metrics.items():
            chunks[key].append(metric.at(total))
    return {key: np.concatenate(values) for key, values in chunks.items()}


def interval(draws: Array, confidence: float, degrees: float = math.inf) -> Interval | None:
    """The bootstrap percentile interval (Efron & Tibshirani 1993, chapter 13), as wide as t has it.

    The tails are those of the normal distribution beyond the quantile of Student's t with these
    degrees of freedom (Hesterberg 2015, doi:10.1080/00031305.2015.1089789, section 5.3): a
    percentile interval of a mean is that of a normal distribution, too narrow for few clusters.

    Percentile, not BCa: BCa's bias correction is infinite where every draw lies on one side of
    the observed value.
    """
    defined = _defined(draws)
    if defined is None:
        return None
    tail = _NORMAL.cdf(-student_quantile((1 + confidence) / 2, degrees))
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(float(low), float(high))


def student_tail(t: float, degrees: float) -> float:
    """Return P(T > t) of Student's distribution, the normal one for infinite degrees of freedom."""
    from scipy import stats  # takes a second to import

    return float(stats.t.sf(t, degrees))


@cache
def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's T; infinity without a degree of freedom."""
    from scipy import stats

    return math.inf if degrees < 1 else float(stats.t.ppf(probability, degrees))


def floor(observed: float, null: Array, confidence: float) -> Floor | None:
    """Compare a metric, larger being further from the null, with its permutation draws [D].

    One-sided p = (1 + #{null >= observed}) / (1 + D): the observed arrangement is one of those
    possible, so p is never 0 (Phipson & Smyth 2010, doi:10.2202/1544-6115.1585).
    """
    defined = _defined(null)
    if defined is None or math.isnan(observed):
        return None
    reached = int(np.count_nonzero(defined >= observed - TIE))
    median, high = np.quantile(defined, [0.5, confidence])
    return Floor(float(median), float(high), (1 + reached) / (1 + len(defined)))


def difference_p(differences: Array, degrees: float = math.inf) -> float | None:
    """Two-sided p of paired bootstrap differences [D], None where they are undefined.

    The level at which `interval` just reaches 0 (Efron & Tibshirani 1993, section 15.4), with
    Phipson & Smyth's 1 added to both counts.
    """
    defined = _defined(differences)
    if defined is None:
        return None
    sides = np.count_nonzero(defined <= TIE), np.count_nonzero(defined >= -TIE)
    share = (1 + int(min(sides))) / (1 + len(defined))
    if share >= 0.5:
        return 1.0
    return 2 * student_tail(-_NORMAL.inv_cdf(share), degrees)


def exceeding_p(draws: Array, bound: float, degrees: float = math.inf) -> float | None:
    """One-sided p of a figure at or below a bound, from bootstrap draws [D] of it.

    The level at which the lower end of `interval` reaches the bound; 1 where the draws do.
    """
    defined = _defined(draws)
    if defined is None:
        return None
    share = (1 + int(np.count_nonzero(defined <= bound + TIE))) / (1 + len(defined))
    return 1.0 if share >= 0.5 else student_tail(-_NORMAL.inv_cdf(share), degrees)


def mcnemar(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """Two-sided mid-p of McNemar's test (1947, doi:10.1007/BF02295996) on paired outcomes.

    Of the pairs that changed, each went either way with probability 1/2 under the null. What was
    observed counts half: the exact p is near .03 where .05 is asked for, and this one keeps to it
    (Fagerland, Lydersen & Laake 2013, doi:10.1186/1471-2288-13-91).
    """
    gains = int(np.count_nonzero(after & ~before))
    losses = int(np.count_nonzero(before & ~after))
    from scipy.stats import binom

    changed, fewer = gains + losses, min(gains, losses)
    as_few = binom.cdf(fewer, changed, 0.5)
    return float(min(1.0, 2 * as_few - binom.pmf(fewer, changed, 0.5)))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's step-down adjusted p-values (1979, Scand. J. Statist. 6, 65-70) of one family."""
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}


def _defined(draws: Array) -> Array | None:
    """The draws that are numbers; None where too many are not."""
    defined = draws[np.isfinite(draws)]
    few = len(draws) - len(defined) <= MAX_UNDEFINED * len(draws)
    return defined if few and len(defined) else None


# --- shares ---------------------------------------------------------------------------------------
# Intervals and a paired test of shares: means of values from 0 to 1 in clusters.
#
# A yes or no that is rare, or always yes, has no spread to resample: a bootstrap of it ends at what
# was seen, and a rate of 1 has an interval from 1 to 1. Wilson's score interval does not. All
# functions are of sums over values in the last axis, clusters: `hits` [..., C] of `trials` [...,
# C]. Simulated coverage is in docs/report.md.


#: The correlation within clusters that is assumed where the data say nothing of it.
_ASSUMED_CORRELATION = 0.5
#: How many changes are assumed at least where none was seen: the rule of three (Hanley &
#: Lippman-Hand 1983, doi:10.1001/jama.1983.03330370053031).
_ASSUMED_CHANGES = 3.0
#: A search for a p ends here: no p is told apart from 0 beyond it.
_LARGEST_T, _HALVINGS = 40.0, 30
#: Swapped signs held in memory at once (8 MB).
_SIGNS_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class Shares:
    """Hits of trials in clusters [..., C], and the number of each cluster's stratum [C]."""

    hits: Array
    trials: Array
    strata: NDArray[np.intp]

    @classmethod
    def of(cls, metric: Metric, sums: Array, strata: NDArray[np.intp]) -> "Shares | None":
        """A metric that is a share, from the sums [C, K]; None for another and for one cluster."""
        if metric.trials is None or len(sums) < 2:
            return None
        trials = np.asarray(metric.trials(sums), dtype=np.float64)
        return cls(np.where(trials > 0, metric.at(sums), 0.0) * trials, trials, strata)

    @property
    def share(self) -> Array:
        return quotient(self.hits.sum(axis=-1), self.trials.sum(axis=-1))

    @property
    def degrees(self) -> int:
        """Degrees of freedom of a variance between the clusters with trials: those less strata."""
        has_trials = self.trials.reshape(-1, self.trials.shape[-1]).any(axis=0)
        return max(1, int(has_trials.sum() - len(np.unique(self.strata[has_trials]))))

    @property
    def residuals(self) -> Array:
        """Each cluster's contribution to the share's error, [..., C]; they sum to 0 per stratum.

        The linearised ratio estimate: (hits - share * trials) / all trials.
        """
        total = self.trials.sum(axis=-1, keepdims=True)
        contributions = quotient(self.hits - self.share[..., None] * self.trials, total)
        centred = np.empty_like(contributions)
        for stratum in np.unique(self.strata):
            members = self.strata == stratum
            n = int(members.sum())
            part = contributions[..., members]
            deviations = part - part.mean(axis=-1, keepdims=True)
            centred[..., members] = deviations * np.sqrt(n / (n - 1))
        return centred


def share_bounds(shares: Shares, confidence: float) -> tuple[Array, Array]:
    """Wilson's interval (1927) of the effective number of trials, with the quantile of Student's t.

    The effective number is that of the trials over the design effect (Kish 1965): the variance
    between clusters over that of as many independent trials. Its estimate is shrunk, with the
    weight of one cluster that is not all hits or all misses, to that of a correlation of 1/2: two
    hits in one of two clusters say little of how clusters differ. NaN without trials.
    """
    return _wilson(shares, _design_effect(shares), _quantile(shares, confidence))


def _quantile(shares: Shares, confidence: float) -> float:
    return student_quantile((1 + confidence) / 2, shares.degrees)


def _wilson(shares: Shares, design_effect: Array, t: float) -> tuple[Array, Array]:
    share, effective = shares.share, quotient(shares.trials.sum(axis=-1), design_effect)
    centre = (share + t**2 / (2 * effective)) / (1 + t**2 / effective)
    spread = share * (1 - share) / effective + (t / effective) ** 2 / 4
    half = t / (1 + t**2 / effective) * np.sqrt(np.maximum(spread, 0.0))
    return np.clip(centre - half, 0.0, share), np.clip(centre + half, share, 1.0)


def effective_trials(shares: Shares) -> Array:
    """The number of independent trials that would say as much, see `share_bounds`."""
    return quotient(shares.trials.sum(axis=-1), _design_effect(shares))


def _design_effect(shares: Shares) -> Array:
    estimate = np.nan_to_num(quotient((shares.residuals**2).sum(axis=-1), _independent(shares)))
    mixed = np.minimum((shares.hits > 0).sum(axis=-1), (shares.hits < shares.trials).sum(axis=-1))
    return np.asarray((mixed * estimate + _assumed_effect(shares)) / (mixed + 1))


def _independent(shares: Shares) -> Array:
    return quotient(shares.share * (1 - shares.share), shares.trials.sum(axis=-1))


def _assumed_effect(shares: Shares) -> Array:
    size = quotient((shares.trials**2).sum(axis=-1), shares.trials.sum(axis=-1))
    return np.asarray(1 + np.maximum(size - 1, 0.0) * _ASSUMED_CORRELATION)


def difference_bounds(before: Shares, after: Shares, confidence: float) -> tuple[Array, Array]:
    """The interval of after minus before in the same clusters, from those of both shares.

    MOVER, the method of variance estimates recovery (Newcombe 1998, method 10; Zou & Donner 2008,
    doi:10.1002/sim.3095). What the clusters have in common goes out of a difference, so both
    shares have the design effect of the change.
    """
    return _difference_bounds(before, after, _quantile(before, confidence))


def _difference_bounds(before: Shares, after: Shares, t: float) -> tuple[Array, Array]:
    effect = _effect_of_change(before, after)
    (low_b, high_b), (low_a, high_a) = (_wilson(s, effect, t) for s in (before, after))
    difference = after.share - before.share
    low = difference - np.hypot(after.share - low_a, high_b - before.share)
    return low, difference + np.hypot(high_a - after.share, before.share - low_b)


def _effect_of_change(before: Shares, after: Shares) -> Array:
    """The variance of the change over that of as many independent trials.

    The estimate is shrunk as that of one share is, with the weight of the hits that would have
    changed in independent trials: where hardly any would have, it says little that hardly any did,
    and where a hundred would have, that none did says that the two go together. The assumption has
    the weight of one cluster's, and of three hits at least: none in n may be 3 / n of all.
    """
    variance = ((after.residuals - before.residuals) ** 2).sum(axis=-1)
    estimate = np.nan_to_num(quotient(variance, _independent(before) + _independent(after)))
    assumed = (_assumed_effect(before) + _assumed_effect(after)) / 2
    prior_weight = np.maximum(1.0, _ASSUMED_CHANGES / assumed)
    weight = sum(_independent(s) * s.trials.sum(axis=-1) ** 2 for s in (before, after))
    weight = np.nan_to_num(weight)
    return np.asarray((weight * estimate + prior_weight * assumed) / (weight + prior_weight))


def beyond_p(before: Shares, after: Shares, margin: float, better: Direction | None) -> float:
    """One-sided p of a change that is within a margin: the level at which its interval leaves it.

    By halving; 1 where the change itself is within the margin, or not defined.
    """

    def outside(t: float) -> bool:
        low, high = _difference_bounds(before, after, t)
        return bool((better != "higher" and low > margin) or (better != "lower" and high < -margin))

    within, beyond = _LARGEST_T, 0.0
    if not outside(beyond):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (within + beyond) / 2
        within, beyond = (within, middle) if outside(middle) else (middle, beyond)
    return student_tail(beyond, before.degrees)


def swap_p(before: Shares, after: Shares, draws: int, rng: np.random.Generator) -> float:
    """Two-sided p of no difference between two shares of the same clusters [C].

    If training changed nothing, what a cluster showed before and after could as well be swapped.
    With one yes or no in a cluster this is McNemar's exact test, whose discordant pairs go either
    way.
    p = (1 + draws at least as far apart) / (1 + draws) (Phipson & Smyth 2010).
    """
    first, second = (np.stack([s.hits, s.trials], axis=-1) for s in (before, after))
    middle, half = (first + second).sum(axis=0) / 2, (second - first) / 2
    observed = abs(after.share - before.share)
    reached = 0
    size = max(1, _SIGNS_AT_ONCE // len(half))
    for start in range(0, draws, size):
        signs = rng.choice([-1.0, 1.0], size=(min(size, draws - start), len(half)))
        moved = signs @ half
        swapped = mean_of(middle + moved) - mean_of(middle - moved)
        reached += int(np.count_nonzero(np.abs(swapped) >= observed - TIE))
    return (1 + reached) / (1 + draws)


# --- changes --------------------------------------------------------------------------------------
# Two measurements of the same clusters, metric by metric: what their tests and draws say.


Test = Literal["paired bootstrap", "paired permutation", "mid-p McNemar", "Student's t over seeds"]


@dataclass(frozen=True, slots=True)
class RemovedShare:
    """The share of a metric that training removed; 1 is all of it, below 0 is more than before."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """A metric before and after, the test of its change, and its removed share.

    Of a guarded metric also the interval of the guarded change, and the one-sided p of a change
    `beyond` the margin. `quantile` is Student's of one tail, for an unchanged model's power.
    """

    metric: Metric
    before: float
    after: float
    test: Test
    bounds: Interval | None = None
    p: float | None = None
    guarding: Interval | None = None
    beyond: float | None = None
    quantile: float = math.inf
    removed_share: RemovedShare | None = None


def changes_of(
    before: Measurement, after: Measurement, settings: StatisticsSettings, *, tested: bool
) -> dict[str, Change]:
    """Test every metric that both have and a model can change, all on one resampling."""
    names = [n for n, m in before.metrics.items() if not m.constant and n in after.metrics]
    clusters, split = _shared_clusters(before, after), before.sums.shape[1]
    pairs = {
        name: _outcomes_pair(before, after, name) or _pair(before, after, name, clusters)
        for name in names
    }
    draws = _draws(pairs, clusters, settings)
    changes = {}
    for name, pair in pairs.items():
        shares = Shares.of(pair.metric, clusters.sums[:, :split], clusters.strata)
        degrees = shares.degrees if shares else clusters.degrees
        changes[name] = replace(
            _tested(pair, name, draws, settings, tested=tested),
            quantile=student_quantile(settings.confidence, degrees),
            removed_share=_removed_share(pair, name, draws, settings),
        )
    return changes


@dataclass(frozen=True, slots=True)
class _Pair:
    """A metric before and after, as functions of joint sums [..., K] of the same clusters.

    `shares` are those of a metric that is one, `outcomes` those of McNemar's test. A `removable`
    one is unbiased, of measurements with the same clusters.
    """

    metric: Metric
    clusters: Clusters
    before: Callable[[Array], Array]
    after: Callable[[Array], Array]
    shares: tuple[Shares, Shares] | None
    outcomes: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    removable: bool = False

    def difference(self, sums: Array) -> Array:
        return self.after(sums) - self.before(sums)

    def guarded(self, sums: Array) -> Array:
        relative = self.metric.guard is not None and self.metric.guard.relative
        return self.difference(sums) / (np.abs(self.before(sums)) if relative else 1.0)

    def removed(self, sums: Array) -> Array:
        return 1 - self.after(sums) / self.before(sums)


def _pair(before: Measurement, after: Measurement, name: str, clusters: Clusters) -> _Pair:
    split = before.sums.shape[1]
    first, second = before.metrics[name], after.metrics[name]
    shares = (
        Shares.of(first, clusters.sums[:, :split], clusters.strata),
        Shares.of(second, clusters.sums[:, split:], clusters.strata),
    )
    return _Pair(
        first,
        clusters,
        lambda t: first.at(t[..., :split]),
        lambda t: second.at(t[..., split:]),
        None if shares[0] is None or shares[1] is None else (shares[0], shares[1]),
        removable=first.unbiased and set(before.clusters) == set(after.clusters),
    )


def _shared_clusters(before: Measurement, after: Measurement) -> Clusters:
    """The shared clusters, their sums those before and those after side by side."""
    first, second = (merge_clusters(m.clusters, m.sums, m.strata) for m in (before, after))
    shared, at_first, at_second = np.intersect1d(first.names, second.names, return_indices=True)
    if not len(shared):
        raise ValueError("the two measurements have no cluster in common")
    sums = np.hstack([first.sums[at_first], second.sums[at_second]])
    return merge_clusters(shared.tolist(), sums, _shared_strata(before, after, shared.tolist()))


def _shared_strata(before: Measurement, after: Measurement, shared: Sequence[str]) -> list[str]:
    """The stratum of each shared cluster. Raises `ValueError` where the two do not agree."""
    first, second = (
        dict(zip(m.clusters, m.strata or [""] * len(m.clusters), strict=True))
        for m in (before, after)
    )
    if torn := [cluster for cluster in shared if first[cluster] != second[cluster]]:
        raise ValueError(f"cluster {torn[0]!r} is in two strata")
    return [first[cluster] for cluster in shared]


def _outcomes_pair(before: Measurement, after: Measurement, name: str) -> _Pair | None:
    """The change of the clusters that have an outcome both times; None without outcomes.

    Their sums are whether it is a yes before, whether after, and 1.
    """
    first, second = _outcomes(before, name), _outcomes(after, name)
    if first is None or second is None:
        return None
    shared = [cluster for cluster in first if cluster in second]
    rows = [(first[cluster], second[cluster], True) for cluster in shared]
    sums = np.array(rows, dtype=np.float64).reshape(-1, 3)
    pairs = merge_clusters(shared, sums, _shared_strata(before, after, shared))
    yes, yes_after, ones = pairs.sums.T
    shares = (Shares(yes, ones, pairs.strata), Shares(yes_after, ones, pairs.strata))
    return _Pair(
        before.metrics[name],
        pairs,
        lambda t: quotient(t[..., 0], t[..., 2]),
        lambda t: quotient(t[..., 1], t[..., 2]),
        shares if len(pairs.names) > 1 else None,
        outcomes=(yes > 0, yes_after > 0),
    )


def _outcomes(measurement: Measurement, name: str) -> dict[str, bool] | None:
    """Outcomes of the clusters in which the metric is defined."""
    metric = measurement.metrics[name]
    if metric.outcomes is None:
        return None
    if len(set(measurement.clusters)) != len(measurement.clusters):
        raise ValueError(f"metric {name!r} has outcomes, so it needs one row for each cluster")
    defined = np.isfinite(metric.at(measurement.sums))
    outcomes = zip(measurement.clusters, metric.outcomes, defined, strict=True)
    return {cluster: bool(outcome) for cluster, outcome, is_defined in outcomes if is_defined}


_Draws = Mapping[tuple[str, str], Array]


def _draws(pairs: Mapping[str, _Pair], clusters: Clusters, settings: StatisticsSettings) -> _Draws:
    """The paired bootstrap of the metrics that are neither shares nor outcomes: name and figure."""
    metrics: dict[tuple[str, str], Metric] = {}
    for name, pair in pairs.items():
        if pair.removable:
            metrics[name, "before"] = Metric(pair.before)
            metrics[name, "removed"] = Metric(pair.removed)
        if pair.shares or pair.outcomes:
            continue
        metrics[name, "difference"] = Metric(pair.difference)
        if pair.metric.guard:
            metrics[name, "guarded"] = Metric(pair.guarded)
    if not metrics:  # draws take a second
        return {}
    rng = np.random.default_rng(settings.seed)
    return metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), metrics)


def _tested(
    pair: _Pair, name: str, draws: _Draws, settings: StatisticsSettings, *, tested: bool
) -> Change:
    metric, guard, total = pair.metric, pair.metric.guard, pair.clusters.total
    test: Test = "mid-p McNemar" if pair.outcomes else "paired bootstrap"
    level, guarding_at = settings.confidence, guarding_level(settings.confidence)
    bounds = p = guarding = beyond = None
    if pair.shares:
        bounds = _defined_interval(difference_bounds(*pair.shares, level))
        if pair.outcomes:
            p = mcnemar(*pair.outcomes)
        elif tested and bounds:
            rng = np.random.default_rng(settings.seed)
            p = swap_p(*pair.shares, settings.bootstrap_draws, rng)
            test = "paired permutation"
        if guard:
            guarding = _defined_interval(difference_bounds(*pair.shares, guarding_at))
            beyond = beyond_p(*pair.shares, guard.by, metric.better)
    elif not pair.outcomes:  # else they are of one cluster, or of none
        drawn, degrees = draws[name, "difference"], pair.clusters.degrees
        bounds, p = interval(drawn, level, degrees), difference_p(drawn, degrees)
        if guard:
            drawn = draws[name, "guarded"]
            sides = (drawn, metric.better != "higher"), (-drawn, metric.better != "lower")
            ps = [exceeding_p(side, guard.by, degrees) for side, is_guarded in sides if is_guarded]
            beyond = min((p for p in ps if p is not None), default=None)
            guarding = interval(drawn, guarding_at, degrees)
    before, after = float(pair.before(total)), float(pair.after(total))
    return Change(metric, before, after, test, bounds, p, guarding, beyond)


def _defined_interval(bounds: tuple[Array, Array]) -> Interval | None:
    low, high = map(float, bounds)
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) else None


def _removed_share(
    pair: _Pair, name: str, draws: _Draws, settings: StatisticsSettings
) -> RemovedShare | None:
    if not pair.removable:
        return None
    before, removed = (
        interval(draws[name, figure], settings.confidence, pair.clusters.degrees)
        for figure in ("before", "removed")
    )
    value = float(Metric(pair.removed).at(pair.clusters.total))
    if before is None or removed is None or before.low <= 0 or not math.isfinite(value):
        return None
    return RemovedShare(value, removed.low, removed.high)


def guarding_level(confidence: float) -> float:
    """The confidence of the interval whose bounds are those of two one-sided tests.

    Each test has level 1 - confidence, so the interval is of 90% where others are of 95%
    (Schuirmann 1987, doi:10.1007/BF01068419).
    """
    return 2 * confidence - 1
