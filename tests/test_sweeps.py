"""The sweeps of nemo_configs/sweeps, and docs/experiments/sweep.py, which runs one here."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from equipoise.config import load_config
from equipoise.config.flags import CONFIG_FOLDER, tasks
from equipoise.config.training_words import parse_flags

ROOT = CONFIG_FOLDER.parent
SWEEPS = sorted((CONFIG_FOLDER / "sweeps").glob("*.yaml"))
KEY = "policy.optimizer.kwargs.lr"
SMOKE = f"""
program: recipes/grpo_dharma.py
method: grid
metric: {{name: final/objective, goal: maximize}}
parameters:
  {KEY}: {{values: [1.0e-4, 5.0e-4]}}
  grpo.seed: {{values: [1]}}
  equipoise.evaluation.split: {{value: validation}}
command: [uv, run, "${{program}}", --config, nemo_configs/smoke.yaml, "${{args_no_hyphens}}"]
"""


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "experiments"))
    yield import_module("sweep")
    for name in ("sweep", "seeds"):
        sys.modules.pop(name, None)


@pytest.fixture
def smoke(tmp_path: Path) -> Path:
    path = tmp_path / "smoke.yaml"
    path.write_text(SMOKE)
    return path


def agents_words(sweep: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """What an agent of wandb's puts behind the program."""
    at = sweep["command"].index("${program}") + 1
    return [*sweep["command"][at:-1], *(f"{key}={value}" for key, value in chosen.items())]


def test_every_task_has_a_sweep() -> None:
    assert [path.stem for path in SWEEPS] == tasks()


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
class TestSweep:
    def test_its_words_are_taken_from_the_command_line(self, path: Path) -> None:
        sweep = yaml.safe_load(path.read_text())
        assert (ROOT / sweep["program"]).name == f"grpo_{path.stem}.py"
        assert (ROOT / sweep["program"]).is_file()
        assert sweep["command"][-1] == "${args_no_hyphens}"
        values = {key: p.get("values", [p.get("value")]) for key, p in sweep["parameters"].items()}
        for place in (0, -1):
            chosen = {key: of[place] for key, of in values.items()}
            options = parse_flags("x", agents_words(sweep, chosen))
            assert options.assignments == tuple(f"{key}={chosen[key]}" for key in chosen)
            config = OmegaConf.create(load_config(path.stem, options).config.model_dump())
            assert {key: OmegaConf.select(config, key) for key in chosen} == chosen

    def test_the_task_as_it_is_shipped_is_a_cell(self, path: Path, sweeps: ModuleType) -> None:
        read = sweeps.read_sweep(path)
        shipped = load_config(path.stem, parse_flags("x", ["--config", str(read.config)])).config
        config = OmegaConf.create(shipped.model_dump())
        assert {key: OmegaConf.select(config, key) for key in read.cells[0]} in read.cells

    def test_a_dry_run_lists_its_cells(
        self, path: Path, sweeps: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        sweeps.main([str(path), "--dry-run", "--output", str(tmp_path / "out")])
        first, *cells, last = capsys.readouterr().out.splitlines()
        assert first == f"{path.stem}: 12 cells, seeds 1 2 on validation: 24 runs, 0 of them done"
        assert len(set(cells)) == 12
        assert all(cell.startswith(f"  {KEY}=") for cell in cells)
        assert last == "then the best cell, seeds 11 12 13 on test: 3 runs"
        assert not (tmp_path / "out").exists()


def test_what_has_no_grid_is_refused(sweeps: ModuleType, smoke: Path) -> None:
    changed = {
        "values: [1.0e-4, 5.0e-4]": "min: 1.0e-4, max: 1.0e-3",
        "{value: validation}": "{value: test}",
        "--config, nemo": "--config, other.yaml, --config, nemo",
        KEY: "policy.optimiser.kwargs.lr",
    }
    errors = ("a range has no grid", "{value: validation}", "the command is not", "optimizer")
    for (old, new), error in zip(changed.items(), errors, strict=True):
        smoke.write_text(SMOKE.replace(old, new))
        with pytest.raises(SystemExit, match=error):
            sweeps.main([str(smoke), "--dry-run"])


def test_seeds_that_choose_report_nothing(sweeps: ModuleType, smoke: Path) -> None:
    with pytest.raises(SystemExit, match="1 is one of the seeds that choose"):
        sweeps.main([str(smoke), "--test-seeds", "1", "2", "--dry-run"])


def test_guards_come_before_the_metric(sweeps: ModuleType) -> None:
    lossy = sweeps.Result({KEY: 1}, (0.1, 0.1), lost=1)
    middle, high = sweeps.Result({KEY: 2}, (0.2, 0.4)), sweeps.Result({KEY: 3}, (0.3, 0.5))
    failed = sweeps.Result({KEY: 4})
    assert sweeps.best([failed, lossy, middle, high], "minimize") is middle
    assert sweeps.best([failed, lossy, middle, high], "maximize") is high
    assert sweeps.best([lossy, failed], "maximize") is lossy
    assert sweeps.best([failed], "maximize") is None


def test_a_cell_whose_objective_is_not_known_says_why(
    sweeps: ModuleType,
    smoke: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweeps.seeds, "train", lambda *_: tmp_path)  # a run without figures
    result = sweeps.run_cell(sweeps.read_sweep(smoke), {KEY: 1}, tmp_path)
    assert result.values == ()
    assert "no final/objective, too few replies could be read" in capsys.readouterr().out


@pytest.mark.deep
def test_a_tiny_grid(
    sweeps: ModuleType, smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [str(smoke), "--test-seeds", "11", "--output", str(out)]
    sweeps.main(words)
    page = (out / "dharma.md").read_text()
    cells = [line for line in page.splitlines() if line.startswith(("| 0.0001 |", "| 0.0005 |"))]
    assert len(cells) == 2 and "failed" not in page
    [chosen] = [line.split(" | ")[0].strip("| ") for line in cells if line.endswith("| chosen |")]
    assert "Validation split, seeds 1, maximize." in page
    assert "| combined_score | after |" in page  # of the test split
    runs = {str(path.parent.relative_to(out)) for path in out.rglob("comparison.json")}
    validated = {f"lr={rate}/dharma/validation-1" for rate in ("0.0001", "0.0005")}
    assert runs == {*validated, f"lr={chosen}/dharma/test-11"}
    capsys.readouterr()
    sweeps.main([*words, "--dry-run"])
    assert "2 runs, 2 of them done" in capsys.readouterr().out
