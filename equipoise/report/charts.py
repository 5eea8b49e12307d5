"""Charts as SVG strings: plain data in, text out, the same bytes every time.

Text stays text, so that it takes the page's font and can be selected; it is laid out with the
metrics of a wider font, so it fits. Colours become CSS variables with the light scheme's colour as
fallback, so that a chart follows the page into the dark. pyplot keeps global state and is not used.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from textwrap import fill
from typing import Any

import matplotlib.style
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from equipoise.report.words import STAGES, Pair, Stage, figure, printable
from equipoise.statistics.evaluation import Estimate

# Blue, vermilion and purple of Okabe and Ito's palette, which colour-blind readers can tell apart,
# the vermilion darker for contrast. Each colour is a CSS variable of the page.
INK, MUTED, GRID = "#1d2733", "#5b6773", "#dfe4e9"
BEFORE, AFTER, NOISE = "#c25400", "#0072b2", "#cc79a7"
PAPER = "#ffffff"
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    BEFORE: "before",
    AFTER: "after",
    NOISE: "noise",
    PAPER: "paper",
}
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 12.0,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11.5,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "patch.linewidth": 0.0,
}

Values = NDArray[np.float64]
_COLORS: Mapping[Stage, str] = {"before": BEFORE, "after": AFTER}
_OFFSET: Mapping[Stage, float] = {"before": -0.15, "after": 0.15}
#: Width of the charts in SVG units, which are CSS pixels at their natural size.
WIDTH, CURVE_WIDTH, CURVE_HEIGHT = 360, 330, 184
#: Longer labels of rows and axes take several lines; labels and titles beyond the limits are cut.
_ROW_LABEL, _AXIS_LABEL = 18, 38
_LONGEST_LABEL, _LONGEST_AXIS = 50, 200
# Left, bottom, width and height of a curve's axes: the same for all, so that they line up. Titles
# begin at the left edge of the figure.
_CURVE_AREA = (0.15, 0.12, 0.81, 0.70)
_TITLE_AT = -0.175

_PROLOG = re.compile(r"^.*?<svg ", re.DOTALL)
_SIZE = re.compile(r' width="[\d.]+pt" height="[\d.]+pt"')
# Ids of the element tree ("axes_1"), which nothing refers to and which would repeat from chart to
# chart. Those of definitions are hashes without an underscore.
_TREE_ID = re.compile(r' id="[A-Za-z0-9.]+_\d+"')
_STYLE_ELEMENT = re.compile(r"<defs>\s*<style .*?</style>\s*</defs>", re.DOTALL)

#: What the heading of a stage is.
Named = Callable[[Stage], str]


def after_its_stage(stage: Stage) -> str:
    """As in the report of a run that trains."""
    return f"{stage} training"


def paired_intervals(
    rows: Sequence[tuple[str, Pair]], *, axis: str, label: str, named: Named = after_its_stage
) -> str:
    """Dots with intervals before and after, one row per label on a shared axis."""
    with _style(label):
        figure_ = _new_figure(WIDTH, 74 + 46 * len(rows))
        axes = figure_.add_subplot()
        stages = [stage for stage in STAGES if any(stage in pair for _, pair in rows)]
        for y, (_, pair) in enumerate(rows):
            for stage, estimate in pair.items():
                _interval(axes, y + _OFFSET[stage] * (len(stages) > 1), estimate, stage)
        _row_labels(axes, [name for name, _ in rows])
        for stage in stages:
            axes.plot([], [], **_marks(stage), label=printable(named(stage), _LONGEST_LABEL))
        axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), ncols=2, borderpad=0.2)
        axes.set_xlabel(fill(printable(axis, _LONGEST_AXIS), _AXIS_LABEL))
        return _svg(figure_, label)


def intervals_and_noise(
    rows: Sequence[tuple[str, Stage, Estimate]], *, equal: float | None, axis: str, label: str
) -> str:
    """Draw a metric at each stage or entry over the band of what sampling noise alone gives.

    The band begins at `equal`, the metric's value without an effect; None leaves it out.
    """
    with _style(label):
        figure_ = _new_figure(WIDTH, 58 + 62 * len(rows))
        axes = figure_.add_subplot()
        for y, (_, stage, estimate) in enumerate(rows):
            if equal is not None:
                _noise_band(axes, y, estimate, equal)
            _interval(axes, y, estimate, stage)
            _number_above(axes, y, estimate.value)
        if equal is not None:
            axes.axvline(equal, color=MUTED, linewidth=0.8, zorder=0)
        _row_labels(axes, [name for name, *_ in rows])
        axes.margins(x=0.06)
        axes.set_xlabel(fill(printable(axis, _LONGEST_AXIS), _AXIS_LABEL))
        return _svg(figure_, label)


def curve(
    steps: Sequence[float],
    values: Sequence[float],
    *,
    title: str,
    label: str,
    spread: Sequence[float] | None = None,
) -> str:
    """One small multiple: each step faint, the running mean strong, +- `spread` as a band."""
    x, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    with _style(label):
        figure_ = _new_figure(CURVE_WIDTH, CURVE_HEIGHT)
        figure_.set_layout_engine("none")
        axes = figure_.add_axes(_CURVE_AREA)
        if spread is not None:
            width = np.asarray(spread, dtype=float)
            axes.fill_between(x, y - width, y + width, color=AFTER, alpha=0.16, linewidth=0)
        marker = "o" if np.isfinite(y).sum() < 3 else ""  # a line of two steps is hard to see
        axes.plot(x, y, color=AFTER, alpha=0.45, linewidth=0.9, marker=marker)
        axes.plot(x, running_mean(y), color=AFTER)
        _frame_curve(axes, title, x, y)
        return _svg(figure_, label)


def _frame_curve(axes: Axes, title: str, x: Values, y: Values) -> None:
    """Title, ticks and limits of a small multiple."""
    axes.set_title(printable(title, _LONGEST_LABEL), loc="left", fontsize=12.5, x=_TITLE_AT, pad=9)
    axes.grid(axis="y")
    axes.tick_params(length=0, labelsize=10.5, labelcolor=MUTED)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.ticklabel_format(axis="y", scilimits=(-3, 6))  # longer labels do not fit beside the axes
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    first, last = np.nanmin(x), np.nanmax(x)
    if first < last:
        axes.set_xlim(first, last)
    lowest, highest = np.nanmin(y), np.nanmax(y)
    if lowest == highest:
        axes.set_ylim(lowest - 0.5 if lowest else 0.0, lowest + 0.5)


def running_mean(values: Values) -> Values:
    """Mean over a centred window of `window(len(values))` steps, without those that are NaN."""
    kernel = np.ones(window(len(values)))
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), kernel, "same")
    count = np.convolve(finite.astype(float), kernel, "same")
    mean = np.full(len(values), np.nan)
    np.divide(total, count, out=mean, where=count > 0.5)
    return mean


def window(steps: int) -> int:
    """How many steps a running mean spans: a tenth of them, an odd number."""
    return 2 * (steps // 20) + 1


def _interval(axes: Axes, y: float, estimate: Estimate, stage: Stage) -> None:
    if estimate.value is None:
        return
    if estimate.low is not None and estimate.high is not None:
        ends = [estimate.low, estimate.high]
        axes.plot(ends, [y, y], color=_COLORS[stage], linewidth=2.4, solid_capstyle="round")
    axes.plot([estimate.value], [y], **_marks(stage), linestyle="none", zorder=4)


def _marks(stage: Stage) -> dict[str, Any]:
    """How a stage is drawn: shape and fill differ too, so that no reader depends on colour."""
    color = _COLORS[stage]
    shape = {"marker": "o", "markersize": 8.0, "markerfacecolor": PAPER}
    if stage == "after":
        shape = {"marker": "D", "markersize": 6.5, "markerfacecolor": color}
    return {**shape, "color": color, "markeredgecolor": color, "markeredgewidth": 2.0}


def _number_above(axes: Axes, y: float, value: float | None) -> None:
    if value is not None:
        point, offset = (value, y), (0, 9)
        axes.annotate(figure(value), point, offset, textcoords="offset points", ha="center")


def _noise_band(axes: Axes, y: float, estimate: Estimate, equal: float) -> None:
    """From `equal` to the upper bound of the permutations, a line at their median."""
    if estimate.floor_high is not None:
        size = estimate.floor_high - equal
        band = Rectangle((equal, y - 0.36), size, 0.72, facecolor=NOISE, alpha=0.35, zorder=1)
        axes.add_patch(band)
    if estimate.floor is not None:
        axes.plot([estimate.floor] * 2, [y - 0.36, y + 0.36], color=NOISE, linewidth=1.6, zorder=2)


def _row_labels(axes: Axes, names: Sequence[str]) -> None:
    """Rows from top to bottom, each with its name, and vertical grid lines only."""
    axes.set_yticks(
        range(len(names)), [fill(printable(name, _LONGEST_LABEL), _ROW_LABEL) for name in names]
    )
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))  # more labels may overlap
    axes.grid(axis="x")


def _new_figure(width: float, height: float) -> Figure:
    figure_ = Figure(figsize=(width / 72, height / 72), layout="constrained")
    figure_.patch.set_visible(False)
    return figure_


def _style(salt: str) -> AbstractContextManager[None]:
    return matplotlib.style.context(["default", _STYLE | {"svg.hashsalt": printable(salt)}])


def _svg(figure_: Figure, label: str) -> str:
    """The figure as an <svg> element for a page, without size, date and elements that leak."""
    for axes in figure_.axes:
        axes.patch.set_visible(False)
    text = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The page's own font draws the text, so a glyph missing here does no harm.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Figure.savefig would draw everything twice. matplotlib does not annotate this method.
        FigureCanvasSVG(figure_).print_svg(text, metadata=no_metadata)  # type: ignore[no-untyped-call]
    svg = _STYLE_ELEMENT.sub("", _TREE_ID.sub("", text.getvalue()))
    svg = _SIZE.sub("", _PROLOG.sub("<svg ", svg), count=1)
    for color, name in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{name}, {color})")
    return svg.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(printable(label))}" ', 1
    ).strip()
