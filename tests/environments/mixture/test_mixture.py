"""A mixture: each task is scored and measured as it is alone, on one constant scale."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from environments.base import (
    DealtReply,
    Failure,
    IncompleteSetError,
    PromptRecord,
    Rollout,
    Score,
)
from environments.contract import Environment, EnvironmentSettings
from environments.measurement import Mean, measure_means
from environments.mixture import MixtureEnvironment, MixtureSettings
from environments.mixture.environment import spread
from environments.pubmedqa import PubMedQAEnvironment
from environments.rag import RagEnvironment
from equipoise.statistics.compare import compare
from equipoise.statistics.evaluation import headline_figures
from equipoise.statistics.gate import SETTINGS, Watched
from equipoise.statistics.intervals import StatisticsSettings
from tests.refusals import refusal


class Length(Environment):
    """Long replies; one that is empty cannot be scored."""

    name = "length"
    objective_margin = 0.5

    def score(self, rollouts):
        return [
            Score(float(len(r.completion)), {"length": 1.0}, None, {"text": r.completion})
            if r.completion
            else Score(None, error=Failure("policy", "nothing"))
            for r in rollouts
        ]

    def measure(self, rollouts, scores):
        values = [score.value for score in scores]
        long = Mean([v and float(v > 2) for v in values], better="higher", yes_or_no=True)
        return measure_means([r.prompt_id for r in rollouts], {"long_rate": long})


class Pairs(Environment):
    """Sets of two, whose replies are to be alike; a distance, of which less is better."""

    name = "pairs"
    scope = "set"
    set_size = 2
    objective = "distance"
    objective_margin = 0.1

    class Settings(EnvironmentSettings):
        factor: float = 1.0
        replies: int = 3

        @property
        def reference_size(self):
            return self.replies

    @property
    def reference_generations(self):
        return self.settings.replies

    def set_reference(self, rollouts):
        self.reference = {rollout.set_id for rollout in rollouts}

    def score(self, rollouts):
        lengths = {}
        for rollout in rollouts:
            lengths.setdefault(rollout.set_id, {}).setdefault(rollout.prompt_id, []).append(
                len(rollout.completion)
            )
        for name, members in lengths.items():
            if len(members) != 2:
                raise IncompleteSetError(name)
        means = {n: np.mean([np.mean(v) for v in m.values()]) for n, m in lengths.items()}
        factor = self.settings.factor
        return [Score(-factor * abs(len(r.completion) - means[r.set_id])) for r in rollouts]

    def measure(self, rollouts, scores):
        distances = [s.value and -s.value for s in scores]
        measured = measure_means(
            [r.set_id for r in rollouts], {"distance": Mean(distances, better="lower")}
        )
        # A row for each half of a cluster: rows of one name are added.
        measured = replace(
            measured,
            clusters=measured.clusters * 2,
            sums=np.concatenate([measured.sums / 4, measured.sums * 3 / 4]),
        )
        floor = replace(measured.metrics["distance"], floor=True)
        return replace(
            measured,
            metrics={"distance": floor},
            breakdowns={"by_size": {"2": {"distance": measured.metrics["distance"]}}},
            null_sums=lambda rng, draws: rng.normal(1.0, 0.1, (draws, measured.sums.shape[1])),
            strata=tuple("ab"[int(n.rpartition("/")[2]) % 2] for n in measured.clusters),
        )


def tasks(**changes):
    content = {
        "length": {"environment": f"{__name__}.Length", "weight": 1},
        "pairs": {"environment": f"{__name__}.Pairs", "weight": 1},
    }
    for name, values in changes.items():
        content[name] = values and content.get(name, {}) | values
    return {"tasks": content}


def mixture(**changes):
    return MixtureEnvironment(MixtureSettings.model_validate(tasks(**changes)))


def replies(seed, prompts=60, generations=4):
    """Of either task, the tasks in turn."""
    rng = np.random.default_rng(seed)
    return [
        Rollout(
            f"{task}/{n}",
            f"{task}/{n // 2 if task == 'pairs' else n}",
            "train",
            "",
            "x" * int(rng.integers(1, 6)),
            {"task": task},
        )
        for n in range(prompts)
        for task in ("length", "pairs")
        for _ in range(generations)
    ]


def of(task, rollouts):
    return [rollout for rollout in rollouts if rollout.metadata["task"] == task]


def alone(task, rollouts):
    environment = {"length": Length, "pairs": Pairs}[task]()
    own = of(task, rollouts)
    return environment, own, environment.score(own)


def ready(**changes):
    environment = mixture(**changes)
    environment.set_reference(replies(seed=1))
    return environment


@pytest.mark.parametrize("task", ["length", "pairs"])
def test_a_reply_is_worth_what_its_task_pays_over_the_scale(task):
    environment, rollouts = ready(), replies(seed=2)
    scores = environment.score(rollouts)
    mine = [s for s, r in zip(scores, rollouts, strict=True) if r.metadata["task"] == task]
    _, _, own = alone(task, rollouts)
    assert [score.value for score in mine] == [s.value / environment.scale(task) for s in own]
    assert [score.components[f"{task}.reward"] for score in mine] == [s.value for s in own]
    assert [score.evidence for score in mine] == [s.evidence for s in own]


def test_what_cannot_be_scored_is_no_number():
    environment, rollouts = ready(), replies(seed=2)
    rollouts[0] = replace(rollouts[0], completion="")
    score = environment.score(rollouts)[0]
    assert score.value is None and score.error == Failure("policy", "nothing")


@pytest.mark.parametrize("task", ["length", "pairs"])
def test_the_metrics_of_a_task_are_those_that_it_has_alone(task):
    """And so are their changes: each task is resampled by itself, its yes and no are counted."""
    environment, (before, after) = ready(), (replies(seed=3), replies(seed=4))
    both = [environment.measure(r, environment.score(r)) for r in (before, after)]
    own = [e.measure(r, s) for e, r, s in (alone(task, before), alone(task, after))]
    points = both[0].point_estimates()
    for name, value in own[0].point_estimates().items():
        assert points[f"{task}.{name}"] == pytest.approx(value, rel=1e-12)
    settings = StatisticsSettings(bootstrap_draws=4000, permutations=4000)
    figures, expected = (headline_figures(m, settings) for m in (both[0], own[0]))
    changes, changes_alone = compare(*both, settings), compare(*own, settings)
    for name in own[0].metrics:
        assert figures[f"{task}.{name}"]["low"] == pytest.approx(expected[name]["low"], abs=0.02)
        assert figures[f"{task}.{name}"].keys() == expected[name].keys()
        change, change_alone = changes[f"{task}.{name}"], changes_alone[name]
        assert change.difference == pytest.approx(change_alone.difference, rel=1e-12)
        assert change.p == pytest.approx(change_alone.p, abs=0.02)
    sections = {f"{task}.{section}" for section in own[0].breakdowns}
    assert sections == {name for name in both[0].breakdowns if name.startswith(task)}


def test_few_clusters_of_a_task_are_as_few_as_they_are_alone():
    """The quantile of Student's t is that of its own 7 and 3 clusters, not of all 10."""
    environment = ready()
    before, after = (replies(seed, prompts=7) for seed in (3, 4))
    before, after = (
        [r for r in rollouts if r.set_id != "pairs/3"] for rollouts in (before, after)
    )  # half of a set
    both = [environment.measure(r, environment.score(r)) for r in (before, after)]
    settings = StatisticsSettings(bootstrap_draws=4000, permutations=4000)
    figures, changes = headline_figures(both[0], settings), compare(*both, settings)
    for task, name, tolerance in (("length", "long_rate", 1e-9), ("pairs", "distance", 0.1)):
        own = [e.measure(r, s) for e, r, s in (alone(task, before), alone(task, after))]
        expected, change = headline_figures(own[0], settings)[name], compare(*own, settings)[name]
        figure, changed = figures[f"{task}.{name}"], changes[f"{task}.{name}"]
        for bound in ("low", "high"):
            assert figure[bound] == pytest.approx(expected[bound], rel=tolerance)
            assert getattr(changed, bound) == pytest.approx(getattr(change, bound), rel=tolerance)


def test_the_mean_objective_counts_each_task_in_its_margins_and_lower_may_be_better():
    environment, rollouts = ready(), replies(seed=3)
    points = environment.measure(rollouts, environment.score(rollouts)).point_estimates()
    expected = (points["length.reward"] / 0.5 - points["pairs.distance"] / 0.1) / 2
    assert points["mean_objective"] == pytest.approx(expected)
    part = of("length", rollouts)
    missing = environment.measure(part, environment.score(part)).point_estimates()
    assert math.isnan(missing["mean_objective"])
    assert missing["length.reward"] == pytest.approx(points["length.reward"])


def test_the_gate_watches_the_objective_of_every_task():
    environment, rollouts = ready(), replies(seed=3)
    shorter = [
        replace(r, completion="x") if r.metadata["task"] == "length" else r for r in rollouts
    ]
    pair = [(r, environment.score(r)) for r in (rollouts, shorter)]
    watched = Watched(environment, {}).compare(*pair)
    assert watched.keys() == {"mean_objective", "length.reward", "pairs.distance"}
    assert watched["length.reward"].comparison.guard == "lost"
    assert watched["pairs.distance"].comparison.guard == "kept"
    counts = {name: metric.clusters for name, metric in watched.items()}
    assert counts["length.reward"] == 60 and counts["pairs.distance"] == 30  # each has its own
    assert SETTINGS.confidence == 0.95


def test_a_scale_is_the_spread_of_the_reference_and_stays():
    environment, reference = mixture(), replies(seed=1)
    environment.set_reference(reference)
    _, own, scores = alone("length", reference)
    assert environment.scale("length") == spread(own, scores)
    by_prompt = {}
    for score, rollout in zip(scores, own, strict=True):
        by_prompt.setdefault(rollout.prompt_id, []).append(score.value)
    deviations = [value - np.mean(values) for values in by_prompt.values() for value in values]
    scaled = np.array(deviations) / environment.scale("length")
    assert np.mean(scaled**2) == pytest.approx(1.0)
    before = environment.exports((), ())
    environment.score(replies(seed=9))
    assert environment.exports((), ()) == before
    again = mixture()  # another process, or the same after --resume
    again.set_reference(reference)
    assert again.exports((), ()) == before
    assert json.loads(json.dumps(before))["mixture.json"]["length"]["scale"] > 0


def test_the_scale_of_evaluation_prompts_is_not_looked_at():
    reference = replies(seed=1)
    test = [
        replace(
            r, split="test", prompt_id=f"t{r.prompt_id}", set_id=f"t{r.set_id}", completion="xx"
        )
        for r in reference
    ]
    first, second = mixture(), mixture()
    first.set_reference(reference)
    second.set_reference([*test, *reference])
    assert first.scale("length") == second.scale("length")


def test_a_scale_is_measured_on_prompts_of_every_kind():
    """A task's file may have one kind of prompt after the other."""
    tied = [replace(r, completion="xx") for r in replies(seed=1, prompts=300)]
    later = [
        replace(
            r,
            prompt_id=f"{r.prompt_id}+",
            set_id=f"{r.set_id}+",
            completion=3 * r.completion,
        )
        for r in replies(seed=1, prompts=300)
    ]
    environment = mixture()
    environment.set_reference([*tied, *later])
    whole = mixture()
    whole.set_reference(later)
    share = (environment.scale("length") / whole.scale("length")) ** 2
    assert share == pytest.approx(0.5, abs=0.2)  # half of its variance


def test_a_scale_that_is_set_needs_no_reference_and_one_without_spread_is_1():
    environment = mixture(length={"scale": 4.0}, pairs={"scale": 2.0, "settings": {"replies": 0}})
    assert environment.reference_generations == 0
    assert environment.score(of("length", replies(seed=2)))[0].value == pytest.approx(
        len(replies(seed=2)[0].completion) / 4
    )
    tied = mixture()
    tied.set_reference([replace(r, completion="xx") for r in replies(seed=1)])
    assert tied.scale("length") == 1.0


def test_the_range_of_rewards_is_known_with_the_scales():
    class Bounded(Length):
        def reward_range(self):
            return 0.0, 8.0

    class BoundedPairs(Pairs):
        def reward_range(self):
            return -6.0, 0.0

    environment = mixture(length={"scale": 4.0})
    assert environment.reward_range() is None
    environment.tasks = {"length": Bounded(), "pairs": BoundedPairs()}
    assert environment.reward_range() is None  # the scale of pairs is to be measured
    environment.set_reference(replies(seed=1))
    assert environment.reward_range() == (-6.0 / environment.scale("pairs"), 2.0)


def test_before_the_reference_there_is_no_scale():
    with pytest.raises(ValueError, match="the scale of length is not measured"):
        mixture().score(of("length", replies(seed=2)))


def test_a_reference_has_as_many_replies_as_the_task_that_wants_most():
    assert mixture().reference_generations == 8
    many = {"settings": {"replies": 20}}
    assert mixture(pairs=many).reference_generations == 20
    assert mixture(pairs=many | {"scale": 1.0}, length={"scale": 1.0}).reference_generations == 20


def test_a_part_of_a_set_is_the_callers_bug():
    pair = of("pairs", replies(seed=2))
    with pytest.raises(IncompleteSetError):
        ready().score([r for r in pair if r.prompt_id != "pairs/0"])


def test_a_prompt_of_no_task_is_named():
    rollout = replace(replies(seed=2)[0], metadata={"task": "songs"})
    with pytest.raises(
        ValueError, match="'songs', which is no task of this mixture; it has length"
    ):
        ready().score([rollout])


@pytest.mark.parametrize(
    ("weights", "parts"),
    [((1, 1), (2, 2)), ((1, 2), (2, 4)), ((3, 1), (3, 1)), ((2, 1), (4, 2)), ((3, 2), (6, 4))],
)
def test_a_round_is_whole_sets_by_weight(weights, parts):
    length, pairs = weights
    settings = mixture(length={"weight": length}, pairs={"weight": pairs}).settings
    found = {name: part.prompts for name, part in settings.round.items()}
    wanted = dict(zip(("length", "pairs"), parts, strict=True))
    assert {n: c * wanted["length"] for n, c in found.items()} == {
        n: c * found["length"] for n, c in wanted.items()
    }
    assert found["pairs"] % 2 == 0 and settings.set_size % 2 == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": {"weight": 0}}, "greater than or equal to 1"),
        ({"songs": {"environment": "environments.songs.Songs", "weight": 1}}, "cannot import"),
        ({"songs": {"environment": f"{__name__}.tasks", "weight": 1}}, "is no environment"),
        ({"songs": {"environment": f"{__name__}.Length"}}, "weight"),
        ({"pairs": {"settings": {"factors": 2}}}, "settings.factors: Extra inputs"),
        ({"pairs": None}, "at least two tasks"),
        (
            {"songs": {"environment": f"{__name__}.Triples", "weight": 1}},
            "sets of 2 and of 3 prompts",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_by_one_message(changes, message):
    with pytest.raises(ValidationError, match=message) as refused:
        MixtureSettings.model_validate(tasks(**changes))
    assert refused.value.error_count() == 1


class Triples(Pairs):
    set_size = 3


class Aimless(Length):
    objective_margin = None


def test_tasks_are_counted_in_margins_that_they_must_have():
    with refusal("mixture.no-margin", "reward"):
        mixture(length={"environment": f"{__name__}.Aimless"})


def test_a_policy_without_skill_replies_to_the_prompts_of_its_task_alone():
    class Silent(Length):
        def trivial_replies(self, rollouts, seed):
            return {"silence": ["-"] * len(rollouts)}

    environment, rollouts = ready(), replies(seed=2)
    environment.tasks["length"] = Silent()
    (name, completions), *_ = environment.trivial_replies(rollouts, 0).items()
    assert name == "length.silence"
    for rollout, completion in zip(rollouts, completions, strict=True):
        expected = "-" if rollout.metadata["task"] == "length" else rollout.completion
        assert completion == expected


def test_a_prompt_is_blinded_as_its_task_does_it():
    record = PromptRecord("1", "length", ({"role": "user", "content": "?"},), "1", "test")
    record = replace(record, metadata={"task": "length"})
    assert ready().blinded(record) == record.messages


class Swapped(Pairs):
    """Shows each prompt of a pair the first reply to the other one, once in all."""

    def dealt_replies(self, records, reference, passes, seed):
        first, second = records
        completions = {r.prompt_id: r.completion for r in reversed(reference)}
        return [
            DealtReply(first, second, completions[second.id]),
            DealtReply(second, first, completions[first.id]),
        ]


def dealt(environment, reference):
    records = [
        PromptRecord(name, task, ({"role": "user", "content": name},), "s", "train", {"task": task})
        for name, task in dict.fromkeys((r.prompt_id, r.metadata["task"]) for r in reference)
    ]
    return [
        (reply.record.id, reply.source.id, reply.completion)
        for reply in environment.dealt_replies(records, reference, 3, seed=0)
    ]


def test_a_task_that_deals_no_replies_keeps_its_own():
    reference = replies(seed=1, prompts=2, generations=2)
    texts = {}
    for rollout in reference:
        texts.setdefault(rollout.prompt_id, []).append(rollout.completion)
    environment = mixture(pairs={"environment": f"{__name__}.Swapped"})
    assert environment.deals_replies and not mixture().deals_replies
    found = dealt(environment, reference)
    assert found[:2] == [
        ("pairs/0", "pairs/1", texts["pairs/1"][0]),
        ("pairs/1", "pairs/0", texts["pairs/0"][0]),
    ]
    own = [(name, name, texts[name][n % 2]) for n in range(3) for name in ("length/0", "length/1")]
    assert found[2:] == own


def test_where_no_task_deals_replies_none_is_shown():
    class Unreadable(Pairs):
        def dealt_replies(self, records, reference, passes, seed):
            return []

    environment = mixture()
    assert dealt(environment, replies(seed=1, prompts=2)) == []
    environment.tasks["pairs"] = Unreadable()
    assert dealt(environment, replies(seed=1, prompts=2)) == []


def test_models_of_two_names_in_one_process_are_refused():
    def of_rag(name):
        return {
            "environment": f"{RagEnvironment.__module__}.{RagEnvironment.__name__}",
            "weight": 1,
            "settings": {"generator": {"model_name": name}},
        }

    with refusal("mixture.several-models", "a/b and c/d"):
        mixture(one=of_rag("a/b"), two=of_rag("c/d"))
    assert mixture(one=of_rag("a/b"), two=of_rag("a/b")).wanted_chat_model() == "a/b"


def test_a_reward_of_a_shipped_task_has_the_margin_that_the_gate_takes():
    environment = PubMedQAEnvironment(PubMedQAEnvironment.Settings())
    assert environment.margin() == pytest.approx(0.02 * environment.reward_range()[1])


def test_the_reference_is_of_no_prompt_that_nothing_reads():
    """All of a task that compares with it; of another one training, or the sample of a scale."""
    records = [
        PromptRecord(f"{task}/{split}/{n}", task, (), f"{task}/{split}/{n // 2}", split)
        for task in ("length", "pairs")
        for split in ("train", "test")
        for n in range(200)
    ]

    def counts(**changes):
        chosen = mixture(**changes).settings.reference_prompts(records)
        assert [record for record in records if record in chosen] == list(chosen)
        return {
            name: sum(record.id.startswith(name) for record in chosen)
            for name in ("length/train", "length/test", "pairs/train", "pairs/test")
        }

    all_pairs = {"pairs/train": 200, "pairs/test": 200}
    assert counts() == {"length/train": 128, "length/test": 0, **all_pairs}
    assert counts(length={"scale": 1.0}) == {"length/train": 0, "length/test": 0, **all_pairs}
    dealing = counts(pairs={"environment": f"{__name__}.Swapped"})
    assert dealing == {"length/train": 200, "length/test": 0, **all_pairs}


def test_a_scale_is_that_of_the_whole_reference():
    whole = [
        replace(rollout, prompt_id=f"{split}/{rollout.prompt_id}", split=split)
        for split in ("train", "test")
        for rollout in replies(seed=1, prompts=200)
    ]
    records = [
        PromptRecord(r.prompt_id, r.metadata["task"], (), r.set_id, r.split)
        for r in {r.prompt_id: r for r in whole}.values()
    ]
    needed = {r.id for r in mixture().settings.reference_prompts(records)}
    part = [rollout for rollout in whole if rollout.prompt_id in needed]
    scales = []
    for reference in (whole, part):
        environment = mixture()
        environment.set_reference(reference)
        scales.append([environment.scale(name) for name in ("length", "pairs")])
    assert len(part) < len(whole) and scales[0] == scales[1]
