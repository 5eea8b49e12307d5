"""Usage of a run, for the report's head: time, tokens, memory, calls of other models."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from equipoise.report.run_files import RunFiles
from equipoise.report.words import number, printable

_GIGA = 1e9


def usage_facts(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Names with words; what was not recorded is left out."""
    usage = run.provenance.get("usage")
    counts: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
    if seconds := number(counts.get("seconds")):
        yield "Time", _time(seconds, number(counts.get("processes")) or 1)
    if written := number(counts.get("completion_tokens")):
        yield "Tokens", _tokens(number(counts.get("prompt_tokens")) or 0, written, _rate(run))
    if memory := number(counts.get("peak_memory_bytes")):
        gpu = number(counts.get("peak_gpu_memory_bytes"))
        text = f"{memory / _GIGA:,.1f} GB" + (f", {gpu / _GIGA:,.1f} GB of the GPU" if gpu else "")
        yield "Peak memory", text
    calls = counts.get("calls")
    for model, model_counts in calls.items() if isinstance(calls, dict) else ():
        if isinstance(model_counts, dict):
            yield f"Asked {printable(model, 80)}", _calls(model_counts)


def _time(seconds: float, processes: float) -> str:
    duration = str(timedelta(seconds=round(seconds)))
    return f"{duration}, in {processes:,.0f} starts" if processes > 1 else duration


def _tokens(read: float, written: float, rate: float | None) -> str:
    totals = f"{_short(read)} of prompts, {_short(written)} generated"
    return f"{totals}, {_short(rate)} per second of evaluation" if rate else totals


def _rate(run: RunFiles) -> float | None:
    """Generated tokens per second over the evaluations, which do nothing else meanwhile."""
    names = ("completion_tokens", "generation_time_seconds")
    pairs = [tuple(number(run.evaluations[s].get(name)) or 0 for name in names) for s in run.stages]
    tokens, seconds = (sum(column) for column in zip((0, 0), *pairs, strict=True))
    return tokens / seconds if seconds else None


def _calls(counts: Mapping[str, Any]) -> str:
    calls, cache_hits, failures = (
        number(counts.get(n)) or 0 for n in ("calls", "cache_hits", "failures")
    )
    parts = [
        f"{calls:,.0f} calls",
        f"{cache_hits:,.0f} answers from the cache" if cache_hits else "",
    ]
    parts += [f"{failures:,.0f} failed" if failures else ""]
    tokens = sum(number(counts.get(n)) or 0 for n in ("prompt_tokens", "completion_tokens"))
    guessed = " (in part guessed)" if number(counts.get("answers_without_usage")) else ""
    parts += [f"{_short(tokens)} tokens{guessed}" if tokens else ""]
    cost = number(counts.get("cost"))
    return ", ".join(filter(None, [*parts, f"cost {cost:,.2f}" if cost else ""]))


def _short(count: float) -> str:
    """At most three digits and what they count in: thousands, millions."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:,.0f}"
