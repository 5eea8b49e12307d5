"""What a cold start shows: a task's own replies or a file's, and no prompt that is held out."""

import json

import pytest

from data_prep.records import write_prompts
from data_prep.warm_start import Example
from environments.base import Rollout
from equipoise.config import load_config
from equipoise.config.training_words import parse_flags
from equipoise.errors import EquipoiseError
from equipoise.run.prompts import make_prompts, prepare_task
from equipoise.run.rollouts import write_rollouts
from equipoise.train.cold_start.examples import find_examples
from tests.environments.fairness.samples import decision_reply
from tests.refusals import refusal

SOME = ("equipoise.cold_start.examples=40", "--config=nemo_configs/local.yaml")


def loaded_with(task, tmp_path, *words):
    own = (*SOME, f"equipoise.cache_dir={tmp_path}", "--model-name=any/model", *words)
    loaded = load_config(task, parse_flags("x", own))
    prepare_task(loaded, print)
    return loaded, make_prompts(loaded)


@pytest.mark.deep
@pytest.mark.parametrize("task", ["dharma", "fairness", "pubmedqa", "rag"])
def test_the_replies_of_a_task_are_to_no_prompt_of_an_evaluation(task, tmp_path):
    loaded, records = loaded_with(task, tmp_path)
    examples = find_examples(loaded, records)
    assert len(examples) == 40
    assert all(example.answer for example in examples)
    held_out = {r.messages[-1]["content"] for r in records if r.split != "train"}
    assert held_out
    assert not held_out & {example.messages[-1]["content"] for example in examples}
    # What a model is told besides the question is what the run tells it.
    systems = {r.messages[0]["content"] for r in records if r.messages[0]["role"] == "system"}
    assert {
        e.messages[0]["content"] for e in examples if e.messages[0]["role"] == "system"
    } <= systems


@pytest.mark.deep
def test_they_depend_on_the_seed(tmp_path):
    first, again, other = (
        find_examples(*loaded_with("dharma", tmp_path, f"--seed={seed}")) for seed in (1, 1, 2)
    )
    assert first == again != other


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"equipoise.cold_start.replies={path}"


def row(question, reply):
    return {"prompt": [{"role": "user", "content": question}], "completion": reply}


def test_a_file_of_replies_is_shown_again_and_again(tmp_path):
    word = write(tmp_path / "r.jsonl", row("Q1", "A1"), row("Q2", "A2"))
    examples = find_examples(*loaded_with("dharma", tmp_path, word))
    assert len(examples) == 40
    assert examples[:3] == [
        Example(({"role": "user", "content": question},), reply)
        for question, reply in (("Q1", "A1"), ("Q2", "A2"), ("Q1", "A1"))
    ]


def test_every_bad_line_is_told_at_once(tmp_path):
    path = tmp_path / "r.jsonl"
    word = write(path, row("Q", ""), {"prompt": "Q", "completion": "A"}, row("Q", "A") | {"id": 1})
    path.write_text(path.read_text() + "{no json\n")
    with refusal("cold-start.invalid-replies") as caught:
        find_examples(*loaded_with("dharma", tmp_path, word))
    told = str(caught.value)
    assert all(f"line {n}: " in told for n in (1, 2, 3, 4))
    assert '"completion"' in told


@pytest.mark.parametrize("text", [None, ""])
def test_a_file_that_is_not_there_or_empty_is_refused(text, tmp_path):
    path = tmp_path / "r.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EquipoiseError, match=r"r\.jsonl"):
        find_examples(*loaded_with("dharma", tmp_path, f"equipoise.cold_start.replies={path}"))


@pytest.mark.deep
def test_a_reply_to_a_prompt_of_the_evaluation_is_refused(tmp_path):
    _, records = loaded_with("dharma", tmp_path)
    held_out = next(r for r in records if r.split == "test").messages[-1]["content"]
    word = write(tmp_path / "r.jsonl", row("Q", "A"), row(held_out, "A"))
    with refusal("cold-start.held-out-prompts", "1 of the"):
        find_examples(*loaded_with("dharma", tmp_path, word))


def test_prompts_to_which_nobody_wrote_replies_need_a_file(tmp_path):
    source = tmp_path / "mine.jsonl"
    source.write_text(
        "".join(json.dumps({"prompt": f"{n} days of cough"}) + "\n" for n in range(12))
    )
    loaded, records = loaded_with(
        "dharma", tmp_path, f"equipoise.data.source={source}", "--batch-size=1"
    )
    with refusal("local-model.dharma-source"):
        find_examples(loaded, records)


def run_with_reference(folder, records, *, readable=True):
    """A run whose frozen model says for each race which one it is, by the words of its reason."""
    folder.mkdir()
    write_prompts(folder / "prompts.jsonl", records, {})
    rollouts = [
        Rollout(
            r.id,
            r.set_id,
            r.split,
            "",
            decision_reply(rationale=f"{r.id} {n}") if readable else "No.",
        )
        for r in records
        for n in range(3)
    ]
    write_rollouts(folder / "reference.jsonl", rollouts)
    return f"equipoise.cold_start.replies={folder}"


@pytest.mark.deep
def test_the_reference_of_a_run_is_dealt_out_over_the_races_of_each_set(tmp_path):
    small = "equipoise.data.num_samples=96"
    _, records = loaded_with("fairness", tmp_path / "cache", small)
    word = run_with_reference(tmp_path / "run", records)
    examples = find_examples(*loaded_with("fairness", tmp_path / "cache", small, word))
    assert len(examples) == 40
    shown = {r.messages[-1]["content"]: r for r in records if r.split == "train"}
    owners = {r.id: r for r in records}
    pairs = [
        (
            shown[e.messages[-1]["content"]],
            owners[json.loads(e.answer)["rationale"].rsplit(" ", 1)[0]],
        )
        for e in examples
    ]
    assert all(asked.set_id == owner.set_id for asked, owner in pairs)
    assert any(asked.id != owner.id for asked, owner in pairs), "to another race"
    for start in range(0, len(pairs), 4):  # a set's prompts get one reply to each race
        assert len({owner.id for _, owner in pairs[start : start + 4]}) == 4


@pytest.mark.parametrize(
    ("task", "reason"),
    [("dharma", "cold-start.no-deal"), ("fairness", "cold-start.no-readable-set")],
)
def test_a_run_with_nothing_to_deal_out_is_refused(task, reason, tmp_path):
    small = "equipoise.data.num_samples=96"
    _, records = loaded_with("fairness", tmp_path / "cache", small)
    word = run_with_reference(tmp_path / "run", records, readable=False)
    with refusal(reason):
        find_examples(*loaded_with(task, tmp_path / "cache", small, word))
