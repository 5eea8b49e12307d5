"""The recipe as a person runs it: a process of its own, with a model that takes seconds to make."""

import json
import signal

import pytest

from tests.recipes.runs import SMALL, Runs, assert_same_files, ended, history, steps_done, wait_for

SECRETS = {"WANDB_API_KEY": "wandb-key-of-the-test", "HF_TOKEN": "hf_token_of_the_test"}
WORDS = (
    *(*SMALL, "--iterations=8", "checkpointing.save_period=3"),
    *("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=100"),
    *("equipoise.probe.prompts=8", "equipoise.probe.constants=4", "equipoise.probe.rounds=1"),
)
UNTRACKED = "--no-wandb"
LORA = ("--lora-rank=4",)
WHOLE = ("policy.dtensor_cfg.lora_cfg.enabled=false",)


def when(process, reached, sent):
    """Send a signal as soon as something is reached; the exit code."""
    wait_for(reached, process)
    process.send_signal(sent)
    process.communicate(timeout=600)
    return process.returncode


def assert_same_result(run, other, weights):
    assert evaluation(run, "baseline") == evaluation(other, "baseline")
    assert_same_files(run, other, weights)


def evaluation(run, stage):
    """Read the evaluation of a stage without the seconds that it took."""
    found = json.loads((run / stage / "evaluation.json").read_text())
    return {name: value for name, value in found.items() if not name.endswith("_seconds")}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("results"), WORDS, SECRETS | {"WANDB_MODE": "offline"})


@pytest.fixture(scope="module")
def output(recipe):
    return ended(recipe.new("whole", *WHOLE))


@pytest.fixture(scope="module")
def whole(recipe, output):
    return recipe.run("whole")


@pytest.fixture(scope="module")
def lora(recipe, whole):
    ended(recipe.new("lora", UNTRACKED, *LORA))
    return recipe.run("lora")


def test_a_run_leaves_everything_behind(whole):
    assert {path.name for path in whole.iterdir()} >= {
        *("config.yaml", "provenance.json", "prompts.jsonl", "prompts.manifest.json"),
        *("reference.jsonl", "baseline", "final", "comparison.json", "training_history.jsonl"),
        *("training", "checkpoints", "final_checkpoint", "report.html"),
    }
    provenance = json.loads((whole / "provenance.json").read_text())
    assert provenance["local_model"] is True
    assert set(provenance["hashes"]) == {
        *("prompts", "model", "chat_template", "reference", "environment")
    }
    assert set(provenance["seconds"]) == {*("reference", "baseline", "probe", "training", "final")}


def test_evaluation_holds_what_other_programs_read(whole):
    found = json.loads((whole / "final" / "evaluation.json").read_text())
    lines = (whole / "final" / "rollouts.jsonl").read_text().splitlines()
    assert (found["schema"], found["task"], found["split"]) == (1, "fairness", "test")
    assert found["n_rollouts"] == len(lines) == 2 * found["n_prompts"]
    assert {"disparity_ratio", "gini", "variance"} <= found["metrics"].keys()
    for name in ("disparity_ratio", "gini", "variance"):
        assert {"value", "low", "high", "floor", "p"} <= found["metrics"][name].keys()
    assert found["metrics"].keys() >= {
        *("parse_rate", "clinical_slope", "case_error", "decision_spread", "flip_rate"),
        "mean_invasiveness",
    }
    assert set(found["by_race"]) == {"White", "Black", "Hispanic or Latino", "Asian"}
    assert set(found["by_hold_out"]) == {"new combination", "new injury"}
    assert json.loads(lines[0]).keys() >= {
        *("prompt_id", "set_id", "split", "metadata", "prompt", "completion", "value"),
        *("components", "error", "evidence", "outcome"),
    }


def test_history_has_a_row_per_step_and_training_changed_the_model(whole):
    rows = history(whole)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all({"reward", "env/disparity_ratio", "loss"} <= row.keys() for row in rows)
    before, after = (
        (whole / stage / "rollouts.jsonl").read_text() for stage in ("baseline", "final")
    )
    assert before != after


@pytest.mark.deep
def test_an_adapter_loads_with_peft_and_differs_from_its_base(lora, recipe):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = next((recipe.folder / "cache").glob("tiny-*[0-9a-f]"))
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder), str(lora / "final_checkpoint")
    )
    tokens = torch.arange(20)[None]
    with torch.no_grad(), model.disable_adapter():
        base = model(tokens).logits
    with torch.no_grad():
        assert not torch.equal(model(tokens).logits, base)
    assert not (lora / "final_checkpoint" / "ref").exists()  # TRL's, of the KL penalty


def test_piped_output_is_plain_lines(output):
    assert "\x1b" not in output
    assert "say nothing of any clinical model" in output
    for heading in ("BASELINE EVALUATION", "GRPO TRAINING, 8 STEPS", "FINAL EVALUATION"):
        assert heading in output
    assert "step    8/8" in output
    assert "Verdict" in output


def test_no_secret_is_written(whole, output):
    for file in whole.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        for secret in SECRETS.values():
            assert secret.encode() not in content, file
            assert secret not in output


def kill_moments(run):
    """While the baseline is sampled, before the first checkpoint, then after the second one."""
    yield lambda: (run / "reference.jsonl").exists()
    yield lambda: steps_done(run) >= 2
    yield lambda: steps_done(run) >= 7


@pytest.mark.deep
def test_resume_after_kill_9_gives_the_same_bits(recipe, whole):
    run = recipe.run("killed")
    process = recipe.new("killed", UNTRACKED, *WHOLE)
    for reached in kill_moments(run):
        assert when(process, reached, signal.SIGKILL) == -signal.SIGKILL
        process = recipe.resume("killed")
    ended(process)
    assert_same_result(run, whole, "final_checkpoint/model.safetensors")


@pytest.mark.deep
def test_sigterm_leaves_a_checkpoint_and_a_report(recipe, lora):
    run = recipe.run("stopped")
    process = recipe.new("stopped", UNTRACKED, *LORA)
    assert when(process, lambda: steps_done(run) >= 4, signal.SIGTERM) == 130
    kept = steps_done(run)
    assert kept < 8
    assert (run / "checkpoints" / f"checkpoint-{kept}" / "complete.json").exists()
    assert (run / "report.html").exists()
    ended(recipe.resume("stopped"))
    assert_same_result(run, lora, "final_checkpoint/adapter_model.safetensors")
