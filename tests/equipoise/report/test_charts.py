"""Charts: SVG strings that are deterministic, legible in both schemes, and safe to inline."""

import re
import subprocess
import sys
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from equipoise.report import charts
from equipoise.statistics.evaluation import Estimate

BEFORE, AFTER = Estimate(1.39, 1.35, 1.44, 1.012, 1.031), Estimate(1.03, 1.01, 1.05, 1.011, 1.03)
HOSTILE = '<script>alert(1)</script> & "quotes" $x_\\frac$ \u65e5\u672c'


def _charts(text):
    steps, values = [1.0, 2.0, 3.0], [0.1, float("nan"), 0.3]
    return [
        charts.paired_intervals([(text, {"before": BEFORE})], axis=text, label=text),
        charts.intervals_and_noise(
            [(text, "before", BEFORE), (text, "after", AFTER)], equal=1.0, axis=text, label=text
        ),
        charts.curve(steps, values, title=text, label=text, spread=[0.1, 0.1, 0.1]),
    ]


@pytest.mark.parametrize("kind", range(3))
def test_svg_is_well_formed_and_holds_hostile_text_as_text(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = _charts(HOSTILE)[kind]
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == HOSTILE
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("}text")]
    assert HOSTILE in " ".join(texts), "a long label takes several lines"
    assert "<script" not in svg


def test_colours_follow_the_page():
    for svg in _charts("label"):
        assert "var(--ink, #1d2733)" in svg
        for color in (charts.INK, charts.MUTED, charts.BEFORE, charts.AFTER, charts.PAPER):
            assert svg.count(color) == svg.count(f", {color})")


def test_same_data_give_the_same_bytes_and_ids_differ_between_charts():
    assert _charts("one") == _charts("one")
    first, second = (charts.curve([1, 2], [1, 2], title="t", label=label) for label in "ab")
    assert first.replace('"a"', '"b"') != second


def test_every_row_has_a_point_an_interval_and_a_band():
    stages = ("before", "after", "after")
    rows = list(
        zip(("one", "<b>two</b>", "three"), stages, (BEFORE, AFTER, Estimate()), strict=True)
    )
    drawn = charts.intervals_and_noise(rows, axis="ratio", label="l", equal=1.0)
    empty = [(name, stage, Estimate()) for name, stage, _ in rows]
    bare = charts.intervals_and_noise(empty, axis="ratio", label="l", equal=1.0)
    ElementTree.fromstring(drawn)
    assert drawn.count("<use ") == bare.count("<use ") + 2
    assert drawn.count(charts.NOISE) - bare.count(charts.NOISE) == 4, "a band and its line, twice"
    assert "<b>two" not in drawn


def test_mark_without_an_interval_is_drawn():
    point = charts.paired_intervals([("row", {"before": Estimate(2.0)})], axis="x", label="l")
    none = charts.paired_intervals([("row", {"before": Estimate()})], axis="x", label="l")
    assert point.count("<use ") == none.count("<use ") + 1


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0], [float("nan"), 2.0]])
def test_curve_of_constant_or_single_values_raises_no_warning(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = [float(step) for step in range(len(values))]
        assert "<path" in charts.curve(steps, values, title="t", label="l")


@pytest.mark.parametrize(
    "values", [[9.998, 10.007, 10.03], [124.9, 125.4], [12.1, 12.9], [0.0, 2.5e-5], [1e-7, 9e-7]]
)
def test_tick_labels_of_a_curve_differ(values):
    """Replies that hardly change in length once had ticks 9.99, 10, 10, 10."""
    steps = [float(step) for step in range(len(values))]
    svg = charts.curve(steps, values, title="Completion length", label="l")
    labels = re.findall(r">([^<>\n]+)</text>", svg)[len(steps) : -1]  # not those of steps, no title
    assert len(labels) == len(set(labels)) > 2


def test_running_mean_is_centred_and_leaves_out_what_is_not_known():
    values = np.ones(40)
    values[7] = np.nan
    assert charts.window(40) == 5
    np.testing.assert_allclose(charts.running_mean(values), 1.0)
    assert np.isnan(charts.running_mean(np.full(3, np.nan))).all()
    values = np.zeros(40)
    values[20] = 5.0
    expected = np.zeros(40)
    expected[18:23] = 1.0
    np.testing.assert_allclose(charts.running_mean(values), expected)


def test_pyplot_is_never_imported():
    check = "import sys, equipoise.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
