"""`--model` and `--adapter` name the models, adapters and endpoints of an audit."""

import json
from pathlib import Path

import pytest

from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.evaluate.plan import (
    PLAIN,
    Audit,
    Subject,
    Variant,
    endpoint_settings,
    label_of,
    read_subjects,
    refuse_equal_names,
)
from equipoise.files.errors import UsageError
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("results/rag/mine", "mine"),
        ("results/rag/mine/final_checkpoint", "mine-final_checkpoint"),
        ("results/rag/mine/checkpoints/step_20", "mine-step_20"),
    ],
)
def test_a_row_is_called_after_its_model(word: str, label: str) -> None:
    assert label_of(word) == label


@pytest.mark.parametrize(
    ("models", "variants", "name"),
    [
        (["a/m", "b/m"], [], "m"),
        (["x=a", "X=b"], [], "X"),
        (["a", "a--few=b"], ["few"], "a--few"),
    ],
)
def test_rows_of_one_name_are_refused(models: list[str], variants: list[str], name: str) -> None:
    """Else one model's figures would stand for both."""
    ways = (PLAIN, *(Variant(word, shots=2) for word in variants))
    subjects = read_subjects(models, [])
    with refusal("audit.repeated-row", f"the name {name}: ", subjects[-1].model):
        refuse_equal_names(Audit(("rag",), subjects, ways))
    refuse_equal_names(Audit(("rag",), read_subjects(["a/m", "m-2=b", "x=c/m"], []), (PLAIN,)))


def test_an_adapter_goes_with_its_base() -> None:
    _, adapted = read_subjects(["a/m"], ["tuned=lora"])
    assert (adapted.label, adapted.model, adapted.adapter) == ("tuned", "a/m", "lora")
    assert read_subjects([], ["lora"]) == (Subject("lora", "", adapter="lora"),)
    with refusal("subject.adapter-of-local-model"):
        read_subjects(["local"], ["lora"])
    with refusal("subject.adapter-of-endpoint"):
        read_subjects(["m@http://h/v1"], ["lora"])


def test_an_endpoint_samples_as_the_configuration_says_unless_it_says_more(tmp_path: Path) -> None:
    generation = load_config(
        "rag", Options((CONFIG_FOLDER / "local.yaml",))
    ).config.policy.generation
    (plain,) = read_subjects(["my/model@http://h:8000/v1/"], [])
    settings = endpoint_settings(plain, generation, tmp_path / "answers")
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
    settings = endpoint_settings(named, generation, tmp_path / "answers")
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
def test_a_file_that_names_no_endpoint(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"m\.yaml cannot be used") as refused:
        read_subjects([str(tmp_path / "m.yaml")], [])
    assert message in refused.value.message and "\n  in " not in refused.value.message
