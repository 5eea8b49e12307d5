"""Costs of asking a model: counters, tokens, money, and the budget that ends a run."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from threading import Lock

from environments.base import FailureKind
from environments.chat.model import Budget, BudgetSpentError, Source

_MILLION = 1_000_000
#: Where a server does not say what it used: bytes of text per token, low enough for a budget.
_BYTES_PER_TOKEN = 3
#: Counters that are there even when they are 0.
_ALWAYS = (
    *("calls", "attempts", "retries", "throttled", "failures", "invalid_answers", "cache_hits"),
    *("cache_errors", "shared_calls", "prompt_tokens", "completion_tokens"),
    "answers_without_usage",
)

#: Counters of answers by what gave them, cached ones included: before its name.
MODEL, FINGERPRINT = "answering_model/", "system_fingerprint/"
#: So many names are counted apart; a server may make up one for each answer.
_MOST_SOURCES = 20

#: The accounts of the models that this process has opened.
_OPENED: list["Accounts"] = []


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; `reported` says whether the server counted them or we guessed."""

    prompt_tokens: int
    completion_tokens: int
    reported: bool = True


def guessed_usage(prompt_bytes: int, completion_bytes: int) -> Usage:
    """Estimate tokens from text sizes alone, rather too high."""
    sizes = (prompt_bytes, completion_bytes)
    prompt, completion = (math.ceil(size / _BYTES_PER_TOKEN) for size in sizes)
    return Usage(prompt, completion, reported=False)


@dataclass(slots=True)
class Accounts:
    """The counters of one model; every method may be called from any thread.

    `spent` leaves out those that are not `listed`: the code that opens them counts them.
    """

    model: str
    budget: Budget
    listed: InitVar[bool] = True
    _counts: Counter[str] = field(init=False, default_factory=Counter)
    _seconds: float = field(init=False, default=0.0)
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self, listed: bool) -> None:
        if listed:
            _OPENED.append(self)

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def add_sources(self, sources: Sequence[Source]) -> None:
        """Count answers by the model that gave them, and by its fingerprint."""
        names = [f"{MODEL}{source.model}" for source in sources if source.model]
        names += [f"{FINGERPRINT}{s.fingerprint}" for s in sources if s.fingerprint]
        with self._lock:
            for name in names:
                kind = name.partition("/")[0]
                count = sum(entry.startswith(f"{kind}/") for entry in self._counts)
                full = name not in self._counts and count >= _MOST_SOURCES
                self._counts[f"{kind}/others" if full else name] += 1

    def add_failure(self, kind: FailureKind) -> None:
        """Count a call that gave no answer."""
        with self._lock:
            self._counts["failures"] += 1
            self._counts[f"failures/{kind}"] += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the seconds spent inside to the time that callers have waited."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds += time.perf_counter() - started

    def spend(self, usage: Usage) -> None:
        """Add the tokens of an answer, whether or not the answer was of any use."""
        with self._lock:
            self._counts["prompt_tokens"] += usage.prompt_tokens
            self._counts["completion_tokens"] += usage.completion_tokens
            self._counts["answers_without_usage"] += not usage.reported

    def check_budget(self) -> None:
        """Raise `BudgetSpentError` when nothing is left to spend."""
        with self._lock:
            prompt, completion = self._counts["prompt_tokens"], self._counts["completion_tokens"]
        spent_of = {"tokens": prompt + completion, "cost": self._cost(prompt, completion)}
        for name, spent in spent_of.items():
            limit = getattr(self.budget, name)
            if limit is not None and spent >= limit:
                raise BudgetSpentError(
                    "endpoint.spent-budget",
                    f"the budget for {self.model} is used up: {spent:,.10g} of budget.{name} = "
                    f"{limit:,g}",
                )

    def counters(self) -> dict[str, float]:
        """A snapshot under stable names, for logs and evaluation facts."""
        with self._lock:
            counts, seconds = dict(self._counts), self._seconds
        counters = dict.fromkeys(_ALWAYS, 0.0) | {name: float(n) for name, n in counts.items()}
        cost = self._cost(counters["prompt_tokens"], counters["completion_tokens"])
        return counters | {"cost": cost, "seconds_waited": round(seconds, 3)}

    def _cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        prices = self.budget.prompt_price, self.budget.completion_price
        return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / _MILLION


def spent() -> dict[str, dict[str, float]]:
    """Return the counters of every listed model that this process has asked, by model."""
    by_model: dict[str, dict[str, float]] = {}
    for accounts in _OPENED:
        by_model[accounts.model] = added(by_model.get(accounts.model, {}), accounts.counters())
    return {model: counts for model, counts in by_model.items() if any(counts.values())}


def added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
