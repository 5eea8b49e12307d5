"""Runs of others as entries of a comparison, and their pairs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.contract import Environment
from equipoise.evaluate.compare import Checks, Pair, drawn_differently, shared_items
from equipoise.evaluate.gate import _watched
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from tests.refusals import refusal


def evaluated(generation=None, endpoint=None, **other):
    """An evaluation as far as it says how its replies were drawn and scored."""
    resolved = {
        "policy": {
            "generation": {"temperature": 1.0, "max_new_tokens": 48, **(generation or {})},
            "precision": other.get("precision", "float32"),
            "tokenizer": {"chat_template_kwargs": other.get("kwargs")},
        },
        "equipoise": {"evaluation": {"seed": 0}},
        "env": {"a": {"judge": {"url": "http://a"}, "weight": other.get("weight", 1)}},
    }
    calls = {"judge": {f"answering_model/{other.get('judge', 'j-1')}": 4}}
    provenance = {
        "engine": "local",
        "audit": {"subject": {"label": "m", "model": "m", "endpoint": endpoint or {}}},
        "hashes": {"chat_template": other.get("template", "t")},
        "usage": {"calls": calls},
    }
    path = other.get("path", "a")
    return SimpleNamespace(
        loaded=SimpleNamespace(resolved=resolved, environment_class=SimpleNamespace(name="a")),
        run=RunDirectory(Path(path)),
        provenance=Provenance.model_validate(provenance),
        stage="baseline",
        path=path,
        items={"p": "hash"},
    )


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({}, []),
        ({"generation": {"temperature": 0.01}}, ["policy.generation.temperature 1.0 and 0.01"]),
        ({"generation": {"max_new_tokens": 20}}, ["policy.generation.max_new_tokens 48 and 20"]),
        ({"precision": "bfloat16"}, ["policy.precision float32 and bfloat16"]),
        ({"template": "u"}, ["chat template t and u"]),
        (
            {"kwargs": {"date": "x"}},
            ["policy.tokenizer.chat_template_kwargs None and {'date': 'x'}"],
        ),
        (
            {"endpoint": {"url": "http://x", "parameters": {"max_tokens": 9}}},
            ["engine local and an endpoint", "policy.generation.max_new_tokens 48 and 9"],
        ),
    ],
)
def test_what_decides_a_reply_and_is_not_alike_is_named(second, told):
    assert [str(d) for d in drawn_differently(evaluated(), evaluated(**second))] == told


def test_answers_that_two_judges_rated_are_refused_and_so_is_one_folder_twice():
    first, second = evaluated(), evaluated(path="b", judge="j-2")
    with refusal("compare.other-environment", "what answered as judge"):
        shared_items(first, second, Checks())
    assert shared_items(first, second, Checks(different_environments=True)) == {"p"}
    assert shared_items(first, evaluated(path="b"), Checks()) == {"p"}
    with refusal("compare.same-evaluation", "named twice"):
        shared_items(first, evaluated(), Checks())


@pytest.mark.parametrize(
    ("hashes", "two"), [(("a", "a"), False), (("a", "b"), True), (("", ""), False)]
)
def test_references_are_compared_by_their_hashes(hashes, two):
    kept = [Provenance(hashes={"reference": digest}) for digest in hashes]
    runs = [SimpleNamespace(provenance=provenance) for provenance in kept]
    assert Pair(None, None, ((runs[0], runs[1]),), (frozenset(),)).two_references is two


@pytest.mark.parametrize(
    ("stages", "frozen"),
    [(("baseline", "final"), True), (("final", "baseline"), True), (("final", "final"), False)],
)
def test_a_frozen_model_may_be_on_either_side(stages, frozen):
    """Else the second one is better in what is 0 by construction."""
    runs = tuple(SimpleNamespace(stage=stage) for stage in stages)
    assert Pair(None, None, ((runs[0], runs[1]),), (frozenset(),)).frozen is frozen


class Plain(Environment):
    """A task that says nothing of its rewards."""

    name, scope = "plain", "rollout"
    score = measure = None

    def __init__(self):
        pass


def test_a_gate_needs_to_know_by_how_much_the_objective_may_be_worse():
    with refusal("gate.no-objective-margin", "plain", "reward"):
        _watched(Plain(), {})
    assert _watched(Plain(), {"reward": 0.1}).margins == {"reward": 0.1}
