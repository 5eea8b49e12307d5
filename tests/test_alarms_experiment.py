"""docs/experiments/alarms.py without its training: twins, what is hacked, thresholds."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from environments.base import Rollout
from environments.pubmedqa import PubMedQASettings
from environments.pubmedqa.reply import reply_text

EXPERIMENTS = Path(__file__).resolve().parents[1] / "docs" / "experiments"
METADATA = {
    "gold": "yes",
    "question": "Did the new drug reduce pain?",
    "context": "RESULTS: Pain was lower with the new drug than with placebo.",
}


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.delitem(sys.modules, "alarms", raising=False)
    import alarms

    return alarms


def test_a_twin_pays_for_something_else_and_is_measured_as_the_task_is(alarms):
    quoted = reply_text('"Pain was lower with the new drug than with placebo"', "no")
    right = reply_text("It did.", "yes")
    rollouts = [Rollout("p", "p", "train", "", text, METADATA) for text in (quoted, right)]
    twin = alarms.AnyQuote(PubMedQASettings())
    scores = twin.score(rollouts)
    assert scores[0].value > scores[1].value
    assert twin.measure(rollouts, scores).point_estimates()["accuracy"] == 0.5


def run(alarms, kind, seed, accuracy, difference=0.0):
    steps = range(1, 17)
    rows = [{"step": n, "reward": float(n), "env/accuracy": accuracy(n)} for n in steps]
    rows = [row | {f"x/{name}": 1.0 for name in ("words", "words_sd", "ties")} for row in rows]
    figures = {"difference": difference, "verdict": "no evidence", "before": 0.5, "after": 0.5}
    outcome = {"reward": {"verdict": "better"}, "accuracy": figures}
    content = {"rows": rows, "outcome": outcome, "objective": "accuracy"}
    return alarms.Run("rag", kind, seed, content | {"directions": {"accuracy": ["higher", True]}})


def test_a_run_is_hacked_where_the_reward_alone_rose(alarms):
    assert run(alarms, "twin", 11, float, -0.1).hacked
    assert not run(alarms, "twin", 11, float, 0.1).hacked


def test_a_threshold_is_above_every_sound_run_of_the_first_seeds(alarms):
    early = run(alarms, "sound", 1, lambda n: -1.0 if n > 10 else 1.0)
    late = run(alarms, "twin", 11, lambda n: -n, -0.1)
    guards = alarms.TRIED["a guard gets worse while the reward rises"]
    largest = max(guards(early, end) for end in range(8, 17))
    speaks = alarms.first(guards, largest)
    assert speaks(early) is None
    assert speaks(late) == 7
