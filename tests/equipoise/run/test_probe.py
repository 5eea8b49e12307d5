"""The stages around training: their order, the probe of trivial baselines, and modes.json."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.splits import sample_names
from environments.base import Failure, PromptRecord, Score
from environments.measurement import Measurement, Metric, Modes
from equipoise.files.disk import read_json
from equipoise.run.job import (
    after_training,
    is_drawn,
    score_final,
    statistics_settings,
    take_reference,
)
from equipoise.run.probe import (
    compare_with_trained,
    modes_dict,
    training_sample,
    write_modes,
)
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from equipoise.run.seals import damage_of
from equipoise.statistics.intervals import StatisticsSettings, holm, mcnemar
from tests.equipoise.conftest import Toy
from tests.equipoise.run.toy import Model, before_training
from tests.refusals import refusal


class Skilled(Toy):
    """Wants an A where the prompt asks for p3, a B where it asks for p4, and knows baselines."""

    def score(self, rollouts):
        wanted = {"p3": "A", "p4": "B"}
        return [
            Score(float(wanted.get(r.prompt_id, "A") in r.completion), outcome={}) for r in rollouts
        ]

    def constant_replies(self):
        return ["AB"]

    def trivial_replies(self, rollouts, seed):
        return {"../shouting, loud": [rollout.completion.upper() for rollout in rollouts]}

    def blinded(self, record):
        return ({"role": "user", "content": "blind"},)


@pytest.fixture
def skilled(job):
    return replace(job, environment=Skilled())


def probed(job, model):
    before_training(job, model)
    return read_json(job.run.probe / "probe.json")


def test_the_stages_of_both_engines_draw_in_this_order(job):
    model = Model()
    before_training(job, model)
    assert not is_drawn(job)
    after_training(job, model)
    assert is_drawn(job)
    score_final(job)
    assert is_drawn(job)
    assert model.asked == [
        ("reference", 5, 2),
        ("baseline", 2, 3),
        ("probe", 2, 4),
        ("greedy", 2, 1),
        ("greedy", 2, 1),
        ("final", 2, 3),
    ]
    assert len(job.environment.reference) == len(read_rollouts(job.run.reference)) == 10
    for stage in ("baseline", "final"):
        evaluation = read_json(job.run.evaluation(stage))
        assert evaluation["metrics"]["accuracy"]["value"] == 1
        assert evaluation["watched"] == {"metric": "accuracy", "better": "higher"}


def test_another_process_scores_what_the_trained_model_wrote_last(job):
    before_training(job, Model())
    for reply in "BA":  # the first process was lost
        after_training(job, Model(reply))
    assert not job.run.evaluation("final").exists()
    resumed = replace(job, environment=type(job.environment)())
    take_reference(resumed)
    for _ in range(2):  # then nothing is left to do
        score_final(resumed)
        for path in (job.run.rollouts("final"), job.run.greedy):
            assert {rollout.completion for rollout in read_rollouts(path)} == {"A"}
        assert damage_of(job.run, "final") == []


def test_every_policy_is_measured_like_the_untrained_model(skilled):
    baselines = probed(skilled, Model("a A"))["baselines"]
    rewards = {name: baseline["metrics"]["reward"]["value"] for name, baseline in baselines.items()}
    assert rewards == {
        "untrained": 0.5,
        "constant": 1.0,
        "always_refuse": 0.0,
        "copy_prompt": 0.0,
        "copy_prompt_end": 0.0,
        "vote": 0.5,
        "best_of_n": 0.5,
        "../shouting, loud": 0.5,
        "greedy": 0.5,
        "blinded": 0.0,
    }
    assert all(list(p["metrics"]) == ["reward", "accuracy"] for p in baselines.values())
    assert [n for n, p in baselines.items() if not p["note"]] == ["../shouting, loud"], "the task's"


def test_the_policies_of_all_tasks_are_on_the_page(skilled):
    baselines = [n for n, p in probed(skilled, Model())["baselines"].items() if p["note"]]
    page = (Path(__file__).parents[3] / "docs" / "report.md").read_text("utf-8")
    bold = ", ".join(re.findall(r"^- \*\*(.+?)\*\*:", page, re.MULTILINE)).split(", ")
    assert sorted(bold) == sorted(name.replace("_", " ") for name in baselines)


def test_the_constant_is_searched_on_training_prompts(skilled):
    model = Model()
    content = probed(skilled, model)
    assert content["constants"]["constant"]["reply"] == "AB"
    assert ("probe", 2, 4) in model.asked, "the two prompts of the training split"
    assert content["constants"]["constant"]["tried"] > 3


def test_training_prompts_are_sampled_apart_from_what_chose_them():
    """The hash that thinned a task's prompts out would leave out the kind with most of them."""
    few = [f"few {n}" for n in range(40)]
    many = sorted(sample_names((f"many {n}" for n in range(4000)), 40, seed=1))
    records = [PromptRecord(name, "t", (), name, "train", {}) for name in (*few, *many)]
    taken = training_sample(records, 40, seed=1)
    assert sum(record.id in many for record in taken) == pytest.approx(20, abs=9)


def test_the_scored_replies_are_kept(skilled):
    probed(skilled, Model())
    kept, scores = read_scored_rollouts(skilled.run.probe / "constant.jsonl")
    assert {rollout.completion for rollout in kept} == {"AB"}
    twice = ["p3", "p3", "p4", "p4"]  # this task's reward compares a reply with its siblings
    assert [rollout.prompt_id for rollout in kept] == twice
    assert [score.value for score in scores] == [1.0] * 4
    assert not (skilled.run.probe / "untrained.jsonl").exists(), "which is the baseline"
    assert (skilled.run.probe / "-shouting-loud.jsonl").is_file()


def test_what_earns_more_without_reading_is_told_before_training(skilled, capsys):
    many = [replace(skilled.records[-1], id=f"q{n}", set_id=f"q{n}") for n in range(40)]
    skilled = replace(skilled, records=[*skilled.records, *many])  # they want an A
    assert probed(skilled, Model("B"))["ahead"] == ["constant"]
    told = " ".join(capsys.readouterr().out.split())
    assert "worse in reward than baselines that ignore the prompt: constant." in told


def test_none_is_made_where_none_is_wanted(job):
    section = job.config.equipoise
    none = section.probe.model_copy(update={"prompts": 0})
    config = job.config.model_copy(update={"equipoise": section.model_copy(update={"probe": none})})
    job = replace(job, loaded=replace(job.loaded, config=config))
    before_training(job, Model())
    assert not job.run.probe.exists()
    statistics = statistics_settings(job.config)
    assert compare_with_trained(job.run, job.environment, statistics) is None


def test_what_cannot_be_scored_is_refused(skilled):
    class Fails(Skilled):
        def score(self, rollouts):
            failure = Failure("server_error", "500")
            return [
                Score(None, error=failure) if "nothing" in r.completion else Score(1.0)
                for r in rollouts
            ]

    with refusal("evaluation.failed-scores", "baseline 'blinded'"):
        probed(replace(skilled, environment=Fails()), Model())
    assert not skilled.run.probe.exists()


class TestBesideTheTrainedModel:
    @staticmethod
    def trained(job, reply, greedy=""):
        probed(job, Model())
        model = Model(reply, greedy=greedy)
        after_training(job, model)
        score_final(job)
        write_modes(job)
        return read_json(job.run.modes)

    def test_greedy_is_compared_with_the_trained_model_at_temperature_0(self, skilled, capsys):
        """Its samples are right in half of the prompts, and the likeliest replies in all."""
        trivial = self.trained(skilled, "A", greedy="AB")["trivial"]
        assert trivial["trained"]["reward"]["value"] == 0.5
        assert trivial["trained_greedy"]["reward"]["value"] == 1.0
        against = {name: baseline["against"] for name, baseline in trivial["baselines"].items()}
        assert against["greedy"]["reward"]["difference"] == 0.5
        assert against["untrained"]["reward"]["difference"] == 0.0
        kept, _ = read_scored_rollouts(skilled.run.greedy)
        assert [rollout.completion for rollout in kept] == ["AB"] * 4, "as often as any one reply"
        assert damage_of(skilled.run, "final") == []
        told = " ".join(capsys.readouterr().out.split())
        assert "greedy: compared with the trained model at temperature 0, which has 1.000" in told
        assert "greedy (both models)" in told, "two prompts show nothing"


SETTINGS = StatisticsSettings(bootstrap_draws=500)


def answered(outcomes):
    right = np.array(outcomes, dtype=bool)
    sums = np.column_stack([right, np.ones(len(right))])
    rate = Metric(lambda t: t[..., 0] / t[..., 1], "higher", outcomes=right)
    recall = Metric(lambda t: t[..., 0] * np.nan, "higher")
    names = tuple(f"q{n}" for n in range(len(right)))
    return Measurement(names, sums, {"accuracy": rate, "recall": recall})


MODES = {"nothing": answered([0] * 30 + [1] * 10), "question": answered([0] * 22 + [1] * 18)}
STAGES = {"trained": answered([0] * 2 + [1] * 38)}


@pytest.fixture(scope="module")
def found():
    modes = Modes(MODES, {"final": "trained"}, {"search": 0.1}, {"index": "x"}, ("a note",))
    return modes_dict(modes, STAGES, SETTINGS)


def test_every_mode_has_its_figures_with_intervals(found):
    assert list(found["modes"]) == ["nothing", "question", "trained"]
    figure = found["modes"]["trained"]["accuracy"]
    assert figure.value == 38 / 40
    assert figure.low < 38 / 40 < figure.high
    assert found["modes"]["trained"]["recall"].value is None
    assert (found["seconds"], found["notes"]) == ({"search": 0.1}, ["a note"])
    assert found["sources"] == {"index": "x"}


def test_pairs_are_tested_exactly_and_corrected_together(found):
    pairs = {tuple(row["modes"]): row for row in found["comparisons"]}
    assert len(pairs) == 3
    p = {
        pair: mcnemar(*((MODES | STAGES)[name].metrics["accuracy"].outcomes for name in pair))
        for pair in pairs
    }
    assert {pair: row["p"] for pair, row in pairs.items()} == p
    assert {pair: row["p_holm"] for pair, row in pairs.items()} == holm(p)
    assert all(row["test"] == "mid-p McNemar" for row in pairs.values())
    assert pairs["nothing", "trained"]["verdict"] == "better"
    assert pairs["nothing", "question"]["difference"] == pytest.approx(0.2)


def test_only_questions_of_both_modes_are_compared():
    few = Modes({"first": answered([0] * 10)}, {"final": "second"})
    (row,) = modes_dict(few, {"second": answered([1] * 30)}, SETTINGS)["comparisons"]
    assert row["p"] == mcnemar(np.zeros(10, bool), np.ones(10, bool))
