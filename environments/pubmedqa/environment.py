"""The PubMedQA environment: the right answer, in the format that was asked for."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from environments.base import UNPARSEABLE, PromptRecord, Rollout, Score
from environments.contract import Environment, EnvironmentSettings
from environments.measurement import Measurement
from environments.pubmedqa.metrics import (
    PRESENTATION,
    AnswerOutcome,
    measure_answers,
    official_predictions,
    vote,
)
from environments.pubmedqa.reply import (
    LABELS,
    TAGS,
    Abstract,
    Grounds,
    Label,
    Reply,
    closeness,
    deciding_findings,
    grounds,
    parse_reply,
    quotes_whole,
    reply_text,
    sentences_of_findings,
    without_marks,
)

#: The name of the official evaluator's file beside evaluation.json.
PREDICTIONS = "predictions.json"
#: From this evidence on a reply counts as grounded: three quarters of what it quotes and of the
#: finding that decides are common.
GROUNDED = 0.5


class PubMedQASettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.pubmedqa` in the configuration."""

    correctness_weight: float = Field(2.0, gt=0, le=100, description="the right answer")
    tag_weight: float = Field(0.2, gt=0, le=100, description="each of four tags in its place")
    grounding_weight: float = Field(
        1.0, ge=0, le=100, description="the finding that decides, quoted"
    )
    classes: Literal[2, 3] = Field(3, description="3: yes, no, maybe; 2: yes, no")

    @model_validator(mode="after")
    def _right_beats_wrong(self) -> Self:
        if self.grounding_weight >= self.correctness_weight:
            raise ValueError(
                "grounding_weight must be less than correctness_weight, or a well-worded wrong "
                "answer would beat a right one"
            )
        return self


class PubMedQAEnvironment(Environment):
    """Scores each reply by itself.

    `value = correctness + tag_weight * tags in place + grounding`. Correctness is paid only to a
    reply with all four tags in place. Grounding, see `Grounds.value`, makes a right answer with the
    finding that decides the best reply, a false quote worse than none, and that finding under a
    wrong answer worse than another one. A reply that breaks the format has the least grounding and
    3 tags at most, and any that keeps it has 4: a right answer is not an excuse for tags in the
    wrong order, several answers, or text around them.
    """

    name = "pubmedqa"
    Settings = PubMedQASettings
    presentation = PRESENTATION

    def __init__(self, settings: PubMedQASettings) -> None:
        self.settings = settings
        self._options = LABELS[: settings.classes]

    def reward_range(self) -> tuple[float, float]:
        """From a reply without a tag to the right answer with the finding that decides."""
        weights = self.settings
        answered = weights.correctness_weight + weights.tag_weight * len(TAGS)
        return -weights.grounding_weight, answered + weights.grounding_weight

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order.

        Raises `ValueError` on a prompt without gold answer, context or question in its metadata.
        """
        return [self._score(rollout) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> Score:
        gold = rollout.metadata.get("gold")
        if gold not in LABELS:
            raise ValueError(
                f"prompt {rollout.prompt_id!r} has gold {gold!r}; it is one of {', '.join(LABELS)}"
            )
        try:
            abstract = Abstract.of(rollout.metadata)
        except ValueError as error:
            raise ValueError(f"prompt {rollout.prompt_id!r} has {error}") from None
        reply = parse_reply(rollout.completion, self._options)
        support = grounds(reply.reasoning, abstract)
        is_correct = reply.keeps_format and reply.answer == gold
        components = {
            "correctness": float(is_correct),
            "format": float(reply.tags_in_place),
            "grounding": support.value(is_correct=is_correct) if reply.keeps_format else -1.0,
        }
        weights = self.settings
        value = (
            weights.correctness_weight * components["correctness"]
            + weights.tag_weight * components["format"]
            + weights.grounding_weight * components["grounding"]
        )
        finding = rollout.metadata.get("finding")
        outcome = AnswerOutcome(
            gold=gold,
            answer=reply.answer,
            keeps_format=reply.keeps_format,
            grounded=reply.keeps_format and support.evidence >= GROUNDED and not support.made_up,
            false_quote=bool(support.false_quotes),
            false_number=bool(support.false_numbers),
            decisive=quotes_whole(support, finding) if isinstance(finding, str) else None,
        )
        return Score(value, components, None, _evidence(gold, reply, support), outcome.model_dump())

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        return measure_answers(rollouts, scores, self._options)

    def constant_replies(self) -> Sequence[str]:
        """Each answer, without a quote and with stock phrases of abstracts as quotes."""
        return constant_replies(self._options)

    def trivial_replies(
        self, rollouts: Sequence[Rollout], seed: int
    ) -> Mapping[str, Sequence[str]]:
        """The commonest answer, with sentences of the abstract as its reason."""
        return copied_reasons(rollouts, self._options, seed)

    def example_reply(self, record: PromptRecord) -> str | None:
        return gold_reply(record.metadata)

    def exports(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Mapping[str, Any]:
        """The predictions in the official evaluator's form: item -> label."""
        return {PREDICTIONS: official_predictions(rollouts, scores)}


def _evidence(gold: Label, reply: Reply, support: Grounds) -> dict[str, Any]:
    evidence: dict[str, Any] = {"gold": gold, "answer": reply.answer}
    if untrue := [*support.false_quotes, *support.false_numbers]:
        evidence["not in the abstract"] = untrue
    if reply.answer is None:
        evidence[UNPARSEABLE] = reply.problem
    return evidence


# --- ways to reply without reading ---------------------------------------------------------------


#: What stands in many abstracts, so that a reply that quotes it might pass for a true one.
STOCK_PHRASES = (
    "There was no significant difference between the groups",
    "The difference was not statistically significant",
    "There was a significant difference between the two groups",
    "The aim of this study was to",
)

_FIRST_WORDS = 6


def constant_replies(options: Sequence[Label] = LABELS) -> list[str]:
    """Each option with every stock reason."""
    reasons = ("The findings of the study say so.", *(f'"{phrase}."' for phrase in STOCK_PHRASES))
    return [reply_text(reason, option) for option in options for reason in reasons]


def copied_reasons(
    rollouts: Sequence[Rollout], options: Sequence[Label], seed: int
) -> dict[str, list[str]]:
    """Name of a policy -> its replies: one answer to all, and something of the findings quoted.

    The answer is the one that these rollouts give most often. Quoted are the first sentence, the
    last, one by chance, the one that shares most words with the question, and the first words of
    all.
    """
    answer = vote(parse_reply(r.completion, options).answer for r in rollouts) or options[0]
    rng = random.Random(seed)  # noqa: S311
    choices: Mapping[str, Callable[[Sequence[str], str], Sequence[str]]] = {
        "first finding": lambda sentences, _: sentences[:1],
        "last finding": lambda sentences, _: sentences[-1:],
        "any finding": lambda sentences, _: [rng.choice(sentences)],
        "finding closest to the question": lambda sentences, text: [
            max(sentences, key=lambda sentence: closeness(sentence, text))
        ],
        "first words of each finding": lambda sentences, _: [
            " ".join(sentence.split()[:_FIRST_WORDS]) for sentence in sentences
        ],
    }
    contexts = [str(rollout.metadata["context"]) for rollout in rollouts]
    findings = [sentences_of_findings(context) or [context] for context in contexts]
    return {
        f"commonest answer, {name}": [
            reply_text(quoted(choose(sentences, str(r.metadata["question"]))), answer)
            for r, sentences in zip(rollouts, findings, strict=True)
        ]
        for name, choose in choices.items()
    }


def gold_reply(metadata: Mapping[str, Any]) -> str | None:
    """The gold answer with the finding that decides it; None for a prompt without gold answer."""
    gold = metadata.get("gold")
    if gold not in LABELS:
        return None
    return reply_text(quoted(deciding_findings(Abstract.of(metadata))[:1]), gold)


def quoted(texts: Sequence[str]) -> str:
    return " ".join(f'"{without_marks(text)}"' for text in texts)
