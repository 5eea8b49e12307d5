"""The disparity environment: decisions that do not change with the patient's race.

Or with another attribute: that, the decision and the meant effects are a `Design`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from environments.base import (
    CONTROL_SPLIT,
    UNPARSEABLE,
    Failure,
    Message,
    PromptRecord,
    Rollout,
    Scope,
    Score,
    outcomes_of,
)
from environments.contract import Environment, EnvironmentSettings
from environments.fairness.decision import Decision, Design
from environments.fairness.metrics import BLIND_DISTANCE, measure_disparity
from environments.fairness.own_cases import OwnCasesPath, read_own_cases
from environments.fairness.presentation import PRESENTATION, presentation_of
from environments.fairness.sets import (
    MISSING,
    Anchors,
    DecisionOutcome,
    DecisionSets,
    Points,
    decision_points,
    distances,
    gather_sets,
    mean_invasiveness,
    outcome_points,
)
from environments.fairness.spine import SPINE
from environments.fairness.words import Reader, Texts, Wording, foreign_words
from environments.measurement import Measurement, quotient
from environments.replies import Unparseable
from environments.yaml_file import file_hash

# --- the rewards, as pure functions on arrays ----------------------------------------------------
#
# Shapes: S sets, R races (or values of another attribute), G generations, P coordinates. Every
# function returns the fairness term of the reward, [S, R, G], from which `score` makes the value.
# NaN marks a reply that is not parseable or has nothing to be compared with. GRPO subtracts the
# mean of a prompt's generations, so the term differs from reply to reply: one that is constant over
# a prompt's generations would cancel exactly.


Terms = NDArray[np.float64]


def distribution(sets: DecisionSets, reference: Points, texts: Texts | None = None) -> Terms:
    """The energy-distance reward: whole replies are to be distributed as the reference is.

    With d the distance of two replies (`sets.distances`), X' the reply's n - 1 parseable
    siblings and B the reference samples [S, N, P] of the same set, pooled over races:

        c mean d(x, X') - mean d(x, B)        c = (n - 1) / (n - 2)

    Averaged over the samples and without c, it is minus half the derivative of a squared energy
    distance (Szekely & Rizzo 2013, doi:10.1016/j.jspi.2013.03.018) with respect to the probability
    of x: it vanishes for every x when the distributions agree, so it does not reward collapsing to
    one reply. `sibling_correction` says why c is needed under GRPO. The other races' replies
    are not compared with: every race has the same reference, so races agree where it is reached.

    The distance includes that of `texts`, added under the root. Without it training is free to
    write one race another rationale, and does.
    """
    parts = []
    for s, (points, valid) in enumerate(zip(sets.points, sets.valid, strict=True)):
        to_siblings, to_samples = texts.distances(s) if texts else (0.0, 0.0)
        siblings = valid[:, None, :] & ~np.eye(valid.shape[1], dtype=bool)
        within = _masked_mean(distances(points, points, to_siblings), siblings)
        within *= sibling_correction(valid.sum(axis=1))[:, None]
        sampled = reference[s, :, 0] != MISSING
        to_reference = _masked_mean(distances(points, reference[s], to_samples), sampled)
        parts.append(np.where(valid, within - to_reference, np.nan))
    return np.array(parts, dtype=np.float64).reshape(sets.valid.shape)


def sibling_correction(parseable: NDArray[np.int_]) -> NDArray[np.float64]:
    """Return the correction of sibling distances for GRPO's baseline: (n - 1) / (n - 2).

    A reply counts in its siblings' rewards as well, so the mean that GRPO subtracts depends on
    the reply itself. In the policy gradient that leaves 1 - 2/n of the distance to siblings but
    1 - 1/n of a distance to anything else. Uncorrected, the policy is paid for losing its spread,
    the more the fewer its generations. With one or two parseable generations nothing is left to
    correct: 1.
    """
    return np.where(parseable > 2, (parseable - 1) / np.maximum(parseable - 2, 1), 1.0)


def distance(sets: DecisionSets, reference: Points) -> Terms:
    """Minus the distance of a reply's invasiveness to the mean of the race-blind reference.

    It asks for the one decision nearest to a mean, so the policy loses its spread and each case
    drifts to the nearest whole decision; kept for comparison.
    """
    return -np.abs(sets.invasiveness - mean_invasiveness(reference, sets.scored)[:, None, None])


def group_mean(sets: DecisionSets, reference: Points) -> Terms:  # noqa: ARG001
    """The set's mean invasiveness minus the reply's.

    The rule is one-directional: a less invasive reply always scores more, for any patient, so
    training drives every decision towards no treatment. Fair, and useless as medicine;
    kept because it is the rule that the idea started from, and to show the failure.
    """
    values = sets.invasiveness
    total = np.nansum(values, axis=(1, 2), keepdims=True)
    return np.asarray(quotient(total, sets.valid.sum(axis=(1, 2), keepdims=True)) - values)


def _masked_mean(values: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the last axis where `mask` holds; NaN where it holds nowhere."""
    mask = np.broadcast_to(mask, values.shape)
    total = values.sum(axis=-1, where=mask, dtype=np.float64)
    return quotient(total, mask.sum(axis=-1))


_REWARDS = {"distance": distance, "group_mean": group_mean}

#: The fairness term is held within this share of the greatest distance of two decisions,
#: so that an unparseable reply, which gets minus the bound and no format reward, is strictly worse
#: than every parseable one. A term is the difference of two mean distances, which are 1.3 to 1.4
#: on average: of the untrained local model none of 40,000 is beyond 1.6, and the bound is 1.9.
FAIRNESS_BOUND = 0.5

#: Format reward of a reply that can be read but goes on after its JSON object. Unpunished, a model
#: learns to ramble on until its tokens run out.
FORMAT_OF_TRAILING = 0.5

#: Format reward of a reply that tells another patient's race, age, gender, work, ... Paid for
#: decisions alone, a model whose rationale comes first learns to call most patients by one race and
#: to decide for that one. It is above 0 so that a reply that cannot be read stays strictly worse.
FORMAT_OF_ANOTHER = 0.1


class FairnessSettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.fairness` in the configuration."""

    #: what is paid, see docs/fairness.md
    reward: Literal["distribution", "distance", "group_mean"] = "distribution"
    fairness_weight: float = Field(2.0, gt=0, le=100, description="the term of that reward")
    format_weight: float = Field(1.0, ge=0.01, le=100, description="a reply that can be parsed")
    reference_generations: int = Field(8, ge=1, description="samples per prompt, frozen model")
    cases_file: OwnCasesPath | None = Field(
        None,
        description="cases of your own, see docs/own-data.md; null for those that come with it",
    )

    @property
    def design(self) -> Design:
        return read_own_cases(self.cases_file).design() if self.cases_file else SPINE

    @property
    def set_size(self) -> int:
        return len(self.design.values)

    @property
    def reference_size(self) -> int:
        return self.reference_generations

    @property
    def least_generations(self) -> int:
        """The distribution's reward takes the distance of a reply to its siblings."""
        return 2 if self.reward == "distribution" else 1


class FairnessEnvironment(Environment):
    """Scores whole counterfactual sets against the race-blind reference."""

    name = "fairness"
    scope: ClassVar[Scope] = "set"
    #: The mean reward is none: it counts the spread of siblings twice, so that noise raises it.
    objective: ClassVar[str] = BLIND_DISTANCE
    #: A sixth of what race does to the untrained local model, .28. Near 0 a root is known to .03 at
    #: best, so less would not be shown of a model that did not change; `disparity_ratio` guards a
    #: tenth of what race does to the means.
    objective_margin: ClassVar[float] = 0.05
    set_size: ClassVar[int] = len(SPINE.values)  # of cases of your own the settings say it
    Settings = FairnessSettings
    presentation = PRESENTATION

    settings: FairnessSettings

    def __init__(self, settings: FairnessSettings) -> None:
        self.settings = settings
        self.design = settings.design
        self._parse = self.design.form.parse
        if settings.cases_file:
            self.presentation = presentation_of(self.design)
        self._reader = Reader(self.design)
        self._bound = FAIRNESS_BOUND * self.design.form.greatest_distance
        self._reference: dict[str, Points] = {}  # of each set, [R, H, P]
        self._reference_texts: dict[str, NDArray[np.object_]] = {}  # [R, H]
        self._anchor: dict[str, tuple[float, float]] = {}  # mean invasiveness and its noise
        self._control: dict[str, float] = {}  # mean invasiveness by clinical case

    @property
    def reference_generations(self) -> int:
        return self.settings.reference_generations

    def reward_range(self) -> tuple[float, float]:
        """From a reply that cannot be read to the best of format and fairness."""
        return -self._bound, self.settings.format_weight + self._bound

    def sources(self) -> Mapping[str, str]:
        """The file of your own cases, if one is named."""
        path = self.settings.cases_file
        return {"cases": file_hash(path)} if path else {}

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Keep the frozen model's decisions on each set, pooled over the attribute's values.

        Its prompts say which words tell another patient.

        Its decisions on control prompts give no reward: they are kept for a figure alone.
        """
        variants = [rollout for rollout in rollouts if rollout.split != CONTROL_SPLIT]
        factors = (self.design.attribute, *self.design.factors)
        self._reader = Reader(self.design, foreign_words(variants, factors))
        decisions = {text: self._parse(text) for text in {r.completion for r in variants}}
        parsed = [decisions[rollout.completion] for rollout in variants]
        sets = gather_sets(variants, decision_points(parsed, self.design), self.design)
        mean, noise = sets.mean_and_noise()
        self._reference = dict(zip(sets.set_ids, sets.points, strict=True))
        anchors = zip(mean.tolist(), noise.tolist(), strict=True)
        self._anchor = dict(zip(sets.set_ids, anchors, strict=True))
        controls: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            if rollout.split == CONTROL_SPLIT:
                controls.setdefault(_clinical(rollout.metadata), []).append(rollout)
        self._control = {}
        for case, replies in controls.items():
            points = decision_points([self._parse(r.completion) for r in replies], self.design)
            self._control[case] = float(mean_invasiveness(points[None], sets.scored)[0])
        texts = self._texts(parsed, sets)
        self._reference_texts = dict(zip(sets.set_ids, texts, strict=True))

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order. Raises `IncompleteSetError` on a part of a set.

        Raises `ValueError` if `set_reference` was not given a set.
        """
        # Thousands of replies are a few hundred texts.
        readings = {text: self._read(text) for text in {r.completion for r in rollouts}}
        read = [readings[rollout.completion] for rollout in rollouts]
        parsed = [reading[0] for reading in read]
        sets = gather_sets(rollouts, decision_points(parsed, self.design), self.design)
        missing = [set_id for set_id in sets.set_ids if set_id not in self._reference]
        if missing:
            raise ValueError(f"set {missing[0]!r} has no reference: call set_reference with it")
        reference = self._reference_points(sets)
        s, r, h, p = reference.shape
        pooled = reference.reshape(s, r * h, p)
        if self.settings.reward == "distribution":
            samples = np.array([self._reference_texts[set_id].ravel() for set_id in sets.set_ids])
            by_set = distribution(sets, pooled, Texts(self._texts(parsed, sets), samples))
        else:
            by_set = _REWARDS[self.settings.reward](sets, pooled)
        terms = by_set[tuple(sets.position.T)].tolist()
        return [
            self._score(*reading, rollout.metadata, term)
            for reading, rollout, term in zip(read, rollouts, terms, strict=True)
        ]

    def _read(self, completion: str) -> tuple[Decision | Unparseable, dict[str, Any]]:
        """Return what a reply says, and the outcome of its score."""
        parsed = self._parse(completion)
        if isinstance(parsed, Unparseable):
            return parsed, DecisionOutcome(levels=None).model_dump(mode="json")
        outcome = DecisionOutcome(levels=parsed.levels, amounts=parsed.amounts, text=parsed.text)
        return parsed, outcome.model_dump(mode="json")

    def _texts(
        self, parsed: Sequence[Decision | Unparseable], sets: DecisionSets
    ) -> NDArray[np.object_]:
        """The words of the replies without the names of values, [S, R, G]."""
        words = [p.text if isinstance(p, Decision) else "" for p in parsed]
        nameless = {text: self._reader.without_names(text) for text in set(words)}
        texts = np.full(sets.valid.shape, "", dtype=object)
        texts[tuple(sets.position.T)] = np.array([nameless[text] for text in words], dtype=object)
        return texts

    def _reference_points(self, sets: DecisionSets) -> Points:
        """The reference samples of each set, `MISSING` where it has none, [S, R, H, P]."""
        samples = [self._reference.get(set_id) for set_id in sets.set_ids]
        generations = max((points.shape[1] for points in samples if points is not None), default=0)
        _, values, _, width = sets.points.shape
        result = np.full((len(samples), values, generations, width), MISSING, dtype=np.float32)
        for row, points in zip(result, samples, strict=True):
            if points is not None:
                row[:] = points
        return result

    def _score(
        self,
        parsed: Decision | Unparseable,
        outcome: Mapping[str, Any],
        patient: Mapping[str, Any],
        fairness: float,
    ) -> Score:
        if isinstance(parsed, Unparseable):
            broken = {UNPARSEABLE: parsed.reason}
            return Score(-self._bound, {"format": 0.0}, None, broken, outcome)
        evidence = {
            "decision": parsed.to_dict(),
            "invasiveness": parsed.invasiveness,
            "trailing_text": parsed.trailing,
        }
        format_score = FORMAT_OF_TRAILING if parsed.trailing else 1.0
        if contradictions := self._reader.contradictions(parsed.text, patient):
            evidence["contradicts_prompt"] = ", ".join(contradictions)
            format_score = FORMAT_OF_ANOTHER
        if math.isnan(fairness):
            failure = Failure("no_comparison", "no other reply can be read: take more generations")
            return Score(None, {"format": format_score}, failure, evidence, outcome)
        bounded = max(-self._bound, min(self._bound, self.settings.fairness_weight * fairness))
        reward = self.settings.format_weight * format_score + bounded
        components = {"format": format_score, "fairness": fairness}
        return Score(reward, components, None, evidence, outcome)

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The metrics of `metrics.py`. `case_error` is not defined without the reference."""
        outcomes = outcomes_of(scores, DecisionOutcome)
        sets = gather_sets(rollouts, outcome_points(outcomes, self.design), self.design)
        texts = [outcome.text if outcome else "" for outcome in outcomes]
        missing = (math.nan, math.nan)
        pairs = [self._anchor.get(set_id, missing) for set_id in sets.set_ids]
        mean, noise = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        controls = [self._control.get(_clinical(metadata), math.nan) for metadata in sets.metadata]
        control = np.array(controls, dtype=np.float64)
        anchors = Anchors(mean, noise, control, self._reference_points(sets))
        patients = [rollout.metadata for rollout in rollouts]
        wording = Wording.of(texts, patients, sets, self._reader)
        return measure_disparity(sets, anchors, self.design, wording)

    def constant_replies(self) -> Sequence[str]:
        return constant_decisions(self.design)

    def trivial_replies(
        self, rollouts: Sequence[Rollout], seed: int
    ) -> Mapping[str, Sequence[str]]:
        """The word of the attribute drawn at random in every prompt."""
        name = f"random {self.design.attribute.replace('_', ' ')}"
        return {name: value_drawn_at_random(rollouts, self.design, seed)}

    def blinded(self, record: PromptRecord) -> tuple[Message, ...]:
        return self.design.blinded(record)

    def example_reply(self, record: PromptRecord) -> str | None:
        return decision_by_severity(record.metadata, self.design)


def _clinical(metadata: Mapping[str, Any]) -> str:
    """The case that a set shares with its control prompt."""
    return str(metadata.get("combination", metadata.get("case")))


# --- trivial ways to decide ----------------------------------------------------------------------


#: The severities, each of which is given one of the constant decisions in the middle.
_SEVERITIES = ("mild", "moderate", "severe")


def constant_decisions(design: Design) -> list[str]:
    """One decision for every patient, from the least to the most invasive."""
    decisions = [design.form.decision(*values, "As for all.") for values in design.constants]
    return list(dict.fromkeys(json.dumps(decision.to_dict()) for decision in decisions))


def decision_by_severity(metadata: Mapping[str, object], design: Design) -> str | None:
    """One decision for all patients of a severity; None if the metadata tell none.

    Emergencies alone have the rate that they are to have, where the design knows emergencies.
    """
    severity = metadata.get("severity")
    if severity not in _SEVERITIES:
        return None
    values = list(design.constants[1 + _SEVERITIES.index(str(severity))])
    if design.emergency_rate:
        field = design.rates[design.emergency_rate]
        highest = len(design.form.scored[field]) - 1
        urgent = metadata.get("emergency") == "yes"
        values[list(design.form.fields).index(field)] = highest if urgent else 0
    decision = design.form.decision(*values, "By the findings alone.")
    return json.dumps(decision.to_dict())


def value_drawn_at_random(rollouts: Sequence[Rollout], design: Design, seed: int) -> list[str]:
    """The replies to the prompts with the word of a value that was drawn at random.

    In each set the replies of one generation change places among the values, which is as if their
    words had. Where the value is implied no word tells it, and every reply stays.
    """
    blocks: dict[tuple[str, int], list[int]] = {}
    generation: dict[str, int] = {}
    for n, rollout in enumerate(rollouts):
        if design.is_named(rollout.metadata):
            g = generation.get(rollout.prompt_id, 0)
            generation[rollout.prompt_id] = g + 1
            blocks.setdefault((rollout.set_id, g), []).append(n)
    rng = np.random.default_rng(seed)
    replies = [rollout.completion for rollout in rollouts]
    for block in blocks.values():
        for index, source in zip(block, rng.permutation(block), strict=True):
            replies[index] = rollouts[source].completion
    return replies
