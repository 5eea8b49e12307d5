"""Head of the report: the facts of a run, what it used, and what a reader must know first."""

import math
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from equipoise.report.run_files import Json, RunFiles
from equipoise.report.words import heading, number, plain_name, printable
from equipoise.run.kept_files import unsealed_note
from equipoise.run.provenance import REPLACES

LOCAL_MODEL_NOTE = (
    "The model of this run is tiny and was warm-started on invented answers. It is made to show "
    "and test the pipeline and says nothing of any model that is meant for use."
)
_NOTICE_LIMIT = 1000
_GIGA = 1e9


def task_title(run: RunFiles) -> str:
    """Return the task's title, with which the page begins."""
    name = run.provenance.get("task") or run.latest.get("task") or "run"
    return printable(run.presentation.title) or plain_name(name)


def run_name(run: RunFiles) -> str:
    """The run's own name, which its directory may have lost."""
    return printable(run.provenance.get("run_name") or run.name)


def run_facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return what identifies the run, as far as it is known."""
    evaluated = run.evaluations.get("before") or run.latest
    model = run.provenance.get("model") or evaluated.get("model")
    recorded = [(heading(key), run.provenance.get(key)) for key in ("engine", "device", "started")]
    facts = [
        *(("Model", model), *recorded, ("Resumed", _resumptions(run))),
        ("Evaluated on", evaluated_on(run)),
    ]
    return [(name, printable(fact)) for name, fact in facts if fact]


def _resumptions(run: RunFiles) -> str:
    """How often and from which steps the run was resumed, and where what it replaced is kept."""
    recorded = run.provenance.get("resumed")
    entries = [e for e in recorded if isinstance(e, dict)] if isinstance(recorded, list) else []
    steps = ", ".join(f"{number(entry.get('from_step')) or 0:,.0f}" for entry in entries)
    changed = [
        f"{', '.join(map(printable, changes))} changed, before in {entry.get('kept_in')}"
        for entry in entries
        if isinstance(changes := entry.get("changes"), dict) and changes
    ]
    return "; ".join([f"from step {steps}", *changed]) if entries else ""


def evaluated_on(run: RunFiles) -> str:
    """Split and sizes of the evaluation; empty if there is none."""
    prompts, rollouts = (number(run.latest.get(key)) for key in ("n_prompts", "n_rollouts"))
    if prompts is None or rollouts is None:
        return ""
    split = printable(run.latest.get("split") or "")
    return f"{split} split: {prompts:,.0f} prompts, {rollouts:,.0f} generations".lstrip()


def run_notes(run: RunFiles) -> tuple[str, ...]:
    """Return the caveats of every figure: not finished, scored again, a tiny local model."""
    notes = []
    if not (run.finished or run.audited):
        reached = _last_step(run)
        training = "has not begun" if reached is None else f"has reached step {reached:,.0f}"
        notes.append(f"This run is not finished: training {training}, no final evaluation yet.")
    if replaced := run.provenance.get(REPLACES):
        reached = _last_step(run) or 0
        notes.append(
            f"This run is trained on, and has reached step {reached:,.0f}. Its evaluation after "
            "training, its comparison and its model are those before these steps, by the "
            f"configuration in {printable(replaced)}."
        )
    if isinstance(scored := run.provenance.get("rescored"), dict):
        notes.append(
            f"The replies of {printable(scored.get('of'))} were scored again, at "
            f"{printable(scored.get('time'))}; rescored.json says what changed."
        )
        notes += _of_old_scores(run, scored)
        if unsealed := scored.get("unsealed"):
            notes.append(unsealed_note(map(printable, unsealed)))
    audit = run.provenance.get("audit")
    if isinstance(audit, dict) and (unsealed := audit.get("unsealed")):
        notes.append(f"The model is of a run. {unsealed_note(map(printable, unsealed))}")
    if yardstick := run.yardstick:
        notes.append(
            f"The variants of a set differ in a {printable(yardstick)} and in nothing else: the "
            "first variant stands for all of them, and what is named here as a value of the "
            f"attribute is a version of the {printable(yardstick)}."
        )
    elif run.own_reference:
        notes.append(
            "Too few plain replies of this model can be read to compare with, so these are held "
            "against themselves: the distance from the reference is 0 but for chance."
        )
    if run.provenance.get("local_model") is True:
        notice = run.provenance.get("local_model_notice")
        notes.append(printable(notice, _NOTICE_LIMIT) if notice else LOCAL_MODEL_NOTE)
    return tuple(notes)


def _of_old_scores(run: RunFiles, scored: Json) -> Iterator[str]:
    """Note which parts of a rescored run have the old scores."""
    if run.history:
        yield "The curves of training are of the old scores."
    names = scored.get("left_out")
    if isinstance(names, list) and names:
        files = ", ".join(map(printable, names))
        yield f"{files} of the first run are of the old scores too, and left out here."
        if "probe" in names:
            yield "A policy without skill that is not shown may score as much."


def _last_step(run: RunFiles) -> float | None:
    return max((step for step in run.history.get("step", ()) if math.isfinite(step)), default=None)


# --- usage ---------------------------------------------------------------------------------------


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
