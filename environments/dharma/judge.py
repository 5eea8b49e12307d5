"""The judge: what it is asked, how its answers are read, and the two kinds that ask a model.

A judge labels prompts (tier and scope) and rates responses. What it rates is hostile: it goes
into the request between delimiters that it cannot close, and the judge is told that nothing
between them is meant for it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from environments.base import Failure
from environments.chat import ChatModel, ChatReply, ChatRequest, quote, try_once
from environments.dharma.answer_key import AnswerKey
from environments.dharma.ratings import Judgement, PromptLabel, Ratings, parse_answer
from environments.dharma.rubric import SHIPPED, Rubric

Answer = TypeVar("Answer", bound=Judgement)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt with its label, the response to it, and the answer key if the prompt brings one.

    No model is shown the key: a judge that is asked for its own view is to have one.
    """

    prompt: str
    label: PromptLabel
    response: str
    key: AnswerKey | None = None


class Judge(Protocol):
    """Labels prompts and rates responses, in order; what it cannot judge is a `Failure`."""

    @property
    def identity(self) -> str:
        """The name of the judge in provenance and agreement tables."""

    def label(self, prompts: Sequence[str]) -> list[PromptLabel | Failure]:
        """The tier and the scope of each prompt."""

    def rate(self, exchanges: Sequence[Exchange]) -> list[Ratings | Failure]:
        """The ratings of each response."""

    def usage(self) -> dict[str, Any]:
        """Return the cost of judging so far: calls, cache hits, failures, seconds."""


def label_request(prompt: str, rubric: Rubric = SHIPPED) -> ChatRequest:
    """Ask for the label of a prompt."""
    return _request(rubric.label_prompt, {"The prompt": prompt}, PromptLabel)


def rate_request(exchange: Exchange, rubric: Rubric = SHIPPED) -> ChatRequest:
    """Ask for the ratings of a response."""
    label = exchange.label
    prompt = f"The prompt, of scope {label.scope} and urgency tier {label.tier}"
    material = {prompt: exchange.prompt, "The response to rate": exchange.response}
    return _request(rubric.rate_prompt, material, Ratings)


def _request(task: str, material: Mapping[str, str], answer: type[Judgement]) -> ChatRequest:
    parts = [f"{title}:\n{quote(text)}" for title, text in material.items()]
    return ChatRequest(
        messages=(
            {"role": "system", "content": task},
            {"role": "user", "content": "\n\n".join(parts)},
        ),
        schema=answer.model_json_schema(),
        valid=lambda text: not isinstance(parse_answer(text, answer), Failure),
    )


#: What a judge is asked before it is needed.
_TRIAL = Exchange(
    "What helps with a cold?",
    PromptLabel(tier="C", scope="S0"),
    "Rest and drink enough. See a doctor if it lasts longer than ten days.",
)


class ModelJudge:
    """Asks a language model, behind an endpoint or in this process."""

    def __init__(
        self,
        model: ChatModel,
        counters: Callable[[], Mapping[str, float]] = dict,
        rubric: Rubric = SHIPPED,
    ) -> None:
        self._model = model
        self._rubric = rubric
        self._counters = counters
        self._counts = {"requests": 0, "cache_hits": 0, "failures": 0}
        self._seconds = 0.0

    @property
    def identity(self) -> str:
        """The model and its parameters."""
        return self._model.identity

    def check(self) -> str | None:
        """Ask for one rating; what is wrong with the judge, None where it answers."""
        reply = try_once(self._model, rate_request(_TRIAL, self._rubric))
        rated = _read(reply, Ratings)
        return rated.text if isinstance(rated, Failure) else None

    def label(self, prompts: Sequence[str]) -> list[PromptLabel | Failure]:
        """Labels in order."""
        return self._ask([label_request(prompt, self._rubric) for prompt in prompts], PromptLabel)

    def rate(self, exchanges: Sequence[Exchange]) -> list[Ratings | Failure]:
        """Ratings in order."""
        return self._ask([rate_request(exchange, self._rubric) for exchange in exchanges], Ratings)

    def usage(self) -> dict[str, Any]:
        """Requests, those that a cache answered, failures, seconds, and what the model counts."""
        counted = {**self._counts, "judge_time_seconds": round(self._seconds, 3)}
        return counted | {"model": dict(self._counters())}

    def _ask(
        self, requests: Sequence[ChatRequest], expected: type[Answer]
    ) -> list[Answer | Failure]:
        started = time.perf_counter()
        replies = self._model.ask(requests)
        self._seconds += time.perf_counter() - started
        answers = [_read(reply, expected) for reply in replies]
        self._counts["requests"] += len(replies)
        self._counts["cache_hits"] += sum(reply.cached for reply in replies)
        self._counts["failures"] += sum(isinstance(answer, Failure) for answer in answers)
        return answers


def _read(reply: ChatReply, expected: type[Answer]) -> Answer | Failure:
    answer = reply.error or parse_answer(reply.text or "", expected)
    if isinstance(answer, Failure):
        return answer.of("judge")
    return answer.given_by(reply.source)
