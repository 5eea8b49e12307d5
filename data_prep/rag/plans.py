"""Plans of a frozen model, which prompts need, kept on disk.

A plan is kept under a hash of planner, prompt version and question, as soon as it comes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from data_prep.rag.sources import Question
from environments.chat import MATERIAL, ChatModel, ChatRequest, inert, quote, try_once
from environments.rag.reader import LETTERS
from environments.replies import UnreadableError, has_text, read_object

# --- keyed file -----------------------------------------------------------------------------------
# Results that are costly to make, each on a line of its own under a hash of what it came from.
#
# {"key": "<sha256>", "value": ..., "hash": "<sha256 of both>"}
#
# Lines are appended as results come, so a killed process has lost what was in flight and nothing
# else. A line that was cut off or damaged is not a result: it is made again.


def content_key(*parts: Any) -> str:
    """The key of a result: a hash of everything that it depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class KeyedFile:
    """An append-only file of results by key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from completing the same file at the same time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            yield

    def read(self) -> dict[str, Any]:
        """Every whole line; the later one of two with one key."""
        if not self.path.exists():
            return {}
        return dict(pair for line in self.path.open("rb") if (pair := _read_line(line)))

    def append(self, values: Mapping[str, Any]) -> None:
        """Add results and wait until they are on the disk."""
        rows = ({"key": k, "value": v, "hash": content_key(k, v)} for k, v in values.items())
        lines = [json.dumps(row) + "\n" for row in rows]
        with self.path.open("ab") as file:
            if not self._ends_with_newline():
                file.write(b"\n")
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _ends_with_newline(self) -> bool:
        """Whether the last line is whole: a kill may have cut it off."""
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _read_line(line: bytes) -> tuple[str, Any] | None:
    try:
        row = json.loads(line)
        key, value = row["key"], row["value"]
        return (key, value) if row["hash"] == content_key(key, value) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


# --- plans ----------------------------------------------------------------------------------------


#: Changes with the prompt or the schema, and so with what the kept plans are worth.
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
    """What the rewriter is given beside the question.

    `best_guess` is the letter of an option where the planner sees the options, else a phrase.
    """

    discriminating_features: list[Text] = Field(min_length=1, max_length=20)
    best_guess: Text = Field(max_length=300)
    reasoning: Text = Field(max_length=4000)
    confirming_evidence: Text = Field(max_length=2000)
    alternative_if_wrong: Text = Field(max_length=2000)

    def to_text(self) -> str:
        """The plan as the rewriter reads it, without marks that would end its message."""
        features = ", ".join(self.discriminating_features)
        return inert(
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
    """The plan of a reply, see `read_object`; None for anything that is not of the schema."""
    try:
        return _read_plan(read_object(reply), with_options=with_options)
    except UnreadableError:
        return None


def _read_plan(value: Any, *, with_options: bool) -> Plan | None:
    """The plan in an object that a reply or the file of plans holds."""
    try:
        plan = Plan.model_validate(value)
    except ValidationError:
        return None
    return None if with_options and plan.best_guess not in LETTERS else plan


def request_of(question: Question, *, with_options: bool) -> ChatRequest:
    """Ask the planner for a plan. Without the options nothing of them can reach a query."""
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
        self._file = KeyedFile(path)
        self._planner = planner
        self._with_options = with_options

    def read(self, questions: Sequence[Question]) -> dict[str, Plan]:
        """The kept plans of these questions; one that is damaged is not a plan."""
        entries = self._file.read()
        plans = {
            q.id: _read_plan(entries.get(self._key(q)), with_options=self._with_options)
            for q in questions
        }
        return {name: plan for name, plan in plans.items() if plan}

    def check(self, questions: Sequence[Question], model: ChatModel) -> str | None:
        """Ask for one plan where some are missing; what is wrong with the planner, if anything.

        The question is none of these, for a planner may rightly fail at one of them.
        """
        plans = self.read(questions)
        if all(question.id in plans for question in questions):
            return None
        error = try_once(model, request_of(_TRIAL, with_options=self._with_options)).error
        return error.text if error else None

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
                new_plans, failures = self._make(missing[start : start + _ASKED_AT_ONCE], model)
                plans |= new_plans
                reasons += failures
                say(f"plans: {len(plans):,} of {len(questions):,}, {len(reasons):,} failed")
        return Planned(plans, len(reasons), tuple(dict.fromkeys(reasons)))

    def _make(
        self, questions: Sequence[Question], model: ChatModel
    ) -> tuple[dict[str, Plan], list[str]]:
        """Ask for plans and keep those that come; why the others did not."""
        replies = model.ask(
            [request_of(question, with_options=self._with_options) for question in questions]
        )
        plans, reasons = {}, []
        for question, reply in zip(questions, replies, strict=True):
            plan = parse_plan(reply.text or "", with_options=self._with_options)
            if plan:
                plans[question.id] = plan
            else:
                reasons.append(reply.error.text if reply.error else "no plan of the schema")
        self._file.append(
            {self._key(q): plans[q.id].model_dump() for q in questions if q.id in plans}
        )
        return plans, reasons

    def _key(self, question: Question) -> str:
        options = sorted(question.options.items()) if self._with_options else []
        return content_key(self._planner, PROMPT_VERSION, question.text, options)


def template_plan(features: Sequence[str]) -> Plan:
    """Fill in a plan without a planner: what tells the question apart, in set phrases."""
    return Plan(
        discriminating_features=list(features),
        best_guess="none",
        reasoning="Search for what tells it apart.",
        confirming_evidence="all of it together.",
        alternative_if_wrong="a part of it.",
    )
