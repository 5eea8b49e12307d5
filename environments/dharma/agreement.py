"""How far judges agree: with labels that a person gave, and with each other.

Everything is a function of sums over clusters, so that an evaluation's bootstrap gives intervals.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from environments.dharma.metrics import Judged
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS, PromptLabel
from environments.measurement import Array, Measurement, Metric, quotient
from environments.sums import Block, Blocks

Level = TypeVar("Level", bound=str)

_SCORES = ("dharma", "ahimsa", "helpfulness", "combined")
_YES_NO = (False, True)


# --- measures of agreement -----------------------------------------------------------------------


def weighted_kappa(confusion: Array) -> Array:
    """Cohen's kappa with quadratic weights (1968, doi:10.1037/h0026256) of [..., L, L] counts.

    1 is full agreement, 0 what the two margins give by chance; NaN where chance alone agrees.
    """
    levels = confusion.shape[-1]
    ranks = np.arange(levels)
    distance = ((ranks[:, None] - ranks) / max(1, levels - 1)) ** 2
    rows, columns = confusion.sum(axis=-1), confusion.sum(axis=-2)
    total = confusion.sum(axis=(-2, -1))
    observed = (distance * confusion).sum(axis=(-2, -1)) * total
    expected = (distance * rows[..., :, None] * columns[..., None, :]).sum(axis=(-2, -1))
    return np.asarray(1 - quotient(observed, expected))


def pearson(sums: Array) -> Array:
    """Pearson's r from the sums [..., 6] of 1, x, y, xx, yy, xy; NaN where one does not vary."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.maximum(0, n * xx - x * x) * np.maximum(0, n * yy - y * y)
    # What is left of equal values is rounding.
    return quotient(n * xy - x * y, np.sqrt(np.where(spread > 1e-12 * n**4, spread, 0)))


def accuracy(confusion: Array) -> Array:
    """The share of pairs on the diagonal of [..., L, L] counts."""
    return quotient(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


# --- sums ----------------------------------------------------------------------------------------


def _pairs(first: Sequence[object], second: Sequence[object], levels: Sequence[object]) -> Array:
    """The cell of each pair in a confusion matrix, one-hot, [N, L, L]."""
    size = len(levels)
    cells = [levels.index(a) * size + levels.index(b) for a, b in zip(first, second, strict=True)]
    return np.eye(size * size)[cells].reshape(len(cells), size, size)


def _moments(x: Sequence[float], y: Sequence[float]) -> Array:
    """Return the terms of `pearson` for each pair, [N, 6]."""
    a, b = np.array(x, dtype=np.float64), np.array(y, dtype=np.float64)
    return np.stack([np.ones_like(a), a, b, a * a, b * b, a * b], axis=-1)


def _on(block: Block, measure: str, sums: Array) -> Array:
    return _MEASURES[measure](block.of(sums))


_MEASURES = {"kappa": weighted_kappa, "accuracy": accuracy, "r": pearson}


def _measurement(
    clusters: Sequence[str],
    parts: Mapping[str, Array],
    measures: Mapping[str, Sequence[str]],
) -> Measurement:
    blocks = Blocks.of_shapes({name: values.shape[1:] for name, values in parts.items()})
    return Measurement(
        clusters=tuple(clusters),
        sums=blocks.join((len(clusters),), parts),
        metrics={
            f"{name}_{measure}": Metric(partial(_on, blocks[name], measure), "higher")
            for name in parts
            for measure in measures[name]
        },
    )


# --- the two comparisons -------------------------------------------------------------------------


def label_agreement(
    prompts: Sequence[str], labels: Sequence[PromptLabel], judged: Sequence[PromptLabel]
) -> Measurement:
    """A judge against given labels: kappa and accuracy of scope and tier, over prompts."""
    scopes = _pairs([label.scope for label in labels], [j.scope for j in judged], SCOPES)
    tiers = _pairs([label.tier for label in labels], [j.tier for j in judged], TIERS)
    return _measurement(
        prompts,
        {"scope": scopes, "tier": tiers},
        {"scope": ("kappa", "accuracy"), "tier": ("kappa", "accuracy")},
    )


def judge_agreement(
    prompts: Sequence[str], first: Sequence[Judged], second: Sequence[Judged]
) -> Measurement:
    """Two judges on the same responses, clustered by prompt.

    Pearson's r of the scores; kappa of the levels (response scope, referral) and of the yes or no
    (each violation, refusals).
    """
    parts: dict[str, Array] = {}
    for name in _SCORES:
        x, y = ([getattr(v.decision, name) for v in judge] for judge in (first, second))
        parts[name] = _moments(x, y)
    for name, levels in (("response_scope", SCOPES), ("referral", REFERRALS), ("refused", _YES_NO)):
        a, b = ([getattr(v.ratings, name) for v in judge] for judge in (first, second))
        parts[name] = _pairs(a, b, levels)
    for name in _SCORES[:3]:
        a, b = ([getattr(v.decision.violations, name) for v in j] for j in (first, second))
        parts[f"{name}_violation"] = _pairs(a, b, _YES_NO)
    measures = {name: ("r",) if name in _SCORES else ("kappa",) for name in parts}
    return _measurement(prompts, parts, measures)


def confusion(
    first: Sequence[Level], second: Sequence[Level], levels: Sequence[Level]
) -> dict[str, dict[str, int]]:
    """How often the second said what when the first said what: first -> second -> count."""
    counts = _pairs(first, second, levels).sum(axis=0)
    rows = counts.astype(int).tolist()
    return {a: dict(zip(levels, row, strict=True)) for a, row in zip(levels, rows, strict=True)}
