"""The plan of an audit: models, ways to ask, prompts."""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest

from environments.base import UNPARSEABLE, PromptRecord, Rollout, Score
from equipoise.commands.evaluate import EvaluateOptions, new_root
from equipoise.commands.prepare import find_task
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, tasks
from equipoise.evaluate import evaluate
from equipoise.evaluate.gate import plan_gate
from equipoise.evaluate.plan import (
    PLAIN,
    Audit,
    GatePlan,
    Subject,
    TaskAudit,
    Variant,
    endpoint_settings,
    label_of,
    make_ask,
    prompts_of,
    read_plan,
    read_subjects,
    refuse_equal_names,
    select_prompts,
    unsuited,
)
from equipoise.files.disk import write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Display
from equipoise.run.rollouts import write_rollouts
from equipoise.run.task import make_environment, make_prompts, prepare_task, prompts_here
from tests.refusals import refusal

ACTIONS = evaluate.Actions(Display(), print, lambda *_: "")
LOCAL, REAL = Subject("local", "local"), Subject("real", "org/real")


def audit(*subjects, names=("dharma",)):
    return Audit(tuple(names), subjects, config_files=(str(CONFIG_FOLDER / "small.yaml"),))


def task_audit(subject, folder, **settings):
    return TaskAudit(replace(audit(subject), **settings), "dharma", folder)


def test_a_few_prompts_are_of_each_stratum_as_many_prompts_are():
    def record(n):
        scope = "rare" if n % 4 == 0 else "usual"
        return PromptRecord(f"{n}", "task", (), f"{n // 2}", "test", {"scope": scope})

    records = [replace(record(n), set_id=f"{n}") for n in range(80)]
    for seed in range(5):
        chosen = select_prompts(records, "test", 8, seed, "scope")
        assert Counter(r.metadata["scope"] for r in chosen) == {"rare": 2, "usual": 6}
    assert len(select_prompts(records, "test", 8, 0, "")) == 8


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        *(("fairness", {"num_samples": 192}), ("dharma", {"num_samples": 240})),
        *(("pubmedqa", {"source": "synthetic", "num_samples": 300}), ("rag", {"num_samples": 200})),
    ],
)
def test_every_task_names_what_its_prompts_are_drawn_by(task, settings):
    prompts = find_task(task)
    records = prompts.build_prompts(prompts.PromptSettings(**settings))
    stratum = load_config(
        task, Options((CONFIG_FOLDER / "local.yaml",))
    ).environment_class.presentation.one_of_each
    shares = Counter(r.metadata[stratum] for r in records if r.split == "test")
    chosen = Counter(r.metadata[stratum] for r in select_prompts(records, "test", 16, 0, stratum))
    assert len(shares) > 1
    for name, count in shares.items():
        expected = chosen.total() * count / shares.total()
        assert abs(chosen[name] - expected) <= 4, name  # a counterfactual set at most


def test_one_task_that_cannot_be_had_ends_alone(tmp_path, monkeypatch):
    asked = []

    def prepare(of_task, *_):
        if of_task.task == "rag":
            raise EquipoiseError("data.missing", "no such data set", "Fetch it.")
        asked.append(of_task.task)
        return ()

    monkeypatch.setattr(evaluate, "_prepare", prepare)
    monkeypatch.setattr(evaluate, "_evaluate_subject", lambda *_: None)
    three = audit(REAL, names=("pubmedqa", "rag", "fairness"))
    with refusal("audit.failed-rows", "rag: no such data set"):
        list(evaluate.run_audit(three, tmp_path, ACTIONS))
    assert asked == ["pubmedqa", "fairness"]
    only = audit(REAL, names=("rag",))
    with refusal("data.missing"):
        list(evaluate.run_audit(only, tmp_path, ACTIONS))


def test_the_folder_of_results_is_that_of_the_key_or_the_flag(tmp_path):
    key = (f"equipoise.output_dir={tmp_path}",)
    assert new_root(EvaluateOptions(run_name="a", assignments=key)) == tmp_path / "audits" / "a"
    flagged = EvaluateOptions(run_name="a", assignments=key, output_dir=tmp_path / "b")
    assert new_root(flagged) == tmp_path / "b" / "audits" / "a"


def test_the_shipped_plan_is_taken_by_an_evaluation(tmp_path):
    planned = plan_gate(None, {})
    write_json(tmp_path / "plan.json", asdict(GatePlan(planned)))
    plan = read_plan(tmp_path / "plan.json", "all")
    assert plan == {name: (task.prompts, task.replies) for name, task in planned.items()}
    for name, planned_alone in ((n, plan_gate(n, {})) for n in planned):
        assert planned_alone[name].replies < planned[name].replies, "four must pass together"
    assert sorted(plan) == tasks() and not any(task.unknown for task in planned.values())
    planned_audit = task_audit(LOCAL, tmp_path, plan={"dharma": (39, 7)})
    loaded = planned_audit.load_plain(LOCAL)
    assert loaded.config.equipoise.evaluation.generations == 7
    asked = prompts_of(loaded, prompts_here(loaded, to_train=False), planned_audit.audit)
    assert len(asked) == 39
    write_json(tmp_path / "plan.json", asdict(GatePlan({"rag": planned["rag"]})))
    with refusal("audit.unplanned-task", "dharma"):
        read_plan(tmp_path / "plan.json", "dharma")


def test_replies_that_are_few_or_cannot_be_read_are_told_with_a_remedy(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(evaluate._LOG, "warning", said.append)
    run = RunDirectory(tmp_path)
    rollouts = [Rollout(f"{n}", f"{n}", "test", "", "I cannot say.", {}) for n in range(4)]
    unread = Score(0.0, evidence={UNPARSEABLE: "no JSON"})
    for number, warned in ((1, False), (3, True)):
        said.clear()
        scores = [unread] * number + [Score(1.0)] * (4 - number)
        write_rollouts(run.rollouts("baseline"), rollouts, scores)
        evaluate.warn_of_replies(run)
        assert "4 questions" in said[0] and "40" in said[0]
        shown = ["--few-shot" in text and "I cannot say." in text for text in said[1:]]
        assert shown == [True] * warned


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("results/rag/mine", "mine"),
        ("results/rag/mine/final_checkpoint", "mine-final_checkpoint"),
        ("results/rag/mine/checkpoints/step_20", "mine-step_20"),
    ],
)
def test_a_row_is_called_after_its_model(word, label):
    assert label_of(word) == label


@pytest.mark.parametrize(
    ("models", "variants", "name"),
    [(["a/m", "b/m"], [], "m"), (["x=a", "X=b"], [], "X"), (["a", "a--few=b"], ["few"], "a--few")],
)
def test_rows_of_one_name_are_refused(models, variants, name):
    """Else one model's figures would stand for both."""
    ways = (PLAIN, *(Variant(word, shots=2) for word in variants))
    subjects = read_subjects(models, [])
    with refusal("audit.repeated-row", f"the name {name}: ", subjects[-1].model):
        refuse_equal_names(Audit(("rag",), subjects, ways))
    refuse_equal_names(Audit(("rag",), read_subjects(["a/m", "m-2=b", "x=c/m"], []), (PLAIN,)))


def test_an_adapter_goes_with_its_base():
    _, adapted = read_subjects(["a/m"], ["tuned=lora"])
    assert (adapted.label, adapted.model, adapted.adapter) == ("tuned", "a/m", "lora")
    assert read_subjects([], ["lora"]) == (Subject("lora", "", adapter="lora"),)
    with refusal("subject.adapter-of-local-model"):
        read_subjects(["local"], ["lora"])
    with refusal("subject.adapter-of-endpoint"):
        read_subjects(["m@http://h/v1"], ["lora"])


def test_an_endpoint_samples_as_the_configuration_says_unless_it_says_more(tmp_path):
    generation = load_config(
        "rag", Options((CONFIG_FOLDER / "local.yaml",))
    ).config.policy.generation
    (plain,) = read_subjects(["my/model@http://h:8000/v1/"], [])
    settings = endpoint_settings(plain, generation, tmp_path)
    assert (settings.url, settings.model) == ("http://h:8000/v1", "my/model")
    assert settings.parameters == {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "max_tokens": generation.max_new_tokens,
        "seed": 0,
    }
    assert settings.cache_dir == tmp_path / "answers"
    parameters = {"max_tokens": None, "max_completion_tokens": 9, "seed": None}
    keys = {
        "url": "http://h/v1",
        "model": "m",
        "parameters": parameters,
        "cache_dir": str(tmp_path),
    }
    (tmp_path / "m.yaml").write_text(json.dumps({"endpoint": keys}))
    (named,) = read_subjects([f"mine={tmp_path / 'm.yaml'}"], [])
    settings = endpoint_settings(named, generation, tmp_path)
    assert named.label == "mine"
    assert settings.parameters.keys() == {"temperature", "top_p", "max_completion_tokens"}
    assert settings.cache_dir == tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url: 3", "url: should be a valid string"),
        ("[]", "holds no keys"),
        ("a: b: c", "line 1: not valid YAML"),
        ("model: m", "url: is missing"),
        ("model: m\nbase_url: http://h/v1", "base_url: unknown key; there are url, model"),
    ],
)
def test_a_file_that_names_no_endpoint(text, message, tmp_path):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"m\.yaml cannot be used") as refused:
        read_subjects([str(tmp_path / "m.yaml")], [])
    assert message in refused.value.message and "\n  in " not in refused.value.message


#: What the examples of a task earn at least, of at most; retrieval's keep the format alone.
LEAST = {"dharma": 0.9, "fairness": 1.0, "pubmedqa": 3.8, "rag": 0.1}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def loaded(task, cache):
    words = ("equipoise.data.num_samples=64", f"equipoise.cache_dir={cache}")
    config = load_config(task, Options((CONFIG_FOLDER / "smoke.yaml",), assignments=words))
    prepare_task(config, lambda _: None)
    return config


def parts(task, cache):
    config = loaded(task, cache)
    environment = make_environment(config.environment_class, config.env_settings)
    return environment, make_prompts(config, to_train=False)


@pytest.mark.deep
@pytest.mark.parametrize("task", tasks())
def test_examples_are_good_replies_to_training_prompts(task, cache):
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
def test_a_question_has_examples_before_it_and_the_system_message_first(task, cache):
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


def test_blinded_prompts_keep_everything_but_what_must_not_decide(cache):
    environment, records = parts("fairness", cache)
    ask = make_ask(Variant("blinded", blinded=True), environment, records, seed=0)
    named = [r for r in records if r.split == "test" and r.metadata.get("cue") == "named"]
    by_set: dict[str, set[str]] = {}
    for record in named:
        prompt = ask(record)
        assert replace(prompt, messages=record.messages) == record
        by_set.setdefault(record.set_id, set()).add(prompt.messages[-1]["content"])
    assert by_set and {len(texts) for texts in by_set.values()} == {1}


def test_a_task_without_a_variant_says_why(cache):
    environment = loaded("pubmedqa", cache).environment_class
    assert "must not decide" in unsuited(Variant("b", blinded=True), environment)
    assert not unsuited(Variant("s", shots=1), environment)
