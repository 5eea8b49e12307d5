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
from equipoise.run.rollouts import write_rollouts
from equipoise.run.seals import record_files
from equipoise.statistics.compare import compare, comparison_dict
from equipoise.terminal.console import Reporter
from equipoise.train.pipeline import start_run
from equipoise.train.stages.around_training import write_evaluation
from tests.command import ROOT
from tests.contract.gym.served import decision, rollout
from tests.equipoise.report.conftest import write_json
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import started

pytestmark = pytest.mark.deep

FEW = ("equipoise.evaluation.bootstrap_draws=50", "equipoise.evaluation.permutations=20")
GENERATIONS = 4


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
    start_run(loaded, records, Reporter(), run, "run")
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
    stages = (run.evaluation(stage).parent for stage in ("baseline", "final"))
    record_files(run, run.reference, *stages, run.comparison, final)
    return run.root


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def edited(change: Callable[[list[str]], list[str]]) -> Callable[[Path], str]:
    def edit(run: Path) -> str:
        path = run / "final" / "rollouts.jsonl"
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
        return "final/rollouts.jsonl"

    return edit


def a_third_changed(lines: list[str]) -> list[str]:
    """Other replies with the scores of the old ones, in as many bytes."""
    rows = [json.loads(line) for line in lines]
    for row in rows[::3]:
        row["completion"] = "x" * len(row["completion"])
    return [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]


def unlisted(run: Path) -> str:
    (run / "manifest.json").unlink()
    return "run.unlisted-files"


def deleted(name: str) -> Callable[[Path], str]:
    def delete(run: Path) -> str:
        (run / name).unlink()
        return name

    return delete


DAMAGES = {
    "replies are gone": deleted("final/rollouts.jsonl"),
    "the evaluation is gone": deleted("final/evaluation.json"),
    "prompts are gone": deleted("prompts.jsonl"),
    "the reference is gone": deleted("reference.jsonl"),
    "the configuration is gone": deleted("config.yaml"),
    "the provenance is gone": deleted("provenance.json"),
    "the last line is lost": edited(lambda lines: lines[:-1]),
    "the last line is doubled": edited(lambda lines: [*lines, lines[-1]]),
    "half of the replies are gone": edited(lambda lines: lines[::2]),
    "a third of the replies is changed": edited(a_third_changed),
    "no manifest": unlisted,
}
COMMANDS: dict[str, Callable[[Path, Path], tuple[str, ...]]] = {
    "compare": lambda run, out: (f"{run}/baseline", f"{run}/final", f"--output-dir={out}"),
    "export gym": lambda run, out: (str(run), f"--output-dir={out}"),
    "export verifiers": lambda run, out: (str(run), f"--output-dir={out}"),
}


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        *(("compare", damage) for damage in DAMAGES),
        *((c, "no manifest") for c in COMMANDS),
    ],
)
def test_what_is_not_as_it_was_written_is_refused_by_its_name(
    command: str, damage: str, run: Path, tmp_path: Path
) -> None:
    told = DAMAGES[damage](run)
    said = started(command, *COMMANDS[command](run, tmp_path / "out"), code=1)
    error = said[said.index("error [") :]
    assert told in error and "from a copy" in error
    assert len(error.splitlines()) == 2, error
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


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


def weights_cut(run: Path) -> str:
    path = run / "final_checkpoint" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return "adapter_model.safetensors has"


def weights_changed(run: Path) -> str:
    path = run / "final_checkpoint" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    return "adapter_model.safetensors was changed"


def model_gone(run: Path) -> str:
    shutil.rmtree(run / "final_checkpoint")
    return "final_checkpoint is missing"


@pytest.mark.parametrize(
    "damage",
    [weights_cut, weights_changed, model_gone, unlisted],
)
@pytest.mark.parametrize("command", ["convert", "merge-lora", "evaluate"])
def test_a_model_that_is_not_the_one_that_was_trained_is_refused(
    command: str, damage: Callable[[Path], str], run: Path, tmp_path: Path
) -> None:
    told = damage(run)
    words: tuple[str, ...] = (str(run), str(tmp_path / "out"))
    if command == "evaluate":
        places = (f"--output-dir={tmp_path}", f"equipoise.cache_dir={tmp_path / 'cache'}")
        words = ("fairness", f"--model={run}", "--limit=4", *places)
    said = started(command, *words, code=1)
    assert told in said and "from a copy" in said


@pytest.mark.parametrize("damage", [weights_cut, weights_changed, unlisted])
def test_training_goes_on_from_no_model_that_was_changed(
    damage: Callable[[Path], str], run: Path, tmp_path: Path
) -> None:
    told = damage(run)
    cache = f"equipoise.cache_dir={tmp_path / 'cache'}"
    words = (f"--model-name={run / 'final_checkpoint'}", cache, f"--output-dir={tmp_path}")
    said = started("grpo_fairness", "--config=nemo_configs/smoke.yaml", *words, code=1)
    assert told in said
    assert "from a copy" in said
