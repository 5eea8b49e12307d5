"""Other ways to ask: what a model sees of them, for every task that ships."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from environments.base import UNPARSEABLE, PromptRecord, Rollout
from environments.contract import Environment
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, tasks
from equipoise.evaluate.plan import PLAIN, Variant, make_ask, unsuited
from equipoise.models.task import make_environment, make_prompts, prepare_task
from tests.refusals import refusal

#: What the examples of a task earn at least, of at most; retrieval's keep the format alone.
LEAST = {"dharma": 0.9, "fairness": 1.0, "pubmedqa": 3.8, "rag": 0.1}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def loaded(task: str, cache: Path) -> LoadedConfig:
    words = ("equipoise.data.num_samples=64", f"equipoise.cache_dir={cache}")
    config = load_config(task, Options((CONFIG_FOLDER / "smoke.yaml",), assignments=words))
    prepare_task(config, lambda _: None)
    return config


def parts(task: str, cache: Path) -> tuple[Environment, Sequence[PromptRecord]]:
    config = loaded(task, cache)
    environment = make_environment(config.environment_class, config.env_settings)
    return environment, make_prompts(config, to_train=False)


@pytest.mark.deep
@pytest.mark.parametrize("task", tasks())
def test_examples_are_good_replies_to_training_prompts(task: str, cache: Path) -> None:
    environment, records = parts(task, cache)
    train = [record for record in records if record.split == "train"]
    replies = [environment.example_reply(record) for record in train]
    rollouts = [
        Rollout(r.id, r.set_id, r.split, "", str(reply), r.metadata)
        for r, reply in zip(train, replies, strict=True)
        for _ in range(2)
    ]
    if environment.reference_generations:
        environment.set_reference(rollouts)
    scores = environment.score(rollouts)
    assert not [score for score in scores if UNPARSEABLE in score.evidence]
    assert min(score.value for score in scores if score.value is not None) >= LEAST[task]


@pytest.mark.parametrize("task", tasks())
def test_a_question_has_examples_before_it_and_the_system_message_first(
    task: str, cache: Path
) -> None:
    environment, records = parts(task, cache)
    test_record = next(record for record in records if record.split == "test")
    ask = make_ask(Variant("x", system="Mind this.", shots=3), environment, records, seed=0)
    first, *messages = ask(test_record).messages
    assert first["role"] == "system" and first["content"].endswith("Mind this.")
    assert messages[-1] == test_record.messages[-1]
    assert [m["role"] for m in messages[:-1]].count("assistant") == 3
    trained = {r.messages[-1]["content"] for r in records if r.split == "train"}
    held_out = {r.messages[-1]["content"] for r in records if r.split != "train"}
    examples = {m["content"] for m in messages[:-1] if m["role"] == "user"}
    assert examples <= trained and not examples & held_out
    reversed_ask = make_ask(Variant("x", shots=3), environment, list(reversed(records)), seed=0)
    assert len(reversed_ask(test_record).messages) >= 7
    assert make_ask(PLAIN, environment, records, seed=0)(test_record) == test_record
    with refusal("subject.too-few-examples", "10000"):
        make_ask(Variant("x", shots=10_000), environment, records, seed=0)


def test_blinded_prompts_keep_everything_but_what_must_not_decide(cache: Path) -> None:
    environment, records = parts("fairness", cache)
    ask = make_ask(Variant("blinded", blinded=True), environment, records, seed=0)
    named = [r for r in records if r.split == "test" and r.metadata.get("cue") == "named"]
    by_set: dict[str, set[str]] = {}
    for record in named:
        prompt = ask(record)
        assert replace(prompt, messages=record.messages) == record
        by_set.setdefault(record.set_id, set()).add(prompt.messages[-1]["content"])
    assert by_set and {len(texts) for texts in by_set.values()} == {1}


def test_a_task_without_a_variant_says_why(cache: Path) -> None:
    environment = loaded("pubmedqa", cache).environment_class
    assert "must not decide" in unsuited(Variant("b", blinded=True), environment)
    assert not unsuited(Variant("s", shots=1), environment)
