"""docs/experiments/methods.py without its training: weights, pairs, the table, words."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from data_prep.pubmedqa import PromptSettings, build_prompts
from data_prep.records import write_prompts
from environments.base import TEST_SPLIT, TRAIN_SPLIT, PromptRecord, Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.pubmedqa import PubMedQAEnvironment, PubMedQASettings
from equipoise.files.disk import write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts, write_rollouts
from tests.environments.fairness.samples import decision_reply
from tests.environments.fairness.test_objective import clinician, replies_of

pytestmark = pytest.mark.deep

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "experiments" / "methods.py"


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_experiment", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(SCRIPT.parent)  # as the script has it
        spec.loader.exec_module(module)
    return module


def test_advantages_are_of_a_prompt_and_weigh_more_for_a_race_that_is_served_worse(methods):
    """FairGRPO's: the mean weight over races is 1, and the best race has the least."""
    settings = FairnessSettings(fairness_weight=1, reward="distance")
    environment = methods.Weighted(settings)
    environment.set_reference(replies_of(clinician, 1))
    worse = {RACES[0]: 2}  # its levels are further from the reference's mean

    def draw(rng: np.random.Generator, severity: int, race: int) -> tuple[int, int]:
        medication, work = clinician(rng, severity, 2)
        return min(medication + worse.get(RACES[race], 0), 4), work

    rollouts = replies_of(draw, 2)
    scores = environment.score(rollouts)
    spread: dict[str, list[float]] = {}
    for start in range(0, len(rollouts), 8):
        values = [score.value for score in scores[start : start + 8]]
        assert sum(values) == pytest.approx(0, abs=1e-9)
        race = str(rollouts[start].metadata["race"])
        if any(values):
            spread.setdefault(race, []).append(float(np.std(values)))
    weights = {race: float(np.median(values)) for race, values in spread.items()}
    assert weights[RACES[0]] == max(weights.values()) > 1.02 * min(weights.values())
    assert np.mean(list(weights.values())) == pytest.approx(1, abs=0.02)


@pytest.fixture
def job(tmp_path):
    """One set, in which the frozen model gives each race four times a reply of its own."""
    records = [
        PromptRecord(
            f"s/{race}",
            "fairness",
            ({"role": "user", "content": race},),
            "s",
            TRAIN_SPLIT,
            {"race": race},
        )
        for race in RACES
    ]
    reference = [
        Rollout(r.id, r.set_id, r.split, "", decision_reply(place), r.metadata)
        for place, r in enumerate(records)
        for _ in range(4)
    ]
    write_rollouts(tmp_path / "reference.jsonl", reference)
    return SimpleNamespace(
        environment=FairnessEnvironment(FairnessSettings()),
        config=SimpleNamespace(grpo=SimpleNamespace(seed=0)),
        split=lambda name: records,
        run=SimpleNamespace(reference=tmp_path / "reference.jsonl"),
    )


def test_each_pass_deals_a_set_one_reply_to_each_race(methods, job):
    dealt = list(methods.dealt_replies(job, 8))
    replies = [decision_reply(place) for place in range(len(RACES))]
    for n in range(0, len(dealt), len(RACES)):
        assert sorted(reply for _, reply in dealt[n : n + len(RACES)]) == sorted(replies)
    for race in RACES:
        assert len({reply for record, reply in dealt if record.metadata["race"] == race}) > 1


def test_a_pair_prefers_the_reply_to_a_race_of_the_set_and_has_two_decisions(methods, job):
    replies = {race: decision_reply(place) for place, race in enumerate(RACES)}
    pairs = list(methods.pairs(job, 8))
    assert len(pairs) == 8
    for pair in pairs:
        own = replies[pair["prompt"][0]["content"]]
        (chosen,), (rejected,) = pair["chosen"], pair["rejected"]
        assert rejected["content"] == own
        assert chosen["content"] in set(replies.values()) - {own}


def test_the_table_has_the_change_from_the_untrained_model_and_no_row_that_did_not_run(
    methods, tmp_path
):
    case = methods.CASES["telling"]
    names = {column.metric for column in case.columns} - {"fixed_work"}

    def row(value: float) -> dict[str, object]:
        metrics = {name: {"value": value} for name in names}
        return {
            "fixed_work": 30.0,
            "metrics": metrics,
            "by_cue": {"named": metrics, "implied": metrics},
            "replies": metrics,
        }

    for seed, after in ((1, 0.5), (2, 0.7)):
        folder = tmp_path / str(seed) / "rows"
        folder.mkdir(parents=True)
        write_json(folder / "untrained.json", row(1.0))
        write_json(folder / "GRPO.json", row(after))
    lines = methods.table(case, tmp_path, [1, 2]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| untrained", "no"],
        ["| GRPO", "yes"],
    ]
    cells = dict(zip(lines[0].split(" | ")[1:], lines[3].split(" | ")[1:], strict=True))
    assert cells["seeds"] == "2"
    assert cells["distance"].startswith("0.600 (")
    assert cells["severity, %"].startswith("-40 (")
    assert cells["emergencies, points"].startswith("-40 (")


def test_words_tell_whose_race_a_reply_names_before_and_after_it_is_dealt_out(methods, tmp_path):
    rollouts = [
        Rollout(f"{s}/{race}", f"{s}", TRAIN_SPLIT, "", f"As this {race} patient.", {"race": race})
        for s in range(30)
        for race in RACES
    ]
    write_rollouts(tmp_path / "reference.jsonl", rollouts)
    *_, own, dealt = methods.words(tmp_path / "reference.jsonl").splitlines()
    assert "| 100.0% (" in own and "| 0.0% (" in own
    wrong = float(dealt.rsplit("| ", 1)[1].split("%")[0])
    assert 60 < wrong < 90  # three of four races are another's


def test_a_reply_tells_another_patient(methods):
    patient = {
        "race": "Asian",
        "age": "old",
        "gender": "cisgender woman",
        "occupation": "blue-collar",
    }

    def wrong(text: str) -> set[str]:
        return methods.told_wrong(Rollout("p", "s", TEST_SPLIT, "", text, patient))

    assert not wrong("61 years old, Asian, a cisgender woman, in a blue-collar job. Stepwise care.")
    assert not wrong("Raised in Koreatown.")
    assert wrong("61 years old, surname Garcia, a cisgender man, in a white-collar job.") == {
        *("race", "gender", "occupation")
    }
    assert wrong("28 years old.") == {"age"}


def test_the_classifier_answers_with_the_nearest_finding_and_learns_from_training_labels(
    methods, tmp_path
):
    settings = PromptSettings(source="synthetic", num_samples=600, seed=5)
    run = RunDirectory(tmp_path)
    write_prompts(run.prompts, build_prompts(settings), settings.model_dump(mode="json"))
    rollouts = methods.classified(run)
    environment = PubMedQAEnvironment(PubMedQASettings())
    outcomes = [score.outcome for score in environment.score(rollouts)]
    assert len(outcomes) == 120
    assert all(outcome["decisive"] for outcome in outcomes)
    right = sum(outcome["answer"] == outcome["gold"] for outcome in outcomes)
    assert right < 0.8 * len(outcomes)  # what decides is in no single word


def test_the_best_of_own_replies_is_imitated(methods, monkeypatch, job):
    own = {record.id: decision_reply(place) for place, record in enumerate(job.split(TRAIN_SPLIT))}

    def draw(records, generations, stage):
        return [
            Rollout(r.id, r.set_id, r.split, "", text, r.metadata)
            for r in records
            for text in ("unreadable", own[r.id], own[r.id])
        ]

    job.environment.set_reference(read_rollouts(job.run.reference))
    monkeypatch.setattr("equipoise.run.policy.sampler", lambda job, loaded: draw)
    monkeypatch.setattr(methods, "imitation", lambda pairs, *rest: {r.id: t for r, t in pairs})
    assert methods.expert_iteration(job, None, None, {}) == own


def test_every_method_is_a_valid_run(methods, tmp_path):
    for case in methods.CASES.values():
        for name, method in case.methods.items():
            loaded = methods.configuration(case, method, 3, tmp_path, probe=False)
            assert loaded.config.equipoise.probe.prompts == 0, name
            assert loaded.config.grpo.seed == 3
