"""The retrieval recipe as a person runs it, small, on invented questions."""

import json
from pathlib import Path

import pytest

from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from tests.recipes.audits import SMOKE, started_in

SMALL = (SMOKE, "--no-wandb", "--num-samples=60", "equipoise.evaluation.bootstrap_draws=200")


def recipe(folder: Path, *words: str, code: int = 0) -> str:
    return started_in(folder, "grpo_rag", *words, code=code)


@pytest.fixture(scope="module")
def run(results: Path) -> Path:
    recipe(results, "--run-name=run", *SMALL)
    return results / "rag" / "run"


def test_evaluation_has_the_names_that_other_programs_read(run: Path) -> None:
    found = json.loads((run / "final" / "evaluation.json").read_text())
    assert {"accuracy", "retrieval_recall", "format_rate"} <= found["metrics"].keys()
    assert next(iter(found["metrics"])) == "accuracy"


def test_the_modes_are_compared_on_the_same_questions(run: Path) -> None:
    found = json.loads((run / "modes.json").read_text())
    modes = [
        *("no_retrieval", "question", "question_more_documents"),
        *("question_without_its_first_sentence", "planning", "planning_grpo"),
    ]
    assert list(found["modes"]) == modes
    assert all(found["modes"][mode]["accuracy"]["low"] is not None for mode in modes)
    assert len(found["comparisons"]) == 15
    assert {"copied_plan", "copied_question", "copied_options"} <= set(
        found["trivial"]["baselines"]
    )
    assert set(found["seconds"]) == {"search", "answer"}


def test_the_report_shows_modes_queries_and_documents(run: Path) -> None:
    report = (run / "report.html").read_text()
    assert "Modes side by side" in report
    assert "Questions side by side" in report
    assert "Documents found" in report
    assert "say nothing" in report or "says nothing" in report


@pytest.mark.deep
def test_a_dry_run_goes_through_every_part_and_trains_nothing(results: Path) -> None:
    recipe(results, "--planner-only")  # makes the index
    said = recipe(results, "--dry-run", "--run-name=dry", "--num-samples=100")
    assert "passages in" in said
    assert not (results / "rag" / "dry").exists()


@pytest.mark.deep
def test_a_dry_run_builds_no_index(tmp_path: Path) -> None:
    said = recipe(tmp_path, "--dry-run", "--run-name=dry")
    assert "a run builds it" in said
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["dry.dry-run.yaml"]


@pytest.mark.deep
def test_planner_only_makes_what_is_missing_and_stops(results: Path) -> None:
    recipe(results, "--planner-only", "--run-name=planned", "equipoise.data.seed=3")
    assert (results / "cache" / "rag" / "invented-3" / "manifest.json").exists()
    assert not (results / "rag" / "planned").exists()


def test_the_published_hyperparameters_are_configured() -> None:
    scales = [CONFIG_FOLDER / f"{name}.yaml" for name in ("small", "medium", "large")]
    for scale in scales:
        loaded = load_config("rag", Options((scale,)))
        config = loaded.config
        assert config.grpo.num_generations_per_prompt == 8
        assert config.grpo.max_num_steps == 2000
        assert config.loss_fn.reference_policy_kl_penalty == 0.02
        assert config.loss_fn.ratio_clip_min == config.loss_fn.ratio_clip_max == 0.2
        assert config.policy.optimizer.kwargs["lr"] == 5e-6
        assert config.policy.generation.max_new_tokens == 256
        lora = config.policy.dtensor_cfg.lora_cfg
        assert (lora.enabled, lora.dim, lora.alpha) == (True, 16, 32)
        schedule = config.policy.scheduler
        steps = schedule[0]["kwargs"]["total_iters"] if schedule else warmup_of_megatron(loaded)
        assert steps == 0.05 * 2000


@pytest.mark.parametrize(("steps", "warm_up"), [("50", 2), ("7", 1)])
def test_any_number_of_steps_has_a_warm_up_of_whole_steps(steps: str, warm_up: int) -> None:
    scale = CONFIG_FOLDER / "small.yaml"
    options = Options((scale,), assignments=(f"grpo.max_num_steps={steps}",))
    first, _, last = load_config("rag", options).config.policy.scheduler
    assert first["kwargs"]["total_iters"] == last["milestones"][0] == warm_up


def warmup_of_megatron(loaded: LoadedConfig) -> int:
    assert loaded.config.policy.megatron_cfg.enabled
    return int(loaded.resolved["policy"]["megatron_cfg"]["scheduler"]["lr_warmup_iters"])


def test_the_example_for_medqa_is_valid() -> None:
    files = (CONFIG_FOLDER / "small.yaml", CONFIG_FOLDER / "examples" / "rag_medqa.yaml")
    loaded = load_config("rag", Options(files))
    settings = loaded.prompt_settings.model_dump()
    generator = loaded.resolved["env"]["rag"]["generator"]
    assert settings["planner"]["endpoint"]["url"] == generator["endpoint"]["url"]
    assert settings["retriever"] == "dense"
    assert settings["index"] == "indexes/textbooks"
