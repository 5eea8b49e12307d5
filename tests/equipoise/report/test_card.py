"""The model card: what it says, that the hub's library reads it, and what cannot break it."""

import json
import shutil

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from equipoise.files.disk import read_json
from equipoise.report.card import write_card
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Ledger, Provenance
from equipoise.run.seals import damage_of, seal
from tests.refusals import refusal

TABLE = "x | y |\n|---|\n"
HOSTILE = f"{TABLE}<script>alert(1)</script> [a](http://e.vil) ![i](//e.vil/i) `c` **b**\n---\n#"


def change(path, **changes):
    content = read_json(path) | changes
    if path.name == "provenance.json":
        content.pop("sha256", None)
        Ledger(path).create(Provenance.model_validate(content))
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def run(finished_run):
    """A finished run of a LoRA on a model of the hub."""
    final = finished_run / "final_checkpoint"
    final.mkdir()
    (final / "README.md").write_text("# Model Card for Model ID\n[More Information Needed]")
    adapter = {"base_model_name_or_path": "org/base_1", "r": 32, "lora_alpha": 64}
    (final / "adapter_config.json").write_text(json.dumps(adapter))
    hashes = {"model": "org/base_1@0123abc", "prompts": "sha256:77"}
    change(finished_run / "provenance.json", model="org/base_1", local_model=False, hashes=hashes)
    return finished_run


def card_of(run):
    write_card(run)
    return ModelCard.load(run / "final_checkpoint" / "README.md")


def html_of(card):
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(card.text)


def test_it_says_what_was_trained_how_and_what_came_of_it(run):
    card = card_of(run)
    assert (card.data.base_model, card.data.base_model_relation) == ("org/base_1", "adapter")
    assert (card.data.library_name, card.data.tags) == ("peft", ["equipoise", "fairness", "lora"])
    for told in (
        *("White patients were sent to surgery 14.1", "Worse: case error", "rank 32, alpha 64"),
        *("org/base\\_1\\@0123abc", "grpo\\_fairness.py --run-name local grpo.seed=7", "8e86b6f0"),
    ):
        assert told in card.text
    assert "More Information Needed" not in card.text
    assert html_of(card).count("<tr>") == 1 + len(read_json(run / "comparison.json")["metrics"])


def test_a_whole_model_and_a_local_one(run):
    (run / "final_checkpoint" / "adapter_config.json").unlink()
    data = card_of(run).data
    assert (data.library_name, data.base_model_relation) == ("transformers", "finetune")
    notice = {"local_model": True, "model": "local", "local_model_notice": "It says nothing."}
    change(run / "provenance.json", **notice)
    card = card_of(run)
    assert card.data.base_model is None, "the hub refuses a base that is not a name on it"
    assert card.text.index("> **It says nothing.**") < card.text.index("sent to surgery")


def test_texts_of_others_break_no_table_and_add_no_tag(run):
    before = html_of(card_of(run))
    change(run / "provenance.json", model=HOSTILE, run_name=HOSTILE, task=HOSTILE, engine=HOSTILE)
    change(run / "provenance.json", command=["python", "recipes/x.py", "```\n# h\n<b>"])
    change(run / "final_checkpoint" / "adapter_config.json", r=HOSTILE)
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


def test_the_same_files_give_the_same_bytes_and_no_seal_is_broken(run):
    directory = RunDirectory(run)
    (directory.final_checkpoint / "model.safetensors").write_bytes(b"weights")
    seal(directory)
    write_card(run)
    first = (directory.final_checkpoint / "README.md").read_bytes()
    assert not damage_of(directory, "final_checkpoint"), "else --resume would train again"
    write_card(run)
    assert (directory.final_checkpoint / "README.md").read_bytes() == first


def test_a_run_that_is_not_finished_says_so_and_one_without_weights_has_no_card(run):
    for name in ("comparison.json", "final/evaluation.json", "final/rollouts.jsonl"):
        (run / name).unlink()
    assert "This run is not finished" in card_of(run).text
    shutil.rmtree(run / "final_checkpoint")
    write_card(run)
    assert not (run / "final_checkpoint").exists()


def test_no_link_is_followed(run, tmp_path):
    final = run / "final_checkpoint"
    (final / "adapter_config.json").unlink()
    (final / "adapter_config.json").symlink_to("/etc/hostname")
    with refusal("model.link-outside", "adapter_config.json"):
        write_card(run)
    (tmp_path / "elsewhere").mkdir()
    final.rename(run / "other")
    final.symlink_to(tmp_path / "elsewhere")
    with refusal("card.link", "final_checkpoint"):
        write_card(run)
    assert not any((tmp_path / "elsewhere").iterdir())
