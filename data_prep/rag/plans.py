"""Store a frozen model's plans, which prompts need, on disk.

A plan is a line under a hash of planner, prompt version and question, appended as soon as it comes.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from filelock import FileLock
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from data_prep.rag.sources import Question
from environments.chat import MATERIAL, ChatModel, ChatRequest, inert, quote, try_once
from environments.rag.reader import LETTERS
from environments.replies import UnreadableError, has_text, read_object

#: Changed with the prompt or the schema, which makes stored plans invalid.
PROMPT_VERSION = "plan-2"

_ASKED_AT_ONCE = 256

_SYSTEM = (
    "You plan how to find the answer to a question of a medical examination in textbooks. "
    f"{MATERIAL} Reply "
    'with one JSON object and nothing else: {"discriminating_features": ["finding", ...], '
    '"best_guess": %s, "reasoning": "one or two sentences", "confirming_evidence": "what a '
    'textbook would have to say", "alternative_if_wrong": "what else it could be"}'
)
_LETTER, _PHRASE = '"A" | "B" | "C" | "D"', '"a short phrase"'


def _filled(text: str) -> str:
    if not has_text(text):
        raise ValueError("says nothing")
    return text


Text = Annotated[str, AfterValidator(_filled)]


class Plan(BaseModel, extra="forbid", frozen=True, strict=True):
    """A plan: the input of the rewriter beside the question.

    `best_guess` is the letter of an option where the planner sees the options, else a phrase.
    """

    discriminating_features: list[Text] = Field(min_length=1, max_length=20)
    best_guess: Text = Field(max_length=300)
    reasoning: Text = Field(max_length=4000)
    confirming_evidence: Text = Field(max_length=2000)
    alternative_if_wrong: Text = Field(max_length=2000)

    def to_text(self) -> str:
        """The plan as the rewriter reads it, without tokens that would end its message."""
        features = ", ".join(self.discriminating_features)
        return inert(
            f"Plan: {self.reasoning} Guess: {self.best_guess}. Confirm: {self.confirming_evidence} "
            f"Else: {self.alternative_if_wrong} Search for: {features}."
        )


class _Kept(BaseModel, extra="forbid", frozen=True):
    """A line of the file of plans."""

    key: str
    value: Plan


def parse_plan(reply: str, *, with_options: bool) -> Plan | None:
    """The plan of a reply, see `read_object`; None for anything that is not of the schema."""
    try:
        plan = Plan.model_validate(read_object(reply))
    except (UnreadableError, ValidationError):
        return None
    return plan if _fits(plan, with_options=with_options) else None


def _fits(plan: Plan, *, with_options: bool) -> bool:
    return plan.best_guess in LETTERS or not with_options


def request_of(question: Question, *, with_options: bool) -> ChatRequest:
    """Ask the planner for a plan. If it sees no options, none can leak into a query."""
    system = _SYSTEM % (_LETTER if with_options else _PHRASE)
    options = [f"{letter}. {quote(text)}" for letter, text in question.options.items()]
    user = "\n".join([quote(question.text), *(options if with_options else [])])
    return ChatRequest(
        ({"role": "system", "content": system}, {"role": "user", "content": user}),
        Plan.model_json_schema(),
        valid=lambda reply: parse_plan(reply, with_options=with_options) is not None,
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
        self._path = path
        self._planner = planner
        self._with_options = with_options

    def read(self, questions: Sequence[Question]) -> dict[str, Plan]:
        """The stored plans of these questions; an incomplete or damaged line is made again."""
        plan_of: dict[str, Plan] = {}
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            with suppress(ValidationError):
                row = _Kept.model_validate_json(line)
                plan_of[row.key] = row.value
        plans = {q.id: plan_of.get(self._key(q)) for q in questions}
        options = self._with_options
        return {name: p for name, p in plans.items() if p and _fits(p, with_options=options)}

    def check(self, questions: Sequence[Question], model: ChatModel) -> str | None:
        """Try the planner once if plans are missing; return its error, if any.

        The trial question is not one of these, at which a planner may rightly fail.
        """
        plans = self.read(questions)
        if all(question.id in plans for question in questions):
            return None
        error = try_once(model, request_of(_TRIAL, with_options=self._with_options)).error
        return error.text if error else None

    def complete(
        self, questions: Sequence[Question], model: ChatModel, say: Callable[[str], None]
    ) -> tuple[dict[str, Plan], list[str]]:
        """Make the plans that are missing; all by question id, and why each of the others failed.

        What failed before is tried again. Another process that completes the same file waits and
        then finds the plans.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self._path}.lock"):
            plans = self.read(questions)
            missing = [question for question in questions if question.id not in plans]
            say(f"plans: {len(plans):,} of {len(questions):,} are kept in {self._path}")
            reasons: list[str] = []
            for start in range(0, len(missing), _ASKED_AT_ONCE):
                new_plans, failures = self._make(missing[start : start + _ASKED_AT_ONCE], model)
                plans |= new_plans
                reasons += failures
                say(f"plans: {len(plans):,} of {len(questions):,}, {len(reasons):,} failed")
        return plans, reasons

    def _make(
        self, questions: Sequence[Question], model: ChatModel
    ) -> tuple[dict[str, Plan], list[str]]:
        """Ask for plans and store them; return the reasons for those that failed."""
        replies = model.ask(
            [request_of(question, with_options=self._with_options) for question in questions]
        )
        plans, rows, reasons = {}, [], []
        for question, reply in zip(questions, replies, strict=True):
            plan = parse_plan(reply.text or "", with_options=self._with_options)
            if plan:
                plans[question.id] = plan
                rows.append(_Kept(key=self._key(question), value=plan).model_dump_json())
            else:
                reasons.append(reply.error.text if reply.error else "no plan of the schema")
        with self._path.open("a", encoding="utf-8") as file:
            # Begin with a new line: a kill may have truncated the last one.
            file.write("".join(f"\n{row}" for row in rows))
        return plans, reasons

    def _key(self, question: Question) -> str:
        options = sorted(question.options.items()) if self._with_options else []
        parts = [self._planner, PROMPT_VERSION, question.text, options]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def template_plan(features: Sequence[str]) -> Plan:
    """Fill in a plan without a planner: what tells the question apart, in set phrases."""
    return Plan(
        discriminating_features=list(features),
        best_guess="none",
        reasoning="Search for what tells it apart.",
        confirming_evidence="all of it together.",
        alternative_if_wrong="a part of it.",
    )
