"""The prompts and the local model of a mixture."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from pydantic import ValidationError

from data_prep import dharma, fairness, pubmedqa
from data_prep.contract import DataModule, hook_problems
from data_prep.mixture import (
    LocalModelSettings,
    PromptSettings,
    build_local_model,
    build_prompts,
    imitated_replies,
    prompt_problems,
)
from data_prep.mixture.local_model import clauses
from data_prep.tiny_model import train_tokenizer
from data_prep.warm_start import Example
from environments.base import PromptRecord
from equipoise.config import check_prompts
from tests.refusals import refusal

MODULES = {"fairness": fairness, "dharma": dharma, "pubmedqa": pubmedqa}
KEYS = {"fairness": {}, "dharma": {}, "pubmedqa": {"source": "synthetic"}}
ENVIRONMENTS = {
    "fairness": "environments.fairness.FairnessEnvironment",
    "dharma": "environments.dharma.DharmaEnvironment",
    "pubmedqa": "environments.pubmedqa.PubMedQAEnvironment",
}


def content(**changes):
    """With {} in place of a section there is none."""
    tree = {
        "num_samples": 200,
        "tasks": {name: {"module": f"data_prep.{name}", **KEYS[name]} for name in MODULES},
        "mixed": {name: {"environment": ENVIRONMENTS[name], "weight": 1} for name in MODULES},
    }
    for section, values in changes.items():
        tree[section] = values and tree[section] | values
    return tree


@cache
def built():
    return PromptSettings.model_validate(content()), build_prompts(
        PromptSettings.model_validate(content())
    )


def test_its_hooks_are_those_of_a_data_module():
    import data_prep.mixture

    assert list(hook_problems(data_prep.mixture)) == []


@pytest.mark.parametrize("task", MODULES)
def test_each_task_has_the_prompts_that_it_has_alone(task):
    module = DataModule(MODULES[task])
    own = module.build_prompts(module.PromptSettings(num_samples=200, **KEYS[task]))
    mine = [record for record in built()[1] if record.task == task]
    by_id = {record.id: record for record in mine}
    for record in own:
        if record.split == "validation" and f"{task}/{record.id}" not in by_id:
            continue
        twin = by_id[f"{task}/{record.id}"]
        assert twin.messages == record.messages and twin.split == record.split
        assert twin.set_id == f"{task}/{record.set_id}"
        assert twin.metadata == {**record.metadata, "task": task}
    assert len(mine) <= len(own)


def test_they_can_be_trained_on_and_validation_is_whole_rounds():
    settings, records = built()
    sizes = {name: part.set_size for name, part in settings.round.items()}
    assert sizes == {"fairness": 4, "dharma": 1, "pubmedqa": 1}
    assert check_prompts(records, sizes) == [] and prompt_problems(records) == []
    validation = [record for record in records if record.split == "validation"]
    size = sum(part.prompts for part in settings.round.values())
    assert validation and len(validation) % size == 0
    for start in range(0, len(validation), size):
        counts = Counter(record.task for record in validation[start : start + size])
        assert counts == {name: part.prompts for name, part in settings.round.items()}
        assert len({r.set_id for r in validation[start : start + 4]}) == 1


def test_prompts_in_sets_are_first_so_that_no_batch_of_rounds_cuts_one():
    test = [record.task for record in built()[1] if record.split == "test"]
    assert test == sorted(test, key=lambda task: task != "fairness")


def test_a_prompt_that_does_not_name_its_task_is_a_fault():
    record = built()[1][0]
    (problem,) = prompt_problems([record, replace(record, metadata={})])
    assert problem == f"1 prompts lack their task as metadata.task: {record.id}"


def test_num_samples_is_of_each_task_and_without_it_each_says_its_own():
    own = {name: {"num_samples": 64} for name in MODULES}
    tasks = {n: {"module": f"data_prep.{n}", **KEYS[n], **own[n]} for n in MODULES}
    settings = PromptSettings.model_validate(content(tasks=tasks) | {"num_samples": None})
    assert [s.num_samples for s in settings.settings.values()] == [64, 64, 64]
    assert [s.num_samples for s in built()[0].settings.values()] == [200, 200, 200]


def test_a_task_is_left_out_by_one_key():
    settings = PromptSettings.model_validate(content(mixed={"dharma": None}))
    assert set(settings.round) == {"fairness", "pubmedqa"}
    assert {record.task for record in build_prompts(settings)} == {"fairness", "pubmedqa"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"songs": {"module": "data_prep.songs"}}}, "songs is no task of env.mixture"),
        (
            {"mixed": {"rag": {"environment": "environments.rag.RagEnvironment", "weight": 1}}},
            "rag has no data module",
        ),
        ({"tasks": {"dharma": {"module": "data_prep.songs"}}}, "tasks.dharma: cannot import"),
        ({"tasks": {"dharma": {"module": "json"}}}, "tasks.dharma: json: there is no"),
        (
            {"tasks": {"dharma": {"module": "data_prep.dharma", "number": 3}}},
            "tasks.dharma: number: Extra inputs",
        ),
        ({"mixed": {}, "tasks": {}}, "mixed names no task"),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_one_message(changes, message):
    with pytest.raises(ValidationError, match=message) as refused:
        PromptSettings.model_validate(content(**changes))
    assert refused.value.error_count() == 1


def test_what_env_refuses_is_not_refused_twice():
    songs = {"environment": "environments.songs.Songs", "weight": 1}
    assert PromptSettings.model_validate(content(mixed={"songs": songs})).settings == {}


def test_they_are_invented_if_those_of_every_task_are():
    assert built()[0].invented is True
    tasks = {"pubmedqa": {"module": "data_prep.pubmedqa"}}
    assert PromptSettings.model_validate(content(tasks=tasks)).invented is False


def warm(**changes):
    modules = {name: f"data_prep.{name}" for name in MODULES}
    return LocalModelSettings(modules=modules, **{"steps": 20, "batch_size": 16, **changes})


def test_the_local_model_imitates_all_tasks_by_the_length_of_their_own_warm_starts():
    replies = imitated_replies(built()[1], warm())
    assert len(replies) == 20 * 16
    counts = Counter(record.task for record, _ in replies)
    steps = {n: m.LocalModelSettings().steps for n, m in MODULES.items()}
    for name in MODULES:
        share = steps[name] / sum(steps.values())
        assert counts[name] / len(replies) == pytest.approx(share, abs=0.02)
    first = Counter(record.task for record, _ in replies[:100])
    assert set(first) == set(MODULES)  # every batch has all of them
    assert imitated_replies(built()[1], warm()) == replies
    assert imitated_replies(built()[1], warm(seed=1)) != replies


def test_replies_in_words_have_no_more_tokens_than_of_their_own_local_model(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "data_prep.tiny_model.warm_start", lambda examples, settings, _: (examples, settings)
    )
    records, settings = built()[1], warm(steps=400)
    mixed = train_tokenizer(*build_local_model(records, settings, tmp_path))
    replies = [pair for pair in imitated_replies(records, settings) if pair[0].task == "dharma"]
    examples = [Example(record.messages, reply) for record, reply in replies]
    alone = train_tokenizer(examples, dharma.LocalModelSettings())
    texts = {reply for _, reply in replies}
    assert sum(len(mixed.encode(t)) for t in texts) <= sum(len(alone.encode(t)) for t in texts)


def test_it_is_shown_no_prompt_of_an_evaluation_split():
    records = built()[1]
    held_out = {r.messages[-1]["content"] for r in records if r.split in ("test", "validation")}
    shown = {record.messages[-1]["content"] for record, _ in imitated_replies(records, warm())}
    assert not shown & held_out


def test_a_task_without_a_local_model_is_named():
    modules = {"fairness": "data_prep.fairness", "pubmedqa": "data_prep.pubmedqa"}
    settings = LocalModelSettings(modules=modules, steps=2)
    with refusal("local-model.no-module", "dharma"):
        imitated_replies(built()[1], settings)


def test_a_clause_ends_in_a_sign_so_that_no_word_is_cut():
    record = PromptRecord(
        "1", "t", ({"role": "user", "content": "Pain 7 of 10. It is new, old"},), "1", "train"
    )
    assert clauses([(record, '{"a": 1, "b": 2}')]) == [
        "Pain 7 of 10.",
        " It is new,",
        '{"a":',
        " 1,",
        ' "b":',
    ]
