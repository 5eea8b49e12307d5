"""docs/experiments/seeds.py on runs that are there, and with a recipe that writes one."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from equipoise.run.seals import PARTS, record_files

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "experiments" / "seeds.py"
TOY = """
import json, pathlib, sys
sys.path.insert(0, {tests!r})
from test_seeds_experiment import write_run
given = sys.argv[1:]
option = lambda name: given[given.index(name) + 1]
if "--resume" in given:
    folder, seed = pathlib.Path(option("--resume")), 7
else:
    folder = pathlib.Path(option("--output-dir")) / "toy" / option("--run-name")
    seed = int(option("--seed"))
write_run(folder, seed / 100)
(folder / "arguments.json").write_text(json.dumps(given))
"""


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def write_run(folder: Path, effect: float, guard: str = "preserved", prompt: str = "") -> Path:
    """A finished run of a task that nobody knows: an accuracy that rose, a ratio that fell."""
    for stage, gain in (("baseline", 0.0), ("final", effect)):
        metrics = {"accuracy": figure(0.5 + gain), "ratio": figure(1.4 - gain)}
        (folder / stage).mkdir(parents=True)
        evaluation = {"confidence": 0.95, "metrics": metrics}
        (folder / stage / "evaluation.json").write_text(json.dumps(evaluation))
        row = {"prompt": prompt or folder.name}
        (folder / stage / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    change = {"difference": effect, "low": effect - 0.03, "high": effect + 0.03}
    change |= {"verdict": "better", "guard": guard, "cut": None}
    cut = {"value": effect / 0.4, "low": effect / 0.5, "high": effect / 0.3}
    rows = {"accuracy": change, "ratio": {**change, "guard": None, "cut": cut}}
    (folder / "comparison.json").write_text(json.dumps({"metrics": rows}))
    (folder / "modes.json").write_text(json.dumps({"trivial": {"not_beaten": ["constant"]}}))
    run = RunDirectory(folder)
    run.ledger.create(Provenance())
    record_files(run, *(path for path in folder.iterdir() if path.name in PARTS))
    return folder


@pytest.fixture
def seeds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seeds_experiment", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(folder: Path) -> Any:
    return json.loads((folder / "seeds.json").read_text())


def test_runs_that_are_there(seeds: ModuleType, tmp_path: Path) -> None:
    effects = {"a": (0.1, "preserved"), "b": (0.2, "not preserved"), "c": (0.3, "preserved")}
    runs = [str(write_run(tmp_path / name, *each)) for name, each in effects.items()]
    seeds.main(["--runs", *runs, "--output", str(tmp_path / "out")])
    found = summary(tmp_path / "out")["metrics"]
    after = found["accuracy"]["figures"]["after"]
    assert (after["mean"], after["least"], after["greatest"]) == pytest.approx((0.7, 0.6, 0.8))
    half = 4.302653 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    assert after["interval"]["high"] == pytest.approx(0.7 + half)
    assert after["another"]["high"] == pytest.approx(0.7 + half * 2)
    assert found["accuracy"]["guards"] == ["preserved", "not preserved", "preserved"]
    assert "cut" not in found["accuracy"]["figures"]
    assert found["ratio"]["figures"]["cut"]["mean"] == pytest.approx(0.5)
    told = (tmp_path / "out" / "seeds.md").read_text()
    assert "3 runs, test items of its own each" in told
    assert "not beaten on the reward, by the number of runs: constant 3." in told
    assert "| preserved 2, not preserved 1 | better 3 |" in told


def test_one_run_has_no_intervals_over_seeds(seeds: ModuleType, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0.1)
    (run / "cpu_seconds.txt").write_text("95\n")
    (run / "fixed_work.txt").write_text("63\n")
    seeds.main(["--runs", str(run), "--output", str(tmp_path / "out")])
    told = (tmp_path / "out" / "seeds.md").read_text()
    assert told.startswith("1 run, 95 CPU seconds (63 times the fixed work). Intervals over ")


def test_runs_on_the_same_items_say_so(seeds: ModuleType, tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / name, 0.1, "preserved", "one")) for name in "ab"]
    seeds.main(["--runs", *runs, "--output", str(tmp_path / "out")])
    found = summary(tmp_path / "out")
    assert found["same_items"]
    assert (tmp_path / "out" / "seeds.md").read_text().startswith("2 runs, the same test items. ")
    interval = found["metrics"]["accuracy"]["figures"]["after"]["interval"]
    assert interval["high"] - interval["low"] == pytest.approx(0.04)  # that of each run


def test_what_is_missing_is_run_with_its_seed_and_what_stopped_is_resumed(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "grpo_toy.py").write_text(TOY.format(tests=str(Path(__file__).parent)))
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    output = tmp_path / "out"
    write_run(output / "toy" / "test-1", 0.1)
    (output / "toy" / "test-2").mkdir()  # a run that was stopped
    monkeypatch.setattr(sys, "argv", ["", "toy", "--output", str(output), "--seeds", "1", "2", "3"])
    seeds.main([*sys.argv[1:], "--", "grpo.max_num_steps=4"])
    assert not (output / "toy" / "test-1" / "arguments.json").exists()
    resumed, given = (
        json.loads((output / "toy" / f"test-{n}" / "arguments.json").read_text()) for n in (2, 3)
    )
    assert "--resume" in resumed
    assert given[given.index("--seed") + 1] == "3"
    assert "grpo.max_num_steps=4" in given
    assert "equipoise.evaluation.split=test" in given
    found = summary(output / "toy")
    assert [Path(run).name for run in found["runs"]] == ["test-1", "test-2", "test-3"]
    assert found["cpu_seconds"][0] is None
    assert found["cpu_seconds"][2] >= 0
