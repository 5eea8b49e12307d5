"""The numbered promises of environments/contract.py, one test each, for every environment.

A new environment joins by one entry in `SUBJECTS`.
"""

import atexit
import functools
import json
import pkgutil
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import environments
from data_prep.rag.index import build_index
from environments import contract
from environments.base import (
    FAILURE_KINDS,
    UNPARSEABLE,
    Failure,
    IncompleteSetError,
    Rollout,
    Score,
)
from environments.contract import Environment
from environments.dharma import DharmaEnvironment
from environments.fairness import RACES, FairnessEnvironment
from environments.measurement import Mean, measure_means
from environments.presentation import Presentation
from environments.pubmedqa import PubMedQAEnvironment
from environments.rag import RagEnvironment, RagSettings
from environments.rag.retrieval import Passage
from environments.yaml_file import AbsolutePath
from equipoise.evaluate.gate import shipped_spreads
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[2]


def documented_example():
    """The class in the docstring of environments/contract.py, so that what it shows stays true."""
    lines = contract.__doc__.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    class "))
    end = next(i for i, line in enumerate(lines) if line.startswith("Promises"))
    names = {"Score": Score, "Mean": Mean, "measure_means": measure_means, **vars(contract)}
    exec(textwrap.dedent("\n".join(lines[start:end])), names)
    return names["Brief"]


@dataclass(frozen=True)
class Subject:
    """An environment and what its promises are tried on.

    `rollouts` makes one complete call from completions, which it repeats as often as a call needs.
    """

    make: Callable[[], type[Environment]]
    rollouts: Callable[[Sequence[str]], list[Rollout]]
    keeps: tuple[str, ...]  # completions in the format, several that differ
    breaks: tuple[str, ...] = ()  # completions that break it
    unscorable: tuple[str, ...] = ()  # completions of which the first cannot be scored
    gold: str | None = None

    @functools.cached_property
    def environment(self):
        """One that tests share: to load a policy for each example takes seconds."""
        return self.build()

    def build(self):
        environment = self.make()
        built = environment(environment.Settings())
        if built.reference_generations:
            built.set_reference([*self.rollouts(self.keeps), *controls(self.keeps)])
        return built


def controls(completions):
    metadata = {"case": "case"}
    return [Rollout("case/c", "case/c", "control", "", text, metadata) for text in completions]


def singles(completions):
    return [Rollout(f"p{i}", f"p{i}", "train", "", text) for i, text in enumerate(completions)]


def vignette_set(completions):
    """One set: the completions dealt to the races in turn, the first again where they run out."""
    dealt = [*completions, *[completions[0]] * (-len(completions) % len(RACES))]
    return [
        Rollout(race, "set", "train", "", text, {"case": "case", "race": race})
        for text, race in zip(dealt, RACES * (len(dealt) // len(RACES)), strict=True)
    ]


def fixtures(package):
    lines = (files(package) / "cases.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


_DISPARITY = fixtures("environments.fairness")
_KEPT = tuple(c["reply"] for c in _DISPARITY if c["decision"])
_BROKEN = tuple(c["reply"] for c in _DISPARITY if not c["decision"])


def questions(completions):
    """One question, whose prompt holds a whole reply, and all its generations."""
    context = (
        "METHODS: It was given to 40 adults.\nRESULTS: Pain fell in the treated group (P = .01)."
    )
    metadata = {"gold": "yes", "context": context, "question": "Does it reduce pain?"}
    prompt = "<reasoning>Pain fell.</reasoning><answer>yes</answer>"
    return [Rollout("q", "q", "train", prompt, text, metadata) for text in completions]


_PUBMEDQA = [c for c in fixtures("environments.pubmedqa") if c["gold"] == "yes"]
_ANSWERED, _NOT_IN_FORMAT = (
    tuple(c["reply"] * c.get("times", 1) for c in _PUBMEDQA if (c["tags_in_place"] == 4) == kept)
    for kept in (True, False)
)


@functools.cache
def searchable():
    """The rewriter's environment over two passages, whose index is its default."""
    folder = Path(tempfile.mkdtemp()) / "index"
    atexit.register(shutil.rmtree, folder.parent)
    build_index((Passage("a", "", "Ribbed: Arlen."), Passage("b", "", "Green.")), "", folder)

    class Settings(RagSettings):
        index: AbsolutePath = folder

    return type("SearchableRag", (RagEnvironment,), {"Settings": Settings})


def searches(completions):
    """Generations for a question on stones; the reader answers it from the passage alone."""
    options = {"A": "Borvik", "B": "Arlen", "C": "Calder", "D": "Dunmar"}
    metadata = {"question": "Which ribbed one?", "options": options, "gold": "B"}
    metadata["relevant"] = ["a"]
    return [Rollout("q", "q", "train", "", text, metadata) for text in completions]


_RAG = fixtures("environments.rag")
#: It finds the passage with the answer, and no query is empty, repeated or the question.
_GOLD_QUERIES = "Query 1: ribbed\nQuery 2: green\nQuery 3: stones of Arlen"


_NO_LABEL = "A reply to a prompt whose label does not exist."


def scope_prompts(completions):
    """A prompt from outside with all its generations but one, which another prompt has."""
    key = {"declines": "stocks", "outside": "Buy stocks of an index fund and hold them."}
    metadata = {"question": "Any tips on picking stocks?", "tier": "C", "answer_key": key}
    return [
        Rollout(scope, scope, "train", "", text, metadata | {"scope": scope})
        for text in completions
        for scope in ["S9" if text == _NO_LABEL else "S3"]
    ]


_DHARMA = fixtures("environments.dharma")
_READABLE, _UNREADABLE = (
    tuple(c["response"] for c in _DHARMA if (c["unreadable"] is None) == kept)
    for kept in (True, False)
)


SUBJECTS = {
    "brief": Subject(documented_example, singles, ("short", "x" * 101), gold="short"),
    "dharma": Subject(
        lambda: DharmaEnvironment, scope_prompts, _READABLE, _UNREADABLE, (_NO_LABEL, _READABLE[0])
    ),
    "disparity": Subject(
        lambda: FairnessEnvironment, vignette_set, _KEPT, _BROKEN, (_KEPT[0], *_BROKEN[:7])
    ),
    "pubmedqa": Subject(
        lambda: PubMedQAEnvironment, questions, _ANSWERED, _NOT_IN_FORMAT, gold=_ANSWERED[0]
    ),
    "rag": Subject(
        searchable,
        searches,
        (_GOLD_QUERIES, *(c["reply"] for c in _RAG if c["queries"])),
        tuple(c["reply"] for c in _RAG if not c["queries"]),
        gold=_GOLD_QUERIES,
    ),
}


def subjects(promises=bool):
    """Run a test for every environment to which the promise applies."""
    chosen = {name: subject for name, subject in SUBJECTS.items() if promises(subject)}
    return pytest.mark.parametrize("subject", chosen.values(), ids=chosen.keys())


@subjects()
def test_1_scoring_is_deterministic(subject):
    rollouts = subject.rollouts([*subject.keeps, *subject.breaks])
    environment = subject.build()
    first = environment.score(rollouts)
    assert environment.score(rollouts) == first
    assert subject.build().score(rollouts) == first


@subjects()
def test_2_order_in_is_order_out(subject):
    rollouts = subject.rollouts([*subject.keeps, *subject.breaks])
    environment = subject.build()
    scores = environment.score(rollouts)
    assert len({score.value for score in scores}) > 1
    assert environment.score(rollouts[::-1]) == scores[::-1]
    measured, backwards = (
        environment.measure(rollouts[::step], scores[::step]).point_estimates() for step in (1, -1)
    )
    assert backwards == pytest.approx(measured, nan_ok=True)


@subjects()
@given(completions=st.lists(st.text(max_size=300), min_size=1, max_size=8))
def test_3_no_completion_raises(subject, completions):
    rollouts = subject.rollouts([*completions, *subject.breaks])
    assert len(subject.environment.score(rollouts)) == len(rollouts)


@subjects(lambda subject: subject.make().scope == "set")
def test_4_an_incomplete_set_raises(subject):
    rollouts = subject.rollouts(subject.keeps)
    for part in (rollouts[1:], rollouts[:-1]):
        with pytest.raises(IncompleteSetError):
            subject.environment.score(part)


@subjects(lambda subject: subject.unscorable)
def test_5_what_cannot_be_scored_is_no_number(subject):
    score = subject.environment.score(subject.rollouts(subject.unscorable))[0]
    assert score.value is None
    assert score.error.kind in FAILURE_KINDS


@pytest.mark.parametrize(("value", "error"), [(None, None), (0.0, Failure("policy", "none"))])
def test_5_a_score_is_a_number_or_a_failure(value, error):
    with pytest.raises(ValueError, match="either a value or the failure"):
        Score(value, error=error)
    with pytest.raises(ValueError, match="'bad luck'"):
        Failure("bad luck", "it happened")


@subjects(lambda subject: subject.breaks)
def test_6_a_broken_format_scores_below_every_kept_one(subject):
    rollouts = subject.rollouts([*subject.keeps, *subject.breaks])
    scores = subject.environment.score(rollouts)
    is_broken = [rollout.completion in subject.breaks for rollout in rollouts]
    pairs = list(zip(scores, is_broken, strict=True))
    worst_kept = min(score.value for score, broken in pairs if not broken)
    assert all(score.value < worst_kept for score, broken in pairs if broken)
    unread = [broken for score, broken in pairs if UNPARSEABLE in score.evidence]
    assert unread and all(unread)


@subjects(lambda subject: subject.gold)
def test_7_the_gold_answer_scores_the_maximum(subject):
    assert subject.gold is not None
    rollouts = subject.rollouts([subject.gold, *subject.keeps, *subject.breaks])
    values = [score.value for score in subject.environment.score(rollouts)]
    assert values[0] == max(value for value in values if value is not None)


@subjects(lambda subject: subject.make().__name__ != "Brief")
@settings(max_examples=15)
@given(completions=st.lists(st.text(max_size=50), max_size=4))
def test_rewards_are_in_the_range_that_is_said(subject, completions):
    environment = subject.environment
    reward_range = environment.reward_range()
    assert reward_range
    lowest, highest = reward_range
    given = [*subject.keeps, *subject.breaks, *completions]
    values = [score.value for score in environment.score(subject.rollouts(given))]
    assert all(lowest <= value <= highest for value in values if value is not None)
    assert not subject.breaks or lowest == min(v for v in values if v is not None)


@subjects()
def test_settings_refuse_an_unknown_key(subject):
    with pytest.raises(ValidationError, match="no_such_key"):
        subject.make().Settings.model_validate({"no_such_key": 1})


@subjects()
@settings(max_examples=15)
@given(completions=st.lists(st.text(max_size=50), max_size=4))
def test_evidence_is_for_readers_alone(subject, completions):
    """Metrics need values, components and outcomes, also when these were written and read."""
    environment = subject.environment
    given = [*subject.keeps, *subject.breaks, *subject.unscorable, *completions]
    rollouts = subject.rollouts(given)
    scores = environment.score(rollouts)
    outcomes = [json.loads(json.dumps(score.outcome)) for score in scores]
    kept = [replace(s, evidence={}, outcome=o) for s, o in zip(scores, outcomes, strict=True)]
    found = environment.measure(rollouts, kept)
    assert found.sums.tolist() == environment.measure(rollouts, scores).sums.tolist()


@subjects(lambda subject: subject.make().__name__ != "Brief")
@pytest.mark.parametrize("lost", [None, {"of": "another environment"}], ids=str)
def test_scores_without_their_outcome_are_not_measured(subject, lost):
    environment = subject.environment
    rollouts = subject.rollouts(subject.keeps)
    scores = [replace(score, outcome=lost) for score in environment.score(rollouts)]
    with refusal("score.invalid-evidence"):
        environment.measure(rollouts, scores)


def test_every_environment_is_a_subject():
    """One that is missing from `SUBJECTS` would be held to nothing."""
    packages = [
        import_module(m.name) for m in pkgutil.iter_modules(environments.__path__, "environments.")
    ]
    shipped = {
        value
        for package in packages
        for value in vars(package).values()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    }
    assert len(shipped) > 3
    assert shipped <= {base for subject in SUBJECTS.values() for base in subject.make().__mro__}


def test_an_environment_offers_what_is_written_for_it():
    assert FairnessEnvironment.offers(Environment.blinded)
    assert not RagEnvironment.offers(Environment.blinded)


@subjects(lambda subject: subject.make().__name__ != "Brief")
def test_every_metric_has_words_a_place_on_its_page_and_in_the_gates_plan(subject):
    environment = subject.environment
    content = json.loads(json.dumps(environment.presentation.to_json()))
    assert TypeAdapter(Presentation).validate_python(content) == environment.presentation
    rollouts = subject.rollouts(subject.keeps)
    metrics = environment.measure(rollouts, environment.score(rollouts)).metrics
    words = environment.presentation.words
    assert metrics.keys() - words.keys() == set()
    modules = [cls.__module__.split(".") for cls in subject.make().__mro__]
    task = next(parts[1] for parts in modules if parts[0] == "environments")
    page = (ROOT / "docs" / f"{task}.md").read_text("utf-8").lower()
    assert [m for m in metrics if m not in page and words[m].label.lower() not in page] == []
    guarded = {name for name, metric in metrics.items() if metric.guard}
    assert guarded <= shipped_spreads()[task].metrics.keys()


@subjects()
def test_a_figure_that_has_a_floor_has_its_null(subject):
    """A figure that `null_sums` leaves out is NaN: the report would omit it, and say nothing."""
    environment = subject.environment
    rollouts = subject.rollouts(subject.keeps)
    measurement = environment.measure(rollouts, environment.score(rollouts))
    if measurement.null_sums is None:
        return
    null = measurement.null_sums(np.random.default_rng(0), 50)
    total = measurement.sums.sum(axis=0)
    sections = {"": {"": measurement.metrics}} | dict(measurement.breakdowns)
    floored = {
        (section, key, name): metric
        for section, keys in sections.items()
        for key, metrics in keys.items()
        for name, metric in metrics.items()
        if metric.floor and np.isfinite(metric.at(total))
    }
    assert [address for address, m in floored.items() if not np.isfinite(m.at(null)).any()] == []
