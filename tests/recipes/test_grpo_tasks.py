"""The recipes of dharma, PubMedQA and retrieval as a person runs them, with models of seconds."""

import pytest

from data_prep.pubmedqa.prompts import prompt_record
from data_prep.pubmedqa.sources import Item, Section
from environments.pubmedqa import LABELS
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.files.disk import read_json
from equipoise.files.records import read_prompts, write_prompts
from tests.recipes.audits import SMOKE, started, started_in

FEW = "equipoise.evaluation.bootstrap_draws=200"
SMALL = {
    "dharma": ("--num-samples=160", "equipoise.local_model.steps=40"),
    "pubmedqa": (
        *("--num-samples=120", "equipoise.local_model.steps=40"),
        "equipoise.evaluation.generations=1",
    ),
    "rag": ("--num-samples=60",),
}
#: What other programs read of an evaluation.
METRICS = {
    "dharma": (
        "dharma_violation_rate ahimsa_violation_rate helpfulness_violation_rate over_refusal_rate "
        "under_refusal_rate combined_score unseen_under_refusal_rate right_advice_rate "
        "needless_referral_rate emergency_sent_rate"
    ),
    "pubmedqa": "accuracy macro_f1 parse_rate majority_baseline format_rate",
    "rag": "accuracy retrieval_recall format_rate",
}
#: Said in the output and in the report, of the local model.
NOTICES = {
    "dharma": "say nothing of any real assistant",
    "pubmedqa": "say nothing of PubMedQA, of any clinical model or of any drug",
    "rag": "says nothing of any clinical model, of medical retrieval or of any corpus",
}


@pytest.fixture(scope="module")
def output(results):
    """Return what the run of a task printed; each runs once."""
    printed: dict[str, str] = {}

    def of(task):
        if task not in printed:
            words = (SMOKE, "--run-name=run", "--no-wandb", FEW, *SMALL[task])
            printed[task] = started_in(results, f"grpo_{task}", *words)
        return printed[task]

    return of


@pytest.mark.parametrize("task", METRICS)
def test_files_hold_what_other_programs_and_people_read(task, output, results):
    printed, run, names = output(task), results / task / "run", {*METRICS[task].split()}
    assert NOTICES[task] in " ".join(printed.split())
    assert NOTICES[task] in (run / "report.html").read_text()
    for stage in ("baseline", "final"):
        evaluation = read_json(run / stage / "evaluation.json")
        assert (evaluation["task"], evaluation["split"], evaluation["n_failed"]) == (
            *(task, "test"),
            0,
        )
        assert evaluation["metrics"].keys() >= names
        assert all(evaluation["metrics"][name].keys() >= {"value", "low"} for name in names)
    assert read_json(run / "comparison.json")["metrics"].keys() >= names - {"majority_baseline"}


def test_predictions_agree_with_the_evaluation(output, results):
    output("pubmedqa")
    run = results / "pubmedqa" / "run"
    gold = {r.id: r.metadata["gold"] for r in read_prompts(run / "prompts.jsonl")}
    for stage in ("baseline", "final"):
        predicted = read_json(run / stage / "predictions.json")
        evaluation = read_json(run / stage / "evaluation.json")
        assert set(predicted.values()) <= set(LABELS)
        assert len(predicted) == evaluation["n_prompts"] == evaluation["n_rollouts"] == 24
        accuracy = sum(gold[name] == label for name, label in predicted.items()) / len(predicted)
        assert accuracy == pytest.approx(evaluation["metrics"]["accuracy"]["value"])
    compared = read_json(run / "comparison.json")["metrics"]
    tests = compared["accuracy"]["test"], compared["macro_f1"]["test"]
    assert tests == ("mid-p McNemar", "paired bootstrap")


def test_the_modes_of_retrieval_are_compared_on_the_same_questions(output, results):
    output("rag")
    found = read_json(results / "rag" / "run" / "modes.json")
    modes = [
        *("no_retrieval", "question", "question_more_documents"),
        *("question_without_its_first_sentence", "planning", "planning_grpo"),
    ]
    assert list(found["modes"]) == modes
    assert all(found["modes"][mode]["accuracy"]["low"] is not None for mode in modes)
    assert len(found["comparisons"]) == 15
    copies = {"copied_plan", "copied_question", "copied_options"}
    assert copies <= set(found["trivial"]["baselines"])
    assert set(found["seconds"]) == {"search", "answer"}
    report = (results / "rag" / "run" / "report.html").read_text()
    for heading in ("Modes side by side", "Questions side by side", "Documents found"):
        assert heading in report


@pytest.mark.deep
def test_a_dry_run_says_how_often_the_judge_is_asked(tmp_path):
    words = (SMOKE, *SMALL["dharma"], "--dry-run")
    assert "model calls" not in started_in(tmp_path, "grpo_dharma", *words)
    judge = "env.dharma.judge={endpoint: {url: 'http://localhost:1/v1', model: m}}"
    lines = started_in(tmp_path, "grpo_dharma", *words, judge).split("\n")
    cells = [[cell.strip() for cell in line.split("│")] for line in lines]
    rows = {row[1]: row[2] for row in cells if len(row) > 2}
    # Each generation, and what the probe has scored without generating it.
    assert (rows["generations in all"], rows["model calls"]) == ("336", "<= 1,128")


@pytest.mark.deep
def test_planner_only_makes_the_index_that_a_dry_run_does_not(tmp_path):
    said = started_in(tmp_path, "grpo_rag", "--dry-run", "--run-name=dry")
    assert "a run builds it" in said
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["dry.dry-run.yaml"]
    started_in(tmp_path, "grpo_rag", "--planner-only", "equipoise.data.seed=3")
    assert (tmp_path / "cache" / "rag" / "invented-3" / "manifest.json").exists()
    words = ("--dry-run", "--num-samples=100", "equipoise.data.seed=3")
    assert "passages in" in started_in(tmp_path, "grpo_rag", *words)
    assert not list((tmp_path / "rag").glob("*/"))


def test_a_prompt_file_without_gold_is_refused(tmp_path):
    item = Item("a", "Is it so?", (Section("", "a"),), "perhaps")
    write_prompts(tmp_path / "prompts.jsonl", [prompt_record(item, "train", 3, 960)], {})
    path = f"equipoise.data.data_path={tmp_path / 'prompts.jsonl'}"
    words = ("--config=nemo_configs/small.yaml", "--dry-run", path, f"--output-dir={tmp_path}")
    assert "1 prompts have no gold" in started("grpo_pubmedqa", *words, code=1)


@pytest.mark.parametrize("scale", ["small", "medium", "large"])
def test_the_published_hyperparameters_of_retrieval_are_configured(scale):
    loaded = load_config("rag", Options((CONFIG_FOLDER / f"{scale}.yaml",)))
    policy, grpo, loss = loaded.config.policy, loaded.config.grpo, loaded.config.loss_fn
    assert (grpo.num_generations_per_prompt, grpo.max_num_steps) == (8, 2000)
    assert loss.reference_policy_kl_penalty == 0.02
    assert loss.ratio_clip_min == loss.ratio_clip_max == 0.2
    assert (policy.optimizer.kwargs["lr"], policy.generation.max_new_tokens) == (5e-6, 256)
    lora = policy.dtensor_cfg.lora_cfg
    assert (lora.enabled, lora.dim, lora.alpha) == (True, 16, 32)
    megatron = loaded.resolved["policy"].get("megatron_cfg", {}).get("scheduler", {})
    schedule = policy.scheduler
    warm_up = schedule[0]["kwargs"]["total_iters"] if schedule else megatron["lr_warmup_iters"]
    assert warm_up == 0.05 * 2000


@pytest.mark.parametrize(("steps", "warm_up"), [("50", 2), ("7", 1)])
def test_any_number_of_steps_has_a_warm_up_of_whole_steps(steps, warm_up):
    scale = CONFIG_FOLDER / "small.yaml"
    options = Options((scale,), assignments=(f"grpo.max_num_steps={steps}",))
    first, _, last = load_config("rag", options).config.policy.scheduler
    assert first["kwargs"]["total_iters"] == last["milestones"][0] == warm_up


def test_the_example_for_medqa_is_valid():
    files = (CONFIG_FOLDER / "small.yaml", CONFIG_FOLDER / "examples" / "rag_medqa.yaml")
    loaded = load_config("rag", Options(files))
    settings = loaded.prompt_settings.model_dump()
    generator = loaded.resolved["env"]["rag"]["generator"]
    assert settings["planner"]["endpoint"]["url"] == generator["endpoint"]["url"]
    assert (settings["retriever"], settings["index"]) == ("dense", "indexes/textbooks")
