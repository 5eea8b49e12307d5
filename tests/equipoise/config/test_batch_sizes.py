"""A batch size that does not fit is refused with the nearest that does."""

import pytest
import yaml

from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER, Options
from equipoise.config.words import parse_flags
from tests.refusals import refusal

EXAMPLE = CONFIG_FOLDER / "cases" / "chest_pain_gender.yaml"


def cases_of(values, folder, train=1):
    """The example's cases and many like them, of whom `train` are trained on: 4 sets for each."""
    tree = yaml.safe_load(EXAMPLE.read_text())
    words = {f"value {n}": {f: f"{f} {n}" for f in ("person", "subject", "possessive")}
             for n in range(values)}  # fmt: skip
    tree["attribute"] = {"name": "income", "values": words}
    text = tree["cases"]["muscle"]["text"]
    more = {f"case {n}": {"text": f"{n}: {text}", "severity": "mild"} for n in range(train)}
    tree["cases"] |= more
    tree |= {"train": list(more), "validate": ["rest"]}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def loaded(cases, *words, to_train=True):
    own = ("--model-name=my/model", f"env.fairness.cases_file={cases}")
    return load_config("fairness", parse_flags("x", (*own, *words)), to_train=to_train)


def test_a_step_of_more_prompts_than_there_are_is_refused_with_what_fits(tmp_path):
    cases = cases_of(4, tmp_path)
    with refusal("config.problems", "there are 16 prompts to train on; take 16 instead of 32"):
        loaded(cases, "--config=nemo_configs/small.yaml")
    assert loaded(cases, "--config=nemo_configs/small.yaml", "--batch-size=16")


@pytest.mark.parametrize(
    ("key", "size", "train", "fitting"),
    [
        ("grpo.num_prompts_per_step", 32, 60, 33),
        ("grpo.num_prompts_per_step", 1, 60, 3),
        ("grpo.num_prompts_per_step", 32, 1, 12),  # there are no more prompts
        ("grpo.val_batch_size", 64, 60, 63),
    ],
)
def test_the_nearest_size_is_named_and_where_nothing_is_trained_none_is_refused(
    key, size, train, fitting, tmp_path
):
    cases = cases_of(3, tmp_path, train)
    others = {"grpo.num_prompts_per_step": 12, "grpo.val_batch_size": 12} | {key: size}
    words = [f"{name}={value}" for name, value in others.items()]
    with refusal("config.problems", f"command line: {key}: ", f"multiple of 3, such as {fitting}"):
        loaded(cases, *words)
    assert loaded(cases, *words, f"{key}={fitting}")
    # The run of an evaluation can be read again.
    (tmp_path / "config.yaml").write_text(loaded(cases, *words, to_train=False).to_yaml())
    assert load_config("fairness", Options((tmp_path / "config.yaml",), stored=True))
