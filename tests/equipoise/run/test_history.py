"""The history, and the rollouts of training that are kept: whole sets, and no step twice."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from environments.base import Failure, Rollout, Score
from environments.contract import Environment
from environments.measurement import Measurement
from equipoise.files.errors import EquipoiseError
from equipoise.run.history import append_row, keep_steps, read_history, restore, step_row
from equipoise.run.rollouts import TrainingRollouts, choose, chosen_sets, read_kept
from tests.refusals import refusal


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "training_history.jsonl"
    for step in range(1, 6):
        append_row(path, {"step": step, "reward": step / 3, "env/gini": 0.1 * step, "kl": None})
    return path


def test_figures_read_back_as_the_same_numbers(history):
    append_row(history, {"step": 6, "reward": float("nan"), "failures/budget": 1.0})
    series = read_history(history)
    assert series["reward"][:5] == tuple(step / 3 for step in range(1, 6))
    assert math.isnan(series["reward"][5]) and "kl" not in series
    assert np.array_equal(series["failures/budget"], [math.nan] * 5 + [1.0], equal_nan=True)


class Toy(Environment):
    """Measures nothing."""

    name, score = "toy", None

    def measure(self, rollouts, scores):
        return Measurement(("all",), np.zeros((1, 1)), {})


def test_failures_are_counted_by_kind():
    kinds = ("rate_limit", None, "budget", "rate_limit")
    scores = [Score(None, error=Failure(k, "")) if k else Score(1.0) for k in kinds]
    row = step_row(Toy(), [Rollout("p", "s", "train", "", "")] * 4, scores)
    assert row["failures"] == 3 and row["reward"] == 1
    assert row["failures/rate_limit"] == 2 and row["failures/budget"] == 1


def test_resume_drops_what_came_after_the_checkpoint_and_what_was_cut_off(history):
    whole = history.read_bytes()
    history.write_bytes(whole[:-4])
    assert read_history(history)["step"] == (1, 2, 3, 4)
    assert keep_steps(history, 3) == 3
    assert history.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    assert keep_steps(history, 0) == 0
    assert not history.exists()
    assert keep_steps(history, 3) == 0


@pytest.mark.parametrize("bad", ["\0\0", "[1]", '{"step": NaN}', '{"a": 1}'])
def test_a_line_that_is_none_is_named(history, bad):
    lines = history.read_text().splitlines()
    history.write_text("\n".join([*lines[:2], bad, *lines[3:]]) + "\n")
    for action in (lambda: keep_steps(history, 5), lambda: read_history(history)):
        with pytest.raises(EquipoiseError, match="line 3"):
            action()


def test_a_figure_that_is_not_a_number_is_refused(history):
    history.write_text('{"step": 1, "reward": "high"}\n')
    with refusal("history.no-figure", "high"):
        read_history(history)


SETS = [f"set {number}" for number in range(40)]


def scored(*set_ids):
    """Two generations of two prompts of each set."""
    rollouts = [
        Rollout(f"{set_id}/{prompt}", set_id, "train", "Q", f"A{number}", {"prompt": prompt})
        for set_id in set_ids
        for prompt in "ab"
        for number in range(2)
    ]
    return rollouts, [Score(float(number)) for number in range(len(rollouts))]


def step_of(set_id, value=0.5):
    error = Failure("verifier_error", "empty") if value is None else None
    return [(rollout, Score(value, error=error)) for rollout in scored(set_id)[0]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training" / "rollouts.jsonl"


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_whole_sets_are_chosen_in_their_order_with_the_scores_they_got():
    rollouts, scores = scored(*SETS[:6])
    sample = choose(rollouts, scores, limit=2, seed=7)
    names = Counter(rollout.set_id for rollout, _ in sample)
    assert list(names.values()) == [4, 4]
    places = [rollouts.index(rollout) for rollout, _ in sample]
    assert places == sorted(places)
    assert [score for _, score in sample] == [scores[place] for place in places]
    assert choose(rollouts, scores, limit=0, seed=7) == []


def test_a_set_that_was_kept_is_kept_again_in_other_company():
    """In steps of four of forty sets, the first of the order is kept whenever it comes."""
    (first,) = chosen_sets(SETS, 1, seed=7)
    for start in range(len(SETS)):
        step = [*SETS[start : start + 3], first]
        assert chosen_sets(step, 1, seed=7) == {first}
    assert len({name for seed in range(20) for name in chosen_sets(SETS, 1, seed)}) > 5


@pytest.mark.parametrize(("most", "steps"), [(200, 100), (4, 10), (10, 10), (1, 7), (3, 1000)])
def test_so_many_steps_are_kept_at_even_distances_and_the_last_one(most, steps):
    file = TrainingRollouts(Path("x"), most, steps)
    kept = [step for step in range(1, steps + 1) if file.keeps(step)]
    assert len(kept) == min(most, steps)
    assert kept[-1] == steps
    gaps = {after - before for before, after in zip([0, *kept], kept, strict=False)}
    assert max(gaps) - min(gaps) <= 1


def test_a_line_is_that_of_a_stage_with_its_step(path):
    file = TrainingRollouts(path, limit=1, steps=2)
    file.write_step(1, step_of("s"))
    assert not path.exists(), "a step that is not kept"
    file.write_step(2, step_of("half of a pair \ud800", None))
    (row, *_) = rows(path)
    assert (row["step"], row["prompt_id"], row["completion"], row["value"]) == (
        2,
        "half of a pair \ud800/a",
        "A0",
        None,
    )
    assert row["error"] == {"kind": "verifier_error", "text": "empty"}


def test_a_step_that_is_taken_again_comes_once_and_the_file_is_the_same(path):
    file = TrainingRollouts(path, limit=9, steps=3)
    for step in (1, 2, 3):
        file.write_step(step, step_of(f"s{step}"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # a kill in the middle of the third step's lines
    assert [step for step, *_ in read_kept(path)] == [1] * 4 + [2] * 4 + [3] * 3
    keep_steps(path, 1)
    assert {row["step"] for row in rows(path)} == {1}
    for step in (2, 3):
        file.write_step(step, step_of(f"s{step}"))
    assert path.read_bytes() == whole


def test_what_a_checkpoint_has_kept_takes_the_place_of_what_is_there(path):
    file = TrainingRollouts(path, limit=9, steps=3)
    file.write_step(1, step_of("s"))
    kept = path.parent.parent / "kept.jsonl"
    kept.write_bytes(path.read_bytes())
    file.write_step(2, step_of("s"))
    restore(path, kept)
    assert {row["step"] for row in rows(path)} == {1}
    restore(path, kept.with_name("of an older checkpoint.jsonl"))
    assert not path.exists()
