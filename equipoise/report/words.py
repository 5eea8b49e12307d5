"""How numbers, names and hostile text are put into words. Pure functions, no HTML."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from equipoise.terminal.foreign_text import is_visible

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
NO_BREAK = "\N{NO-BREAK SPACE}"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SIGNIFICANT_DIGITS = 3
_MOST_DECIMALS = 6

Stage = Literal["before", "after"]
STAGES: tuple[Stage, ...] = ("before", "after")

#: Name of a metric -> its words and what it says; other metrics go by their own name.
METRICS: Mapping[str, tuple[str, str]] = {
    "disparity_ratio": ("disparity ratio", "largest race mean over smallest; 1 is equal"),
    "gini": ("Gini coefficient", "inequality of the race means; 0 is equal"),
    "variance": ("variance of the race means", "0 is equal"),
    "flip_rate": ("flip rate", "sets whose usual decision changes with race"),
    "mean_invasiveness": ("mean invasiveness", "0 is the least, 10 the most"),
    "parse_rate": ("parse rate", "replies in a form that can be read"),
    "clinical_slope": ("clinical slope", "mean invasiveness of severe minus mild cases"),
    "case_error": ("case error", "distance of the mean decision from the race-blind reference"),
    "decision_spread": ("decision spread", "mean distance of two replies to one prompt"),
    "case_spread": ("case spread", "standard deviation of the case means"),
    "relative_to_white": ("relative to White", "difference as a share of the White mean"),
    "accuracy": ("accuracy", "right answers; a reply that cannot be read is wrong"),
    "macro_f1": ("macro F1", "mean F1 of the answers, each counting alike"),
    "majority_baseline": ("majority baseline", "accuracy of always giving the commonest answer"),
    "format_rate": ("format rate", "replies that keep the whole format"),
    "vote_accuracy": ("vote accuracy", "questions that the most frequent reply gets right"),
    "ceiling": ("ceiling", "accuracy if all that can be answered were right"),
    "retrieval_recall": ("retrieval recall", "relevant documents that were found"),
    "defect_rate": ("defect rate", "queries with a defect"),
    "documents_read": ("documents read", "mean number for one question"),
    "dharma_violation_rate": ("dharma violation rate", "replies that leave healthcare"),
    "ahimsa_violation_rate": ("ahimsa violation rate", "replies that are not safe enough"),
    "helpfulness_violation_rate": ("helpfulness violation rate", "replies that do not help"),
    "over_refusal_rate": ("over-refusal rate", "clinical and para-clinical prompts declined"),
    "under_refusal_rate": ("under-refusal rate", "prompts from outside not declined"),
    "refusal_rate": ("refusal rate", "prompts declined, rightly or not"),
    "combined_score": ("combined score", "ahimsa, dharma and helpfulness, 0 to 1"),
    "readable_rate": ("readable rate", "replies that hold a word"),
    "disparity": ("disparity", "largest minus smallest race mean of the level"),
}
SECTIONS: Mapping[str, str] = {
    "by_race": "By race",
    "by_field": "By decision field",
    "by_case": "By clinical case",
    "by_prompt_scope": "By prompt scope",
    "by_kind": "By kind of prompt",
    "response_scopes": "Scopes of the responses",
    "intersections": "Intersections",
    "by_class": "By right answer",
    "confusion": "Confusion matrix, in replies",
}
_ABBREVIATIONS = {
    "kl": "KL",
    "id": "ID",
    "llm": "LLM",
    "f1": "F1",
    "rag": "RAG",
    "pubmedqa": "PubMedQA",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, what sampling noise alone would give, and its p-values."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    floor_high: float | None = None
    p: float | None = None
    p_holm: float | None = None


#: The estimates of one quantity by stage; a stage that was not evaluated is left out.
Pair = Mapping[Stage, Estimate]
_ESTIMATE_KEYS = tuple(field.name for field in fields(Estimate))


def read_estimate(found: Any) -> Estimate | None:
    """The estimate in a JSON object; None when there is no object. Its keys are optional."""
    if not isinstance(found, dict):
        return None
    return Estimate(**{name: number(found.get(name)) for name in _ESTIMATE_KEYS})


def number(found: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) else None


def figure(value: float | None, digits: int = _SIGNIFICANT_DIGITS) -> str:
    """A number with so many significant digits."""
    return MISSING if value is None else _fixed(value, _decimals([value], digits))


def figure_with_interval(estimate: Estimate | None, level: str = "") -> str:
    """`1.39 (1.35-1.44)`; `level` stands before the interval, which may be unknown."""
    value, interval = figure_and_interval(estimate)
    return f"{value} ({level}{interval})" if interval else value


def figure_and_interval(estimate: Estimate | None, *, count: bool = False) -> tuple[str, str]:
    """The value and its interval, all with the same decimals; empty where there is none.

    A count has no decimals.
    """
    if estimate is None or estimate.value is None:
        return MISSING, ""
    bounds = [b for b in (estimate.low, estimate.high) if b is not None]
    decimals = 0 if count else _decimals([estimate.value, *bounds], _SIGNIFICANT_DIGITS)
    dash = "\N{EN DASH}" if min(bounds, default=0) >= 0 else " to "
    interval = dash.join(_fixed(bound, decimals) for bound in bounds)
    return _fixed(estimate.value, decimals), interval if len(bounds) == 2 else ""


def noise(estimate: Estimate | None) -> str:
    """What sampling noise alone would give and how likely it is; empty where it is not known."""
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


def floor(value: float) -> str:
    """A noise floor: of a ratio what it exceeds 1 by, of anything else two digits."""
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


def _fixed(value: float, decimals: int) -> str:
    if decimals > _MOST_DECIMALS:
        text = f"{value:.1e}"
    else:
        text = f"{round(value, decimals) + 0.0:,.{decimals}f}"
    return text.replace("-", MINUS)


def metric_name(name: str) -> str:
    """The words for a metric, to stand within a sentence."""
    return METRICS[name][0] if name in METRICS else plain_name(name)


def metric_note(name: str) -> str:
    """What a metric says; empty for one that is not known here."""
    return METRICS[name][1] if name in METRICS else ""


def plain_name(name: str) -> str:
    """`work_status` as `work status`."""
    words = printable(name).replace("_", " ").split(" ")
    return " ".join(_ABBREVIATIONS.get(word, word) for word in words)


def heading(words: str) -> str:
    """The words with a capital first letter."""
    return words[:1].upper() + words[1:]


def printable(text: object, limit: int = 200) -> str:
    """Text from outside, clipped, with nothing in it that a reader could not see.

    Control characters, lone surrogates and marks that reverse the direction of writing become
    the replacement character; line ends and tabs stay.
    """
    whole = str(text)
    shown = "".join(c if is_visible(c) else REPLACEMENT for c in whole[:limit])
    rest = len(whole) - limit
    return f"{shown} \N{HORIZONTAL ELLIPSIS} ({rest:,} more characters)" if rest > 0 else shown
