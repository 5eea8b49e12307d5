"""The frozen planner: what a plan is, how it is asked for, and the file that keeps every plan.

A plan is kept under a hash of planner, prompt version and question, as soon as it comes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from data_prep.keyed_file import KeyedFile, content_key
from data_prep.rag_medqa import Question
from environments.chat import ChatModel, ChatRequest, try_once

#: Changes with the prompt or the schema, and so with what the kept plans are worth.
PROMPT_VERSION = "plan-1"

MAX_REPLY_CHARACTERS = 20_000
_ASKED_AT_ONCE = 256
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_REASONING_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)

_SYSTEM = (
    "You plan how to find the answer to a question of a medical examination in textbooks. Reply "
    'with one JSON object and nothing else: {"discriminating_features": ["finding", ...], '
    '"best_guess": %s, "reasoning": "one or two sentences", "confirming_evidence": "what a '
    'textbook would have to say", "alternative_if_wrong": "what else it could be"}'
)
_LETTER, _PHRASE = '"A" | "B" | "C" | "D"', '"a short phrase"'


class Plan(BaseModel, extra="forbid", frozen=True, strict=True):
    """What the rewriter is given beside the question.

    `best_guess` is the letter of an option where the planner sees the options, else a phrase.
    """

    discriminating_features: list[str] = Field(min_length=1, max_length=20)
    best_guess: str = Field(min_length=1, max_length=300)
    reasoning: str = Field(min_length=1, max_length=4000)
    confirming_evidence: str = Field(min_length=1, max_length=2000)
    alternative_if_wrong: str = Field(min_length=1, max_length=2000)

    def to_text(self) -> str:
        """The plan as the rewriter reads it."""
        features = ", ".join(self.discriminating_features)
        return (
            f"Plan: {self.reasoning} Guess: {self.best_guess}. Confirm: {self.confirming_evidence} "
            f"Else: {self.alternative_if_wrong} Search for: {features}."
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans by question id, and how many questions have none and why."""

    plans: Mapping[str, Plan]
    failed: int = 0
    reasons: tuple[str, ...] = ()


def parse_plan(reply: str, *, with_options: bool) -> Plan | None:
    """The plan of a reply; None for anything that is not one JSON object of the schema."""
    if len(reply) > MAX_REPLY_CHARACTERS:
        return None
    text = _REASONING_END.split(reply)[-1].strip()
    fenced = _FENCED.fullmatch(text)
    try:
        plan = Plan.model_validate_json(fenced[1] if fenced else text)
        plan.to_text().encode()
    except (ValidationError, UnicodeEncodeError):
        return None
    return None if with_options and not re.fullmatch("[A-D]", plan.best_guess) else plan


def request_of(question: Question, *, with_options: bool) -> ChatRequest:
    """What the planner is asked. Without the options nothing of them can reach a query."""
    system = _SYSTEM % (_LETTER if with_options else _PHRASE)
    options = [f"{letter}. {text}" for letter, text in question.options.items()]
    user = "\n".join([question.text, *(options if with_options else [])])
    return ChatRequest(
        ({"role": "system", "content": system}, {"role": "user", "content": user}),
        Plan.model_json_schema(),
    )


#: What a planner is asked before it is needed.
_TRIAL = Question(
    "A child has barking cough and stridor. Which drug helps first?",
    {"A": "dexamethasone", "B": "naloxone", "C": "atropine", "D": "digoxin"},
    "A",
)


class PlanCache:
    """The file of the plans that one planner has made."""

    def __init__(self, path: Path, planner: str, *, with_options: bool) -> None:
        self._file = KeyedFile(path)
        self._planner = planner
        self._with_options = with_options

    def read(self, questions: Sequence[Question]) -> dict[str, Plan]:
        """The kept plans of these questions; one that is damaged is no plan."""
        kept = self._file.read()
        found = {q.id: _valid(kept.get(self._key(q))) for q in questions}
        return {name: plan for name, plan in found.items() if plan}

    def check(self, questions: Sequence[Question], model: ChatModel) -> str | None:
        """Ask for one plan where some are missing; what is wrong with the planner, if anything.

        The question is none of these, for a planner may rightly fail at one of them.
        """
        kept = self.read(questions)
        if all(question.id in kept for question in questions):
            return None
        request = request_of(_TRIAL, with_options=self._with_options)
        return try_once(model, request, self._is_plan).error

    def complete(
        self, questions: Sequence[Question], model: ChatModel, say: Callable[[str], None]
    ) -> Planned:
        """Make the plans that are missing. What failed before is tried again.

        Another process that completes the same file waits and then finds the plans.
        """
        with self._file.locked():
            plans = self.read(questions)
            missing = [question for question in questions if question.id not in plans]
            say(f"plans: {len(plans):,} of {len(questions):,} are kept in {self._file.path}")
            reasons: list[str] = []
            for start in range(0, len(missing), _ASKED_AT_ONCE):
                made, failures = self._make(missing[start : start + _ASKED_AT_ONCE], model)
                plans |= made
                reasons += failures
                say(f"plans: {len(plans):,} of {len(questions):,}, {len(reasons):,} failed")
        return Planned(plans, len(reasons), tuple(dict.fromkeys(reasons)))

    def _make(
        self, questions: Sequence[Question], model: ChatModel
    ) -> tuple[dict[str, Plan], list[str]]:
        """Ask for plans and keep those that come; why the others did not."""
        replies = model.ask(
            [request_of(question, with_options=self._with_options) for question in questions],
            self._is_plan,
        )
        made, reasons = {}, []
        for question, reply in zip(questions, replies, strict=True):
            plan = parse_plan(reply.text or "", with_options=self._with_options)
            if plan:
                made[question.id] = plan
            else:
                reasons.append(reply.error or "no plan of the schema")
        self._file.append(
            {self._key(q): made[q.id].model_dump() for q in questions if q.id in made}
        )
        return made, reasons

    def _is_plan(self, reply: str) -> bool:
        return parse_plan(reply, with_options=self._with_options) is not None

    def _key(self, question: Question) -> str:
        options = sorted(question.options.items()) if self._with_options else []
        return content_key(self._planner, PROMPT_VERSION, question.text, options)


def _valid(found: Any) -> Plan | None:
    try:
        return Plan.model_validate(found)
    except ValidationError:
        return None


def template_plan(features: Sequence[str]) -> Plan:
    """The plan where there is no planner: what tells the question apart, in set phrases."""
    return Plan(
        discriminating_features=list(features),
        best_guess="none",
        reasoning="Search for what tells it apart.",
        confirming_evidence="all of it together.",
        alternative_if_wrong="a part of it.",
    )
