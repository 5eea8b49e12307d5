"""Every command that reads a run, on runs whose files are not as they were written."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Rollout
from equipoise.config import Options, load_config
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.job import write_evaluation
from equipoise.run.rollouts import write_rollouts
from equipoise.run.seals import seal
from equipoise.run.start import start_run
from equipoise.statistics.compare import compare, comparison_dict
from tests.command import ROOT
from tests.contract.gym.served import decision, rollout
from tests.equipoise.report.conftest import write_json
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import started

pytestmark = pytest.mark.deep

FEW = ("equipoise.evaluation.bootstrap_draws=50", "equipoise.evaluation.permutations=20")
GENERATIONS = 4
SMOKE = "--config=nemo_configs/smoke.yaml"


def replies(records: list[Any], seed: int) -> list[Rollout]:
    rng = random.Random(seed)
    return [rollout(r, decision(rng)) for r in records for _ in range(GENERATIONS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fairness run, as its stages leave it, but for what a model has to be there for."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    run.root.mkdir()
    words = (*FEW, f"equipoise.cache_dir={run.root.parent / 'cache'}")
    loaded = load_config(
        "fairness", Options((ROOT / "nemo_configs/smoke.yaml",), assignments=words)
    )
    records = build_prompts(PromptSettings(num_samples=96))
    start_run(loaded, records, run, "run")
    environment: Any = make_environment(loaded.environment_class, loaded.env_settings)
    reference = replies(records, seed=0)
    write_rollouts(run.reference, reference)
    environment.set_reference(reference)
    tested, measured = [r for r in records if r.split == "test"], []
    settings = loaded.config.equipoise.evaluation
    for seed, stage in enumerate(("baseline", "final"), start=1):
        drawn = replies(tested, seed)
        scores = environment.score(drawn)
        write_evaluation(run, stage, environment, drawn, scores, settings, "tiny", {})
        measured.append(environment.measure(drawn, scores))
    write_json(run.comparison, comparison_dict(compare(*measured, settings.statistics)))
    final = run.final_checkpoint
    write_json(final / "adapter_config.json", {"base_model_name_or_path": "org/base", "r": 1})
    save_file({"a": np.zeros(8, np.float32)}, final / "adapter_model.safetensors")
    seal(run)
    return run.root


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def replies_changed(run: Path) -> str:
    """Other replies with the scores of the old ones."""
    path = run / "final" / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::3]:
        row["completion"] = "x" * len(row["completion"])
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return "final/rollouts.jsonl"


def unlisted(run: Path) -> str:
    (run / "manifest.json").unlink()
    return "run.unlisted-files"


def weights_changed(run: Path) -> str:
    path = run / "final_checkpoint" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    return "adapter_model.safetensors was changed"


def model_gone(run: Path) -> str:
    shutil.rmtree(run / "final_checkpoint")
    return "final_checkpoint is missing"


Command = tuple[str, Callable[[Path], str], Callable[[Path, Path], tuple[str, ...]]]
COMMANDS: list[Command] = [
    ("compare", replies_changed, lambda run, _: (f"{run}/baseline", f"{run}/final")),
    ("compare", unlisted, lambda run, _: (f"{run}/baseline", f"{run}/final")),
    ("gate", replies_changed, lambda run, _: (f"{run}/baseline", f"{run}/final")),
    ("export gym", unlisted, lambda run, out: (str(run), f"--output-dir={out}")),
    ("export verifiers", replies_changed, lambda run, out: (str(run), f"--output-dir={out}")),
    ("convert", weights_changed, lambda run, out: (str(run), str(out))),
    ("merge-lora", model_gone, lambda run, out: (str(run), str(out))),
    ("evaluate", unlisted, lambda run, _: ("fairness", f"--model={run}", "--limit=4")),
    (
        "grpo_fairness",
        weights_changed,
        lambda run, _: (SMOKE, f"--model-name={run / 'final_checkpoint'}"),
    ),
]
WITH_CACHE = ("evaluate", "grpo_fairness")


@pytest.mark.parametrize(("command", "damage", "words"), COMMANDS)
def test_what_is_not_as_it_was_written_is_refused_by_its_name(
    command: str,
    damage: Callable[[Path], str],
    words: Callable[[Path, Path], tuple[str, ...]],
    run: Path,
    tmp_path: Path,
) -> None:
    told, out = damage(run), tmp_path / "out"
    cache = (f"equipoise.cache_dir={tmp_path / 'cache'}",) if command in WITH_CACHE else ()
    places = (f"--output-dir={out}",) if command in ("compare", "gate", *WITH_CACHE) else ()
    said = started(command, *words(run, out), *places, *cache, code=1)
    error = said[said.index("error [") :]
    assert told in error and "from a copy" in error
    assert len(error.splitlines()) == 2, error
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_stages_of_another_size_are_compared_with_a_warning(run: Path, tmp_path: Path) -> None:
    """Two runs may ask the same prompts a different number of times."""
    fewer = tmp_path / "fewer"
    shutil.copytree(run, fewer)
    path = fewer / "final" / "rollouts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for n, line in enumerate(lines) if n % GENERATIONS < 2))
    evaluation = json.loads((fewer / "final" / "evaluation.json").read_text())
    write_json(fewer / "final" / "evaluation.json", evaluation | {"n_rollouts": len(lines) // 2})
    seal_run(fewer)
    words = (f"a={run}", f"b={fewer}", f"--output-dir={tmp_path / 'out'}")
    said = " ".join(started("compare", *words).split())
    told = f"do not have the same number of replies to these prompts: {len(lines)} against"
    assert told in said
    assert told in (tmp_path / "out" / "compare.html").read_text()
