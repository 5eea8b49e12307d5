"""The choice environment: reads which option was chosen, and whether it is the right one.

A reply is free text, and a line with the option that the model chooses.
"""

import re
from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from environments.base import UNPARSEABLE, Rollout, Score
from environments.choice.metrics import PRESENTATION, ChoiceOutcome, measure_choices
from environments.contract import Environment, EnvironmentSettings
from environments.measurement import Measurement
from environments.replies import Unparseable, UnreadableError, answer_of, without_fence


class ChoiceSettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.choice` in the configuration: there are none."""


class QuestionMetadata(BaseModel, extra="ignore", frozen=True):
    """The metadata of a prompt: its options, and the variant of its set.

    `gold` is the label of the right option, None where unknown. The options of an `ordered`
    question go from least to most.
    """

    labels: tuple[str, ...] = Field(min_length=2, max_length=26)
    options: tuple[str, ...]
    variant: str = Field(min_length=1)
    gold: str | None = None
    ordered: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.options) != len(self.labels) or len(set(self.labels)) != len(self.labels):
            raise ValueError("options and labels are not as many, or a label is there twice")
        if self.gold is not None and self.gold not in self.labels:
            raise ValueError(f"gold {self.gold!r} is no label")
        return self


class ChoiceEnvironment(Environment):
    """Scores each reply by itself: 0 where no option can be read, 1 for the right one, else 1/2.

    Where nothing is right every option is worth 1/2: what is asked there is whether the choice
    depends on the variant, and no reward says which choice is better. So nothing can be learned
    from it, nor should it be: the prompts are test sets of others.
    """

    name = "choice"
    Settings = ChoiceSettings
    presentation = PRESENTATION

    def __init__(self, settings: ChoiceSettings) -> None:
        self.settings = settings

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores in order. Raises `ValueError` for metadata that are no `QuestionMetadata`."""
        return [_score(rollout) for rollout in rollouts]

    def reward_range(self) -> tuple[float, float]:
        """No option that can be read, and the right one."""
        return 0.0, 1.0

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The metrics of `metrics.py`."""
        return measure_choices(rollouts, scores)


def _score(rollout: Rollout) -> Score:
    try:
        question = QuestionMetadata.model_validate(rollout.metadata)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"])) or "metadata"
        raise ValueError(f"prompt {rollout.prompt_id!r}: {location}: {first['msg']}") from None
    choice = parse_choice(rollout.completion, question.labels, question.options)
    gold = None if question.gold is None else question.labels.index(question.gold)
    read = None if isinstance(choice, Unparseable) else choice
    outcome = ChoiceOutcome(
        choice=read, gold=gold, options=len(question.labels), ordered=question.ordered
    )
    is_correct = read is not None and read == gold
    components = {"correctness": float(is_correct), "format": float(read is not None)}
    evidence: dict[str, Any] = {"gold": question.gold}
    if isinstance(choice, Unparseable):
        evidence[UNPARSEABLE] = choice.reason
    else:
        evidence |= {"choice": {"answer": question.labels[choice]}, "place": choice}
        evidence["value"] = outcome.value
    value = sum(components.values()) / 2
    return Score(value, components, None, evidence, outcome.model_dump())


# --- the reply -----------------------------------------------------------------------------------


#: What a prompt says of the reply; `{labels}` are those of its options.
FORMAT_TEXT = 'End with a line of its own: "Answer: " and one of {labels}, and nothing more.'

#: A line with an answer, in Markdown or not, and what is on it after the colon.
_ANSWER = re.compile(r"[ \t*_#>`]{0,8}answer[ \t*_]{0,4}:(.*)", re.IGNORECASE | re.ASCII)
_AROUND = " \t\r\n*_`\"'.()[]"
_AFTER_LABEL = ".):"


def format_text(labels: Sequence[str]) -> str:
    """The sentence that a prompt ends with."""
    return FORMAT_TEXT.format(labels=", ".join(labels))


def parse_choice(completion: str, labels: Sequence[str], texts: Sequence[str]) -> int | Unparseable:
    """The number of the option that is chosen; never raises, and takes time linear in its length.

    The reply has a line `Answer: LABEL`, alone or with the option's own text after it. Several
    such lines have to agree. Nothing else in the reply is looked at, and nothing is guessed.
    """
    try:
        reply = without_fence(answer_of(completion))
    except UnreadableError as error:
        return Unparseable(str(error))
    answers = [match[1] for line in reply.split("\n") if (match := _ANSWER.fullmatch(line.strip()))]
    if not answers:
        return Unparseable("no line that begins with Answer:")
    choices = {_option(answer, labels, texts) for answer in answers}
    if len(choices) > 1:
        return Unparseable("several answers")
    (option,) = choices
    return Unparseable("the answer is none of the options") if option is None else option


def _option(answer: str, labels: Sequence[str], texts: Sequence[str]) -> int | None:
    """The option that the words after the colon are: its label, or that with its text."""
    words = _plain(answer)
    for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
        if words == label.lower():
            return number
        tail = words.removeprefix(label.lower())
        if tail != words and tail[:1] in _AFTER_LABEL and _plain(tail[1:]) == _plain(text):
            return number
    return None


def _plain(text: str) -> str:
    return text.strip(_AROUND).lower()
