"""How numbers, names and hostile text are put into words. Pure functions, no HTML."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from environments.presentation import Presentation, Words
from equipoise.files.console import is_visible
from equipoise.statistics import compare
from equipoise.statistics.compare import GuardMargin, MetricComparison
from equipoise.statistics.evaluation import Estimate

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
NO_BREAK = "\N{NO-BREAK SPACE}"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SIGNIFICANT_DIGITS = 3
_MOST_DECIMALS = 6
#: Characters that are shown of a text for which no builder of a document has a limit.
_LONGEST_TEXT = 10_000

Stage = Literal["before", "after"]
STAGES: tuple[Stage, ...] = ("before", "after")

_ABBREVIATIONS = {"kl": "KL", "id": "ID"}


#: The estimates of one quantity by stage; a stage that was not evaluated is left out.
Pair = Mapping[Stage, Estimate]


def number(value: Any) -> float | None:
    """A finite number, or None for anything else, as of what a task says of a reply."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def figure(value: float | None, digits: int = _SIGNIFICANT_DIGITS, *, signed: bool = False) -> str:
    """A number with so many significant digits; a `signed` one above 0 has a plus."""
    if value is None:
        return MISSING
    return _fixed(value, _decimals([value], digits), signed=signed)


def figure_with_interval(estimate: Estimate | None, level: str = "") -> str:
    """`1.39 (95% CI 1.35-1.44)`; the level and the interval may be unknown."""
    value, interval = figure_and_interval(estimate)
    name = f"{level} CI " if level else ""
    return f"{value} ({name}{interval})" if interval else value


def figure_and_interval(
    estimate: Estimate | None,
    *,
    digits: int = _SIGNIFICANT_DIGITS,
    count: bool = False,
    signed: bool = False,
) -> tuple[str, str]:
    """The value and its interval, all with the same decimals; empty where there is none.

    A count has no decimals. A `signed` value above 0 has a plus.
    """
    if estimate is None or estimate.value is None:
        return MISSING, ""
    bounds = [b for b in (estimate.low, estimate.high) if b is not None]
    decimals = 0 if count else _decimals([estimate.value, *bounds], digits)
    dash = "\N{EN DASH}" if min(bounds, default=0) >= 0 else " to "
    interval = dash.join(_fixed(bound, decimals) for bound in bounds)
    value = _fixed(estimate.value, decimals, signed=signed)
    return value, interval if len(bounds) == 2 else ""


def noise(estimate: Estimate | None) -> str:
    """Say what sampling noise alone would give and how likely it is; empty if unknown."""
    if estimate is None:
        return ""
    parts = []
    if estimate.floor is not None:
        upper = "" if estimate.floor_high is None else f" (up to {floor(estimate.floor_high)})"
        parts.append(f"noise alone {floor(estimate.floor)}{upper}")
    if estimate.p_holm is not None:
        parts.append(f"p{NO_BREAK}{p_value(estimate.p_holm)} after Holm")
    elif estimate.p is not None:
        parts.append(f"p{NO_BREAK}{p_value(estimate.p)}")
    return "; ".join(parts)


def beside_noise(estimate: Estimate) -> str:
    """End a sentence on a figure with what sampling noise alone would give, if that is known."""
    if estimate.floor is None:
        return "."
    return f"; sampling noise alone gives {floor(estimate.floor)}."


def signed_margin(margin: GuardMargin) -> str:
    """Write a margin with the sign of what is worse: `-0.02`, or `±10%` where both ways are."""
    scale, unit = _unit_of(margin)
    sign = {"higher": MINUS, "lower": "+", None: "\N{PLUS-MINUS SIGN}"}[margin.better]
    return f"{sign}{margin.by * scale:g}{unit}"


def _unit_of(margin: GuardMargin) -> tuple[int, str]:
    """The factor of a margin's numbers as they are written, and their unit."""
    return (100, "%") if margin.relative else (1, "")


def change_in_unit(row: MetricComparison) -> tuple[str, str]:
    """A guarded change in the unit of its margin, and its interval with the same decimals."""
    change, margin = compare.change_in_unit(row), row.margin
    if change is None or margin is None:
        return MISSING, ""
    scale, unit = _unit_of(margin)
    bounds = (None if bound is None else bound * scale for bound in (margin.low, margin.high))
    value, interval = figure_and_interval(Estimate(change * scale, *bounds), signed=True)
    return f"{value}{unit}", interval


def interval_in_unit(margin: GuardMargin) -> str:
    """The interval alone of a change in the unit of its margin, `-4% to 12%`; empty if unknown."""
    scale, unit = _unit_of(margin)
    if margin.low is None or margin.high is None:
        return ""
    return f"{figure(margin.low * scale, 2)}{unit} to {figure(margin.high * scale, 2)}{unit}"


def removed_note(row: MetricComparison, subject: str = "it") -> str:
    """Say what share of a metric training removed, with its interval; empty without it."""
    if (share := row.removed_share) is None:
        return ""
    value, low, high = (
        f"{100 * part:.1f}".replace("-", MINUS) for part in (share.value, share.low, share.high)
    )
    return f"training removed {value}% ({low}% to {high}%) of {subject}"


def guard_note(row: MetricComparison) -> str:
    """Describe a guard's outcome, margin and deciding interval; empty for another metric."""
    if row.guard is None or (margin := row.margin) is None:
        return ""
    change = interval_in_unit(margin)
    power = "" if margin.power is None else percent(margin.power)
    parts = [
        f"margin {signed_margin(margin)}",
        f"measured {change}" if change else "not measured",
        f"an unchanged model passes in {power} of runs" if power else "",
    ]
    return f"guard {row.guard} ({'; '.join(filter(None, parts))})"


def level_of(confidence: float | None) -> str:
    """The level of intervals as `95%`; empty where it is not known."""
    return "" if confidence is None else f"{100 * confidence:g}%"


def percent(share: float) -> str:
    """A share in whole percent; one that is nearly none or all is not rounded to it."""
    if share < 0.005 or share > 0.995:
        return "under 1%" if share < 0.5 else "over 99%"
    return f"{share:.0%}"


def floor(value: float) -> str:
    return f"{value:.3f}" if 1 <= value < 10 else figure(value, 2)


def p_value(p: float | None) -> str:
    """A p-value with two significant digits."""
    if p is None:
        return MISSING
    if p < 1e-4:
        return "< 0.0001"
    return f"{p:.1g}" if p < 0.001 else f"{p:.2g}"


def _decimals(values: list[float], digits: int) -> int:
    """The decimals that give the largest value so many digits; a rate of 1 counts as one below."""
    largest = 0.99 * max(abs(value) for value in values)
    return max(0, digits - 1 - math.floor(math.log10(largest))) if largest else 0


def _fixed(value: float, decimals: int, *, signed: bool = False) -> str:
    if value == 0:
        text = "0"
    elif decimals > _MOST_DECIMALS:
        text = f"{value:.1e}"
    else:
        text = f"{round(value, decimals) + 0.0:,.{decimals}f}"
    return ("+" if signed and value > 0 else "") + text.replace("-", MINUS)


def metric_name(name: str, words: Mapping[str, Words]) -> str:
    return words[name].label if name in words else plain_name(name)


def metric_note(name: str, words: Mapping[str, Words]) -> str:
    return words[name].note if name in words else ""


def plain_name(name: str) -> str:
    """`work_status` as `work status`."""
    words = name.replace("_", " ").split(" ")
    return " ".join(_ABBREVIATIONS.get(word, word) for word in words)


def heading(words: str) -> str:
    return words[:1].upper() + words[1:]


def task_title(task: str, presentation: Presentation) -> str:
    return heading(presentation.title or plain_name(task))


def clipped(text: str, limit: int) -> str:
    """The text, or its beginning and how much is left out."""
    surplus = len(text) - limit
    if surplus <= 0:
        return text
    return f"{text[:limit]} \N{HORIZONTAL ELLIPSIS} ({surplus:,} more characters)"


def printable(text: object, limit: int = _LONGEST_TEXT) -> str:
    """Text from outside as it may be shown: clipped, with nothing that a reader could not see.

    Control characters, lone surrogates and marks that reverse the direction of writing become
    the replacement character; line ends and tabs stay. Renderers call it, so a document may hold
    any text.
    """
    return "".join(c if is_visible(c) else REPLACEMENT for c in clipped(str(text), limit))
