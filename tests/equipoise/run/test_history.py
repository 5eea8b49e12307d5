import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from environments.base import Failure, Rollout, Score
from environments.contract import Environment
from environments.measurement import Measurement
from equipoise.files.errors import EquipoiseError
from equipoise.run.history import append_row, keep_steps, read_history, step_row
from tests.refusals import refusal


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "training_history.jsonl"
    for step in range(1, 6):
        append_row(path, {"step": step, "reward": step / 3, "env/gini": 0.1 * step, "kl": None})
    return path


def test_figures_read_back_as_the_same_numbers(history: Path):
    append_row(history, {"step": 6, "reward": float("nan"), "failures/budget": 1.0})
    series = read_history(history)
    assert series["reward"][:5] == tuple(step / 3 for step in range(1, 6))
    assert math.isnan(series["reward"][5]) and "kl" not in series
    assert np.array_equal(series["failures/budget"], [math.nan] * 5 + [1.0], equal_nan=True)


class Toy(Environment):
    """Measures nothing."""

    name, score = "toy", None

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        return Measurement(("all",), np.zeros((1, 1)), {})


def test_failures_are_counted_by_kind():
    kinds = ("rate_limit", None, "budget", "rate_limit")
    scores = [Score(None, error=Failure(k, "")) if k else Score(1.0) for k in kinds]
    row = step_row(Toy(), [Rollout("p", "s", "train", "", "")] * 4, scores)
    assert row["failures"] == 3 and row["reward"] == 1
    assert row["failures/rate_limit"] == 2 and row["failures/budget"] == 1


def test_resume_drops_what_came_after_the_checkpoint_and_what_was_cut_off(history: Path):
    whole = history.read_bytes()
    history.write_bytes(whole[:-4])
    assert read_history(history)["step"] == (1, 2, 3, 4)
    keep_steps(history, 3)
    assert history.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    keep_steps(history, 0)
    assert not history.exists()
    keep_steps(history, 3)


@pytest.mark.parametrize("bad", ["\0\0", "{", "[1]", '{"step": "1"}', '{"step": NaN}', '{"a": 1}'])
def test_a_line_that_is_none_is_named(history: Path, bad: str):
    lines = history.read_text().splitlines()
    history.write_text("\n".join([*lines[:2], bad, *lines[3:]]) + "\n")
    for action in (lambda: keep_steps(history, 5), lambda: read_history(history)):
        with pytest.raises(EquipoiseError, match="line 3"):
            action()


def test_a_figure_that_is_not_a_number_is_refused(history: Path):
    history.write_text('{"step": 1, "reward": "high"}\n')
    with refusal("history.no-figure", "high"):
        read_history(history)
