"""The PubMedQA environment: the right answer, in the format that was asked for."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from environments.base import UNPARSEABLE, Rollout, Scope, Score
from environments.measurement import Measurement
from environments.presentation import Presentation
from environments.pubmedqa.grounding import grounding
from environments.pubmedqa.metrics import AnswerOutcome, measure_answers, official_predictions
from environments.pubmedqa.presentation import PRESENTATION
from environments.pubmedqa.reply import LABELS, Label, parse_reply

#: The name of the official evaluator's file beside evaluation.json.
PREDICTIONS = "predictions.json"


class PubMedQASettings(BaseModel, extra="forbid", frozen=True):
    """The keys of `env.pubmedqa` in the configuration."""

    correctness_weight: float = Field(2.0, gt=0, le=100, description="the right answer")
    tag_weight: float = Field(0.2, gt=0, le=100, description="each of four tags in its place")
    grounding_weight: float = Field(0.0, ge=0, le=100, description="reasoning from the abstract")
    classes: Literal[2, 3] = Field(3, description="3: yes, no, maybe; 2: yes, no")

    @model_validator(mode="after")
    def _right_beats_wrong(self) -> Self:
        if self.grounding_weight >= self.correctness_weight:
            raise ValueError(
                "grounding_weight must be less than correctness_weight, or a well-worded wrong "
                "answer would beat a right one"
            )
        return self


class PubMedQAEnvironment:
    """Scores each reply by itself.

    `value = correctness + tag_weight * tags in place`, where correctness, and grounding where it
    has a weight, are paid only to a reply with all four tags in place. So a reply that breaks the
    format gets 3 tags at most, and any that keeps it gets 4: a right answer is no excuse for
    tags in the wrong order, several answers, or text around them.
    """

    name: ClassVar[str] = "pubmedqa"
    scope: ClassVar[Scope] = "rollout"
    Settings: ClassVar[type[BaseModel]] = PubMedQASettings
    presentation: ClassVar[Presentation] = PRESENTATION

    def __init__(self, settings: PubMedQASettings) -> None:
        self.settings = settings
        self._options = LABELS[: settings.classes]

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order. Raises `ValueError` on a prompt whose metadata name no gold answer."""
        return [self._score(rollout) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> Score:
        gold = _gold(rollout)
        reply = parse_reply(rollout.completion, self._options)
        settings = self.settings
        correct = float(reply.keeps_format and reply.answer == gold)
        components = {"correctness": correct, "format": float(reply.tags_in_place)}
        value = settings.correctness_weight * correct + settings.tag_weight * reply.tags_in_place
        if settings.grounding_weight and reply.keeps_format:
            components["grounding"] = grounding(reply.reasoning, _context(rollout))
            value += settings.grounding_weight * components["grounding"]
        evidence: dict[str, Any] = {"gold": gold, "answer": reply.answer}
        if reply.answer is None:
            evidence[UNPARSEABLE] = reply.problem
        outcome = AnswerOutcome(gold=gold, answer=reply.answer, keeps_format=reply.keeps_format)
        return Score(value, components, None, evidence, outcome.model_dump())

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The metrics of `metrics.py`."""
        return measure_answers(rollouts, scores, self._options)

    def exports(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Mapping[str, Any]:
        """The predictions in the official evaluator's form: item -> label."""
        return {PREDICTIONS: official_predictions(rollouts, scores)}


def _gold(rollout: Rollout) -> Label:
    gold = rollout.metadata.get("gold")
    for label in LABELS:
        if label == gold:
            return label
    raise ValueError(
        f"prompt {rollout.prompt_id!r} has gold {gold!r}; it is one of {', '.join(LABELS)}"
    )


def _context(rollout: Rollout) -> str:
    context = rollout.metadata.get("context")
    if not isinstance(context, str):
        raise ValueError(
            f"prompt {rollout.prompt_id!r} has no context in its metadata, which grounding needs"
        )
    return context
