"""The model card: what it says, that the hub's library reads it, and what cannot break it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from data_prep.files import read_json
from equipoise.report.card import read_trained, write_card
from equipoise.report.head import run_notes
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import REPLACES, Ledger
from equipoise.run.seals import damage_of, record_files
from tests.refusals import refusal

TABLE = "x | y |\n|---|\n"
HOSTILE = f"{TABLE}<script>alert(1)</script> [a](http://e.vil) ![i](//e.vil/i) `c` **b**\n---\n#"
LORA = {"enabled": True, "dim": 32, "alpha": 64}
CONFIG = {
    "grpo": {"max_num_steps": 60, "num_prompts_per_step": 64, "num_generations_per_prompt": 16},
    "policy": {
        "dtensor_cfg": {"lora_cfg": LORA},
        "optimizer": {"kwargs": {"lr": 0.01}},
        "generation": {"max_new_tokens": 48},
    },
    "env": {"fairness": {"reference_weight": 1.8, "index": "/home/me/index"}},
}


def change(path: Path, **changes: Any) -> None:
    content = read_json(path) | changes
    if path.name == "provenance.json":
        Ledger(path).create({k: v for k, v in content.items() if k != "sha256"})
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def run(finished_run: Path) -> Path:
    """A finished run of a LoRA on a model of the hub."""
    final = finished_run / "final_checkpoint"
    final.mkdir()
    (final / "README.md").write_text("# Model Card for Model ID\n[More Information Needed]")
    (final / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base_1"}')
    (finished_run / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    prompts = {"schema": 1, "prompts": {"train": 1436, "test": 524}, "about": {"module": "a.b"}}
    (finished_run / "prompts.manifest.json").write_text(json.dumps(prompts))
    hashes = {"model": "org/base_1@0123abc", "prompts": "sha256:77"}
    change(finished_run / "provenance.json", model="org/base_1", local_model=False, hashes=hashes)
    return finished_run


def card_of(run: Path) -> ModelCard:
    path = write_card(run)
    assert path == run / "final_checkpoint" / "README.md"
    return ModelCard.load(path)


def html_of(card: ModelCard) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(card.text)


def test_the_hubs_library_reads_the_figures_back(run: Path) -> None:
    card = card_of(run)
    evaluation = read_json(run / "final" / "evaluation.json")
    assert {r.metric_type: r.metric_value for r in card.data.eval_results} == {
        name: metric["value"] for name, metric in evaluation["metrics"].items()
    }
    ratio = next(r for r in card.data.eval_results if r.metric_type == "disparity_ratio")
    assert (ratio.metric_name, ratio.dataset_split) == ("Disparity ratio", "test")
    assert ratio.dataset_revision == "sha256:77"
    metric = evaluation["metrics"]["disparity_ratio"]
    assert ratio.metric_args == {
        "low": metric["low"],
        "high": metric["high"],
        "confidence": 0.95,
        "before": 1.39,
        "verdict": "better",
    }
    assert ModelCard(str(card)).data.eval_results == card.data.eval_results
    assert (card.data.base_model, card.data.library_name) == ("org/base_1", "peft")
    assert {"grpo", "lora", "fairness"} <= set(card.data.tags)


def test_it_says_what_was_trained_how_and_what_came_of_it(run: Path) -> None:
    text = card_of(run).text
    assert "More Information Needed" not in text
    assert "/home/me" not in text
    for told in (
        "The disparity ratio fell from 1.39 (95% CI 1.34\u20131.44) to 1.03",
        "Worse: case error, decision spread.",
        "**Method:** GRPO, LoRA of rank 32 and alpha 64",
        "**Steps:** 60",
        "**Prompts:** 1,436 train, 524 test",
        "**Reward: reference weight:** 1.8",
        "**Its identity:** org/base\\_1\\@0123abc",
        'AutoModelForCausalLM.from_pretrained("org/base_1"), name)',
        "max_new_tokens=48",
        "uv run recipes/grpo_fairness.py --run-name local grpo.seed=7",
        "8e86b6f0a1b2c3d4e5f60718293a4b5c6d7e8f90",
        "not shown to be kept: case error, decision spread.",
    ):
        assert told in text
    rows = html_of(card_of(run)).count("<tr>")
    assert rows == 1 + len(read_json(run / "comparison.json")["metrics"])


def test_guards_and_policies_that_are_as_good_stand_first(run: Path) -> None:
    rows = read_json(run / "comparison.json")["metrics"]
    rows["parse_rate"] |= {"guard": "lost"}
    change(run / "comparison.json", metrics=rows)
    reward = {"reward": {"value": 1.5, "low": 1.4, "high": 1.6}}
    trivial = {"metric": "gini", "policies": {"constant": {"note": "one reply", "metrics": reward}}}
    trivial |= {"not_beaten": ["constant"]}
    (run / "modes.json").write_text(json.dumps({"trivial": trivial}))
    text = card_of(run).text
    first = text.index("- Lost guard: parse rate, 0.991 before and 0.994 after training.")
    assert first < text.index("that the trained model does not beat in reward: constant.")
    assert text.index("beat in reward: constant.") < text.index("## Measured")
    assert "As good as the trained model, as far as was shown: constant." in text
    assert "| constant<br>one reply | 1.50 (1.40\u20131.60) |" in text
    change(run / "modes.json", trivial=trivial | {"not_beaten": []})
    assert "The trained model is better than each of them in reward." in card_of(run).text
    trivial["policies"] = {"constant": {"metrics": {"reward": {"value": None}}}}
    change(run / "modes.json", trivial=trivial | {"not_beaten": []})
    text = card_of(run).text
    assert "None of them could be measured in reward." in text and "better than each" not in text


def test_the_outcome_and_the_policies_are_told_by_the_objective(run: Path) -> None:
    for stage in ("baseline", "final"):
        change(run / stage / "evaluation.json", objective="gini")
    figure = {"gini": {"value": 0.05, "low": 0.04, "high": 0.06}}
    policies = {"random race": {"note": "by chance", "metrics": figure}}
    trivial = {"objective": "gini", "policies": policies, "not_beaten": []}
    (run / "modes.json").write_text(json.dumps({"trivial": trivial}))
    text = card_of(run).text
    assert "The Gini coefficient fell from 0.0663" in text
    assert "The trained model is better than each of them in Gini coefficient." in text
    assert "| random race<br>by chance | 0.0500 (0.0400\u20130.0600) |" in text


def test_a_local_tiny_model_shows_the_pipeline_and_nothing_else(run: Path) -> None:
    told = {"local_model": True, "model": "local", "local_model_notice": "It says nothing of use."}
    change(run / "provenance.json", **told, hashes={"model": "sha256:12"})
    adapter = run / "final_checkpoint" / "adapter_config.json"
    change(adapter, base_model_name_or_path="/home/me/tiny_1")
    card = card_of(run)
    outcome = card.text.index("disparity ratio fell")
    assert card.data.base_model is None, "the hub refuses a base that is no name on it"
    assert card.text.index("> **It says nothing of use.**") < outcome
    assert "Anything but looking at how the pipeline works" in card.text
    assert "/home/me/tiny\\_1" in card.text
    change(run / "provenance.json", local_model=False)
    assert "Anything but" not in card_of(run).text


def test_all_weights_merged_adapters_and_megatron_are_told_apart(run: Path) -> None:
    (run / "final_checkpoint" / "adapter_config.json").unlink()
    card = card_of(run)
    assert "LoRA of rank 32 and alpha 64, merged into the base" in card.text
    assert "PeftModel" not in card.text
    assert card.data.library_name == "transformers"
    megatron = {"enabled": True, "peft": {"enabled": False}, "optimizer": {"lr": 0.5}}
    policy = CONFIG["policy"] | {"megatron_cfg": megatron}
    (run / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"policy": policy}))
    text = card_of(run).text
    assert "GRPO, all weights" in text
    assert "**Learning rate:** 0.5" in text


def test_texts_of_others_break_no_table_and_add_no_tag(run: Path) -> None:
    before = html_of(card_of(run))
    change(run / "provenance.json", model=HOSTILE, run_name=HOSTILE, task=HOSTILE, engine=HOSTILE)
    change(run / "provenance.json", command=["python", "recipes/x.py", "```\n# h\n<b>"])
    change(run / "final_checkpoint" / "adapter_config.json", base_model_name_or_path=HOSTILE)
    for stage in ("baseline", "final"):
        path = run / stage / "evaluation.json"
        said = read_json(path)["presentation"]
        words = {name: {"label": HOSTILE, "note": HOSTILE} for name in said["words"]}
        change(path, presentation=said | {"words": words, "title": HOSTILE})
    card = card_of(run)
    after = html_of(card)
    for tag in ("<tr>", "<td>", "<th>", "<h1>", "<h2>", "<code", "<li>"):
        assert after.count(tag) == before.count(tag), tag
    for tag in ("<script", "<img", "<a ", "<em"):
        assert tag not in after, tag
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in after
    assert card.data.model_name == HOSTILE
    assert all(r.metric_name.lower().startswith("x | y") for r in card.data.eval_results[:3])


def test_the_same_files_give_the_same_bytes_and_no_seal_is_broken(run: Path) -> None:
    directory = RunDirectory(run)
    (directory.final_checkpoint / "model.safetensors").write_bytes(b"weights")
    record_files(directory, directory.final_checkpoint)
    first = write_card(run).read_bytes()
    assert not damage_of(directory, "final_checkpoint"), "else --resume would train again"
    assert write_card(run).read_bytes() == first
    (directory.final_checkpoint / "model.safetensors").write_bytes(b"other")
    assert damage_of(directory, "final_checkpoint"), "the weights are sealed all the same"


def test_a_run_that_is_not_finished_says_so_and_has_no_figures_for_the_hub(run: Path) -> None:
    for name in ("comparison.json", "final/evaluation.json", "final/rollouts.jsonl"):
        (run / name).unlink()
    card = card_of(run)
    assert "This run is not finished" in card.text
    assert card.data.eval_results is None


def test_without_weights_there_is_no_card_and_damage_is_named(finished_run: Path) -> None:
    assert write_card(finished_run) is None
    (finished_run / "final_checkpoint").mkdir()
    (finished_run / "config.yaml").write_text("a: [")
    with refusal("report.damaged-config", "config.yaml"):
        write_card(finished_run)
    (finished_run / "config.yaml").write_bytes(b"a: 1\n" * 50_000)
    with refusal("report.damaged-config", "is longer than"):
        write_card(finished_run)


def test_a_run_that_is_trained_on_says_whose_result_it_shows(run: Path) -> None:
    """Its configuration is that of the new length, and its model that of the old one."""
    kept = run / "earlier" / "1"
    kept.mkdir(parents=True)
    (kept / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    longer = {**CONFIG, "grpo": {**CONFIG["grpo"], "max_num_steps": 999}}
    (run / "config.yaml").write_text(yaml.safe_dump(longer))
    assert read_trained(RunDirectory(run)).config == longer
    assert not any("trained on" in note for note in run_notes(read_run(run)))
    change(run / "provenance.json", **{REPLACES: "earlier/1"})
    assert read_trained(RunDirectory(run)).config == CONFIG
    (note,) = (note for note in run_notes(read_run(run)) if "trained on" in note)
    assert "its model are those before these steps" in note and "earlier/1" in note
