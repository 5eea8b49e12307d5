"""rollouts.jsonl: what is written is read again, and what is not one is refused by its line."""

import json

import pytest

from environments.base import Failure, Rollout, Score
from equipoise.files.errors import EquipoiseError
from equipoise.run.rollouts import (
    read_generations,
    read_rollouts,
    read_scored_rollouts,
    write_generations,
    write_rollouts,
)
from tests.refusals import refusal

ROLLOUT = Rollout("p", "s", "test", "Q", "half of a pair: \ud800", {"race": "a"})
SCORES = [
    Score(1.0, {"format": 1}, None, {"reply": "\udfff"}, {"answer": None}),
    Score(None, {}, Failure("server_error", "judge: down")),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    write_rollouts(path, [ROLLOUT, ROLLOUT], SCORES)
    return path


def test_what_is_written_is_read_again(path):
    assert read_scored_rollouts(path) == ([ROLLOUT, ROLLOUT], SCORES)
    assert read_rollouts(path) == [ROLLOUT, ROLLOUT]


def test_what_recurs_is_held_once(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    other = Score(0.0, {}, None, {"reply": "A"}, {"answer": "yes"})
    write_rollouts(path, [ROLLOUT] * 4, [SCORES[0], SCORES[0], other, SCORES[0]])
    rollouts, scores = read_scored_rollouts(path)
    assert len({id(rollout.metadata) for rollout in rollouts}) == 1
    for name in ("evidence", "outcome"):
        first, second, third, fourth = (getattr(score, name) for score in scores)
        assert first is second is fourth != third


def test_a_generation_that_never_came_says_why(tmp_path):
    path, failures = tmp_path / "generations.jsonl", [None, Failure("rejected", "too long")]
    write_generations(path, [ROLLOUT, ROLLOUT], failures)
    assert read_generations(path) == ([ROLLOUT, ROLLOUT], failures)
    assert "error" not in json.loads(path.read_text().splitlines()[0])


def line(**changes):
    whole = {
        "prompt_id": "p",
        "set_id": "s",
        "split": "test",
        "prompt": "Q",
        "completion": "A",
        "metadata": {},
        "value": 1.0,
        "components": {},
        "error": None,
        "evidence": {},
        "outcome": None,
    }
    return json.dumps(
        {name: value for name, value in (whole | changes).items() if value is not ...}
    )


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("5", "line: Input should be"),
        ("", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        (line(value=float("nan")), "NaN is not a finite number"),
        (line(evidence={"x": float("-inf")}), "-Infinity is not a finite number"),
        (line(value=0).replace('"value": 0', '"value": 1e999'), "1e999 is not a finite number"),
        (line(value=0).replace('"value": 0', f'"value": {"9" * 5000}'), "not valid JSON"),
        (line(value="1"), "value: "),
        (line(completion=None), "completion: "),
        (line(evidence=...), "evidence: "),
        (line(value=None, error="judge: down"), "error: Input should be a valid dictionary"),
        (line(value=None, error={"kind": "unheard of", "text": ""}), "error.kind: "),
        (line(value=None), "line: Value error, a score has either a value or the failure"),
        (line(error={"kind": "policy", "text": ""}), "either a value or the failure"),
    ],
    ids=lambda value: value[:30],
)
def test_a_line_that_is_no_scored_rollout_is_named(bad, said, path):
    path.write_text(f"{line()}\n{bad}\n")
    with pytest.raises(EquipoiseError) as error:
        read_scored_rollouts(path)
    assert f"{path}, line 2: " in error.value.message
    assert said in error.value.message
    assert len(str(error.value)) < 400


def test_bytes_that_are_no_text_are_named(path):
    path.write_bytes(line().encode() + b"\n\xff\xfe\n")
    with refusal("file.refused-json", "line 2"):
        read_rollouts(path)
