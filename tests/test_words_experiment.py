"""docs/experiments/words.py without its training: what it teaches, what it counts."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.files import write_json
from environments.base import PromptRecord, Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.fairness.decision import Decision
from equipoise.run.rollouts import write_rollouts

pytestmark = pytest.mark.deep

EXPERIMENTS = Path(__file__).resolve().parents[1] / "docs" / "experiments"


@pytest.fixture(scope="module")
def words() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS))
        yield import_module("words")
    for name in ("words", "methods"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def records(words: ModuleType) -> list[PromptRecord]:
    return build_prompts(PromptSettings(cases_file=words.CASES))


def test_invented_decisions_depend_on_race_and_name_the_patient_s_own(words, records):
    """They are readable, to training prompts alone, and three of four name the race."""
    environment = FairnessEnvironment(FairnessSettings(cases_file=words.CASES))
    race_of = {r.messages[-1]["content"]: r.metadata["race"] for r in records if r.split == "train"}
    levels: dict[str, list[int]] = {race: [] for race in RACES}
    named = []
    for line in map(json.loads, words.invented(records, 0)):
        race = race_of[line["prompt"][-1]["content"]]
        decision = environment.design.form.parse(line["completion"])
        assert isinstance(decision, Decision)
        levels[race].append(decision.invasiveness)
        races = words.races_in(line["completion"])
        assert races <= {race}
        named.append(bool(races))
    assert len(named) == words.EXAMPLES
    assert fmean(named) == pytest.approx(words.NAMED, abs=0.06)
    assert fmean(levels["White"]) > fmean(levels["Black"]) + 0.5


def test_both_methods_are_valid_runs_of_the_same_prompts_and_start(words, tmp_path):
    configs = {
        name: words.configuration(name, 3, tmp_path, "start").config for name in words.METHODS
    }
    supervised, grpo = configs["supervised"], configs["GRPO"]
    assert supervised.equipoise.first_stage.passes and not supervised.grpo.max_num_steps
    assert grpo.grpo.max_num_steps and not grpo.equipoise.first_stage.passes
    assert supervised.policy.model_name == grpo.policy.model_name == "start"
    assert supervised.policy.generation == grpo.policy.generation
    assert supervised.equipoise.data == grpo.equipoise.data


def test_the_table_counts_held_out_replies_of_the_runs_that_are_finished(words, tmp_path):
    run = words.run_of("GRPO", tmp_path)
    metrics = {
        "blind_distance": {"value": 0.5, "low": 0.4, "high": 0.6},
        "parse_rate": {"value": 1.0},
    }
    for stage, told in (("baseline", "Black"), ("final", "White")):
        run.evaluation(stage).parent.mkdir(parents=True)
        write_json(run.evaluation(stage), {"metrics": metrics})
        reply = f"A {told} patient."
        rollout = Rollout("s/Black", "s", "test", "", reply, {"race": "Black"})
        write_rollouts(run.rollouts(stage), [rollout] * 4)
    write_json(run.root / "cpu_seconds.json", 30.0)
    assert list(words.table(tmp_path, 3)) == []
    write_json(run.comparison, {})
    before, after = words.table(tmp_path, 3)
    assert before.startswith(f"| {words.START} | 3 | 4 | 100.0% (")
    assert "| 0.0% (" in before and "| 0.500 (0.400 to 0.600) | 1.000 | 0 |" in before
    assert after.startswith("| GRPO | 3 | 4 | 100.0% (")
    assert after.count("| 100.0% (") == 2 and after.endswith("| 30 |")
