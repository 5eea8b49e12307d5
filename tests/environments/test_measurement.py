"""Quotients of sums, and the measurement that a task of its own needs in one line."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.measurement import (
    Blocks,
    Mean,
    measure_means,
)

VALUES = st.none() | st.floats(-1e6, 1e6) | st.just(math.nan)


@given(st.lists(st.tuples(st.sampled_from("abc"), VALUES, VALUES), max_size=12))
def test_a_mean_is_that_of_the_known_values(rows: list[tuple[str, float, float]]) -> None:
    clusters = [cluster for cluster, _, _ in rows]
    columns = {"first": [row[1] for row in rows], "second": [row[2] for row in rows]}
    measurement = measure_means(clusters, {name: Mean(v) for name, v in columns.items()})
    assert measurement.clusters == tuple(dict.fromkeys(clusters))
    for name, values in columns.items():
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = sum(known) / len(known) if known else math.nan
        found = measurement.point_estimates()[name]
        assert found == pytest.approx(mean, rel=1e-9, abs=1e-6, nan_ok=True)


def test_a_cluster_has_an_outcome_where_it_has_one_value() -> None:
    """With more, a comparison is of the mean, as the figures of both stages are."""

    def outcomes(*clusters: str) -> list[bool] | None:
        right = Mean([1.0, 0.0, None], "higher", yes_or_no=True)
        found = measure_means(clusters, {"right": right}).metrics["right"].outcomes
        return None if found is None else list(found)

    assert outcomes("a", "b", "c") == [True, False, False]
    assert outcomes("a", "b", "b") == [True, False]
    assert outcomes("a", "a", "b") is None


def test_another_shape_or_name_of_a_statistic_is_a_bug() -> None:
    blocks = Blocks.of_shapes({"one": (), "pair": (2,)})
    with pytest.raises(ValueError, match=r"pair has the shape \(4, 3\), not \(4, 2\)"):
        blocks.join((4,), {"pair": np.zeros((4, 3))})
    with pytest.raises(KeyError):
        blocks.join((4,), {"other": np.zeros(4)})
