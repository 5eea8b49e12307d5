"""The tables in the terminal."""

import pytest

from equipoise.console import Reporter
from equipoise.summary import print_evaluation

FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}


@pytest.mark.parametrize(
    ("figure", "shown"), [(FIGURE, False), (FIGURE | {"floor": 0.1, "p": 0.01}, True)]
)
def test_a_noise_floor_has_a_column_where_there_is_one(figure, shown, capsys) -> None:
    evaluation = {"metrics": {"some_rate": figure}, "n_rollouts": 9, "n_prompts": 3}
    print_evaluation(Reporter(), evaluation | {"n_failed": 0, "confidence": 0.95, "split": "test"})
    printed = capsys.readouterr().out
    assert "some_rate" in printed
    assert "0.400 to 0.600" in printed
    assert ("noise floor" in printed) is shown
