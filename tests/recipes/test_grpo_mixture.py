"""The mixture's recipe as a person runs it, small, with all four tasks."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.config import LoadedConfig, Options, load_config
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from tests.command import ROOT
from tests.recipes.audits import started, started_in
from tests.recipes.runs import history, steps_done

TASKS = ("fairness", "dharma", "rag", "pubmedqa")
SMALL = (
    "--config=nemo_configs/smoke.yaml",
    "--no-wandb",
    "checkpointing.save_period=1",
    "equipoise.evaluation.bootstrap_draws=200",
    "equipoise.evaluation.permutations=50",
)


def recipe(folder: Path, *words: str, code: int = 0) -> str:
    return started_in(folder, "grpo_mixture", *words, code=code)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def run(results: Path) -> Path:
    recipe(results, "--run-name=run", *SMALL)
    return results / "mixture" / "run"


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedConfig:
    return load_config("mixture", Options((run / "config.yaml",), resume=run))


def test_every_stage_has_the_figures_of_every_task(run: Path) -> None:
    assert steps_done(run) == 2
    for stage in ("baseline", "final"):
        metrics = json.loads((run / stage / "evaluation.json").read_text())["metrics"]
        assert next(iter(metrics)) == "mean_objective"
        assert {name.partition(".")[0] for name in metrics} == {"mean_objective", *TASKS}
    columns = history(run)[0].keys()
    assert {f"reward/{task}.reward" for task in TASKS} <= columns
    assert {"env/fairness.blind_distance", "env/dharma.reward", "env/mean_objective"} <= columns
    comparison = json.loads((run / "comparison.json").read_text())["metrics"]
    for name in ("fairness.blind_distance", "dharma.reward", "rag.reward", "pubmedqa.reward"):
        assert comparison[name]["guard"] in ("kept", "lost", "not shown")
    assert "mean objective" in (run / "report.html").read_text()
    policies = json.loads((run / "modes.json").read_text())["trivial"]["policies"]
    assert {"fairness.random race", "rag.copied_plan", "blinded"} <= policies.keys()


def test_the_scales_are_written_down_and_constant(run: Path) -> None:
    before, after = (
        json.loads((run / s / "mixture.json").read_text()) for s in ("baseline", "final")
    )
    assert before == after
    assert set(before) == set(TASKS)
    assert all(task["scale"] > 0 for task in before.values())


@pytest.mark.parametrize("task", TASKS)
def test_a_task_pays_to_the_bit_what_it_pays_alone(
    run: Path, loaded: LoadedConfig, task: str
) -> None:
    """The task's own environment, on its own prompts under their own names."""

    def own(rollouts):
        return [
            replace(
                rollout,
                prompt_id=rollout.prompt_id.removeprefix(f"{task}/"),
                set_id=rollout.set_id.removeprefix(f"{task}/"),
                metadata={k: v for k, v in rollout.metadata.items() if k != "task"},
            )
            for rollout in rollouts
            if rollout.metadata["task"] == task
        ]

    mixed = loaded.env_settings.mixed[task]
    environment = mixed.environment_class(mixed.environment_settings)
    if environment.reference_generations:
        environment.set_reference(own(read_rollouts(run / "reference.jsonl")))
    scale = json.loads((run / "baseline" / "mixture.json").read_text())[task]["scale"]
    for stage in ("baseline", "final"):
        rollouts, scores = read_scored_rollouts(RunDirectory(run).rollouts(stage))
        mine = [s for r, s in zip(rollouts, scores, strict=True) if r.metadata["task"] == task]
        alone = environment.score(own(rollouts))
        assert len(alone) > 8
        assert [s.components[f"{task}.reward"] for s in mine] == [s.value for s in alone]
        assert [s.value for s in mine] == [s.value / scale for s in alone]


def test_the_gate_takes_the_stages_of_the_run(run: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        *("-m", "equipoise", "gate", f"{run / 'baseline'}", f"{run / 'final'}"),
        f"--output={tmp_path / 'gate'}",
    ]
    found = subprocess.run(words, cwd=ROOT, text=True, capture_output=True)
    assert found.returncode in (0, 3, 4), found.stderr
    gated = json.loads((tmp_path / "gate" / "gate.json").read_text())
    text = json.dumps(gated)
    assert all(f"{task}." in text for task in TASKS)


def test_a_run_that_stopped_goes_on_with_the_same_scales_and_order(
    run: Path, results: Path
) -> None:
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    for name in ("final", "final_checkpoint", "comparison.json", "modes.json"):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    newest = max(
        (copy / "checkpoints").iterdir(),
        key=lambda path: int(path.name.split("-")[-1].split("_")[-1]),
    )
    shutil.rmtree(newest)
    started("grpo_mixture", f"--resume={copy}")
    assert history(copy) == history(run)
    for file in ("baseline/mixture.json", "final/mixture.json", "training/rollouts.jsonl"):
        assert (copy / file).read_bytes() == (run / file).read_bytes()


def test_an_unknown_task_is_one_message(results: Path) -> None:
    words = "env.mixture.tasks.songs={environment: environments.songs.Songs, weight: 1}"
    said = recipe(results, "--dry-run", words, code=2)
    assert "Traceback" not in said
    assert said.count("cannot import environments.songs") == 1
