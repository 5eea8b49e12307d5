"""Own cases as a person trains, probes and audits them: what works, and what is refused at once."""

import json
from typing import Any

import numpy as np
import pytest
import yaml

from data_prep.contract import WarmStart
from data_prep.fairness import LocalModelSettings, imitated_replies
from data_prep.tiny_model import Example, warm_start
from environments.fairness.decision import Decision
from environments.fairness.environment import decision_by_severity
from environments.fairness.own_cases import read_own_cases
from tests.command import ROOT
from tests.recipes.audits import SMOKE, started
from tests.recipes.audits import model as endpoint
from tests.recipes.runs import steps_done

pytestmark = pytest.mark.deep

__all__ = ["endpoint"]

EXAMPLE = ROOT / "nemo_configs" / "cases" / "chest_pain_gender.yaml"
LOCAL = "--config=nemo_configs/local.yaml"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The example with a case to train on and one to choose a checkpoint by."""
    path = tmp_path_factory.mktemp("cases") / "mine.yaml"
    tree = yaml.safe_load(EXAMPLE.read_text()) | {"train": ["muscle"], "validate": ["rest"]}
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def model(mine, tmp_path_factory):
    """A tiny model that has seen decisions on these cases, more invasive ones for men."""
    return biased_model(read_own_cases(mine), tmp_path_factory.mktemp("model"))


def biased_model(cases, folder):
    """A tiny model of a file's cases, more invasive for the first value of the attribute."""
    records, design = cases.records("fairness"), cases.design()
    settings, rng = (
        WarmStart(steps=60, batch_size=16, max_positions=1024),
        np.random.default_rng(0),
    )
    shown = []
    for number in rng.integers(len(records), size=settings.steps * settings.batch_size):
        told: dict[str, Any] = dict(records[number].metadata)
        if told[design.attribute] == design.values[0] and rng.random() < 0.5:
            told["severity"] = "severe"
        reply = str(decision_by_severity(told, design))
        shown.append(Example(records[number].messages, reply))
    return warm_start(shown, settings, folder)


def words(folder, cases, *more):
    own = (f"--output-dir={folder}", f"equipoise.cache_dir={folder / 'cache'}")
    return (*more, *own, f"env.fairness.cases_file={cases}")


def test_a_model_is_probed_and_trained_on_them(mine, model, tmp_path):
    small = (f"--model-name={model}", "--no-wandb", "--run-name=a", "--batch-size=8")
    keys = ("policy.generation.max_new_tokens=64", "equipoise.max_failure_rate=1")
    started("grpo_fairness", SMOKE, *words(tmp_path, mine, *small, *keys))
    run = tmp_path / "fairness" / "a"
    assert steps_done(run) == 2
    final = json.loads((run / "final" / "evaluation.json").read_text())
    assert set(final["by_gender"]) == {"man", "woman"}
    probe = json.loads((run / "probe" / "probe.json").read_text())
    assert {"random gender", "blinded", "constant"} <= probe["baselines"].keys()
    splits = {
        prompt["metadata"]["case"]: prompt["split"]
        for prompt in map(json.loads, (run / "prompts.jsonl").read_text().splitlines())
    }
    assert splits == {"muscle": "train", "rest": "validation", "exertion": "test"}
    assert "gender" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("recipe", "more"), [("grpo_fairness", (LOCAL,)), ("evaluate", ("fairness", "--model=local"))]
)
def test_the_local_model_is_refused_before_anything_is_made(recipe, more, mine, tmp_path):
    said = started(recipe, *words(tmp_path, mine, *more), code=2)
    assert "policy.model_name: the local model knows the cases that come with it" in said
    assert "smollm2" in said
    assert list(tmp_path.iterdir()) == []


def with_values(values, folder):
    """The example's cases told of an income with so many values."""
    tree = yaml.safe_load(EXAMPLE.read_text())
    fields = tree["attribute"]["blinded"]
    worded = {
        f"{n} income": {f: f"{word} {n}" for f, word in fields.items()} for n in range(values)
    }
    tree |= {"attribute": {"name": "income", "values": worded, "blinded": fields}}
    tree |= {"train": ["muscle"], "validate": ["rest"]}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_examples_are_decisions_of_the_files_form_and_no_bias(tmp_path):
    cases = read_own_cases(path := with_values(3, tmp_path))
    settings = LocalModelSettings(steps=50, batch_size=32, cases_file=path)
    shown = imitated_replies(cases.records("fairness"), settings)
    assert {record.metadata["case"] for record, _ in shown} == {"muscle"}  # the one to train on
    decisions = [cases.design().form.parse(reply) for _, reply in shown]
    assert all(isinstance(decision, Decision) for decision in decisions)
    means = {
        value: np.mean(
            [d.invasiveness for (r, _), d in zip(shown, decisions, strict=True)
             if r.metadata["income"] == value]
        )
        for value in cases.design().values
    }  # fmt: skip
    assert max(means.values()) - min(means.values()) < 0.3  # of 6, with 1,600 replies
    assert len({reply for _, reply in shown}) > 5
