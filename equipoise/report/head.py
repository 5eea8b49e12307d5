"""Head of a run's document: its facts, what it used, notes on every figure, and alerts.

Alerts say what a reader must not miss: what got worse, what failed, and a lack of signal.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta

from equipoise.files.disk import in_gb
from equipoise.report.alarms import AlarmMonitor
from equipoise.report.document import Alert
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import clipped, figure, plain_name, task_title
from equipoise.run.directory import GREEDY
from equipoise.run.ledger import changed_models
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.evaluation import MANY_TIED

# --- head -----------------------------------------------------------------------------------------


_UNREADABLE_REMEDY = " Fine-tune the model on examples of good replies first (docs/own-data.md)."
#: Shares of generations that a reader is warned of.
_MANY_FAILED, _MANY_UNREADABLE, _MANY_CUT_OFF = 0.02, 0.2, 0.2
_LAST_STEPS = 10
#: NeMo-RL's own tests fail where more of the steps are above this.
_MISMATCHED, _MANY_MISMATCHED = 1.05, 0.02


def run_name(run: RunFiles) -> str:
    """The name under which the run was started; its directory may have been renamed."""
    return run.provenance.run_name or run.name


def run_title(run: RunFiles) -> str:
    task = run.provenance.task or run.latest.task or "run"
    return f"{task_title(task, run.presentation)}: {run_name(run)}"


def run_facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return what identifies the run, as far as it is known."""
    origin = run.provenance
    grown = (
        f"{growth.steps:,} in place of {growth.steps_before:,}, from step {growth.from_step:,}"
        for growth in origin.grown
    )
    facts = [
        ("Model", origin.model or run.evaluations.get("before", run.latest).model),
        ("Engine", origin.engine),
        ("Device", origin.device),
        ("Started", origin.started),
        ("Steps added", "; ".join(grown)),
        ("Evaluated on", evaluated_on(run)),
    ]
    return [(name, fact) for name, fact in facts if fact]


def evaluated_on(run: RunFiles) -> str:
    """Split and sizes of the evaluation; empty if there is none."""
    latest = run.latest
    if not latest.n_rollouts:
        return ""
    sizes = f"{latest.n_prompts:,} prompts, {latest.n_rollouts:,} generations"
    return f"{latest.split} split: {sizes}"


def run_notes(run: RunFiles) -> tuple[str, ...]:
    """Return the caveats of every figure: not finished, a stand-in, a tiny local model."""
    notes = []
    if not (run.finished or run.audited):
        steps = filter(math.isfinite, run.history.get("step", ()))
        reached = max(steps, default=None)
        training = "has not begun" if reached is None else f"has reached step {reached:,.0f}"
        notes.append(f"This run is not finished: training {training}, no final evaluation yet.")
    if notice := run.provenance.local_model_notice:
        notes.append(notice)
    if stand_in := run.provenance.stand_in:
        notes.append(f"{stand_in}.")
    return tuple(notes)


# --- usage ---------------------------------------------------------------------------------------


def usage_facts(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Names with words; what was not recorded is left out."""
    usage = run.provenance.usage
    if seconds := sum(run.provenance.seconds.values()):
        yield "Time", str(timedelta(seconds=round(seconds)))
    if usage.completion_tokens:
        stages = [run.evaluations[stage] for stage in run.stages]
        duration = sum(stage.generation_time_seconds for stage in stages)
        # The evaluations do nothing else meanwhile.
        rate = sum(stage.completion_tokens for stage in stages) / duration if duration else 0
        of_evaluation = f", {_short(rate)} per second of evaluation" if rate else ""
        written = f"{_short(usage.completion_tokens)} generated{of_evaluation}"
        yield "Tokens", f"{_short(usage.prompt_tokens)} of prompts, {written}"
    if usage.peak_memory_bytes:
        gpu = usage.peak_gpu_memory_bytes
        text = in_gb(usage.peak_memory_bytes, 1) + (f", {in_gb(gpu, 1)} of the GPU" if gpu else "")
        yield "Peak memory", text
    for model, counts in usage.calls.items():
        yield f"Asked {clipped(model, 80)}", _calls(counts)


def _calls(counts: Mapping[str, float]) -> str:
    calls, cache_hits, failures, cost = (
        counts.get(name, 0) for name in ("calls", "cache_hits", "failures", "cost")
    )
    tokens = sum(counts.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
    guessed = " (in part guessed)" if counts.get("answers_without_usage") else ""
    parts = (
        f"{calls:,.0f} calls",
        f"{cache_hits:,.0f} answers from the cache" if cache_hits else "",
        f"{failures:,.0f} failed" if failures else "",
        f"{_short(tokens)} tokens{guessed}" if tokens else "",
        f"cost {cost:,.2f}" if cost else "",
    )
    return ", ".join(filter(None, parts))


def _short(count: float) -> str:
    """At most three digits and what they count in: thousands, millions."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:,.0f}"


# --- alerts --------------------------------------------------------------------------------------


_NOT_PRESERVED, _WORSE, _INCONCLUSIVE = "Guard not preserved", "Worse", "Guard inconclusive"
_NOT_MEASURED = "Guard not measured"
_WITHIN, _UNCLEAR = f"{_WORSE}, but within its margin", f"{_WORSE}, perhaps by more than its margin"
#: How the alerts on a comparison's rows begin, the worst first.
_BAD_NEWS = (_NOT_PRESERVED, _WORSE, _UNCLEAR, _WITHIN, _INCONCLUSIVE, _NOT_MEASURED)
#: Those that say nothing of a single metric.
_UNKNOWN_NEWS = (_INCONCLUSIVE, _NOT_MEASURED)


def alerts(run: RunFiles) -> tuple[Alert, ...]:
    """Nothing where nothing is wrong."""
    alarm = AlarmMonitor(run).alarm
    changed = changed_models(run.provenance.usage)
    return (
        *worsened(run),
        *baseline_alerts(run),
        *((Alert(alarm.text, "training"),) if alarm else ()),
        *(Alert(f"{change}.", "provenance") for change in changed),
        *_unusable(run),
        *_mismatched(run),
        *(() if run.audited else _no_signal(run)),
        *_cut_off(run),
    )


def worsened(run: RunFiles) -> Iterator[Alert]:
    for words in _BAD_NEWS:
        rows = {name: row for name, row in run.comparison.items() if _bad_news(row) == words}
        if rows and words in _UNKNOWN_NEWS:
            yield Alert(f"{words}: {', '.join(map(run.name_of, rows))}.", "verdicts")
        else:
            for name, row in rows.items():
                before = f"{figure(row.before)}{run.of_stage('before')}"
                sides = f"{before} and {figure(row.after)}{run.of_stage('after')}"
                yield Alert(f"{words}: {run.name_of(name)}, {sides}.", "verdicts")


def _bad_news(row: MetricComparison) -> str:
    """Return the beginning of an alert on a metric; empty without bad news."""
    if row.guard == "not preserved":
        return _NOT_PRESERVED
    if row.guard and row.verdict == "not measured":
        return _NOT_MEASURED
    if row.verdict == "worse":
        return {"preserved": _WITHIN, "inconclusive": _UNCLEAR}.get(row.guard or "", _WORSE)
    return _INCONCLUSIVE if row.guard == "inconclusive" else ""


def baseline_alerts(run: RunFiles) -> Iterator[Alert]:
    """Warn of trivial baselines that are as good as the model, or were better before it."""
    name = run.name_of(run.objective)
    if names := run.probe.not_beaten:
        greedy = f"{GREEDY} (both models)" if run.probe.trained_greedy else GREEDY
        baselines = ", ".join(greedy if n == GREEDY else plain_name(n) for n in names)
        text = f"Trivial baselines that the trained model does not beat in {name}: {baselines}."
        yield Alert(text, "baselines")
    if run.probe.ahead:
        baselines = ", ".join(map(plain_name, run.probe.ahead))
        text = (
            f"Before training the model was worse in {name} than baselines that ignore the prompt: "
            f"{baselines}. Training may learn those first. Look at the reward, or fine-tune the "
            "model on good replies first (docs/own-data.md)."
        )
        yield Alert(text, "baselines")


def _unusable(run: RunFiles) -> Iterator[Alert]:
    """Many replies that could not be scored, or not be read."""
    for stage in run.stages:
        evaluation, replies = run.evaluations[stage], run.replies[stage]
        reasons = Counter(reply.unparseable for reply in replies if reply.unparseable is not None)
        problems = (
            ("could not be scored", evaluation.failures, evaluation.n_failed, _MANY_FAILED),
            ("could not be read", reasons, reasons.total(), _MANY_UNREADABLE),
        )
        for problem, kinds, count, many in problems:
            if count and (total := evaluation.n_rollouts or len(replies)) and count / total >= many:
                share = f"{count:,} of {total:,} generations ({count / total:.0%}) {problem}"
                often = max(kinds, key=kinds.__getitem__, default="")
                reason = f", most often: {plain_name(often)}" if often else ""
                when = "" if run.audited else f"{run.title_of(stage)} "
                remedy = _UNREADABLE_REMEDY if kinds is reasons else ""
                yield Alert(f"{when}{share}{reason}.{remedy}", "replies")


def _no_signal(run: RunFiles) -> Iterator[Alert]:
    """GRPO learns from how the generations of one prompt differ."""
    groups: dict[str, list[Reply]] = defaultdict(list)
    for reply in run.replies["before"] if "before" in run.stages else ():
        groups[reply.rollout.prompt_id].append(reply)
    several = [replies for replies in groups.values() if len(replies) > 1]
    tied = sum(len({reply.score.value for reply in replies}) == 1 for replies in several)
    if several and tied / len(several) >= MANY_TIED:
        yield Alert(
            f"No signal: before training all generations had one reward for {tied:,} of "
            f"{len(several):,} prompts, and GRPO learns nothing from such a prompt.",
            "training",
        )


def _mismatched(run: RunFiles) -> Iterator[Alert]:
    """Warn of mismatched probabilities; a step without the figure had one that is not a number."""
    steps = run.history.get("token_mult_prob_error", ())
    above = [value for value in steps if not value <= _MISMATCHED]
    if above and len(above) / len(steps) > _MANY_MISMATCHED:
        factors = [value for value in above if math.isfinite(value)]
        largest = f", by a factor of {max(factors):.3g} at most" if factors else ""
        yield Alert(
            f"In {len(above)} of {len(steps)} steps the probabilities of the same tokens in "
            f"training and generation differed by more than 5% in the mean{largest}: what was "
            "sampled may not be of the policy that was trained.",
            "training",
        )


def _cut_off(run: RunFiles) -> Iterator[Alert]:
    shares = [v for v in run.history.get("truncated", ()) if math.isfinite(v)][-_LAST_STEPS:]
    if shares and (share := sum(shares) / len(shares)) >= _MANY_CUT_OFF:
        yield Alert(
            f"In the last {len(shares)} steps {share:.0%} of the generations were cut off at "
            "policy.generation.max_new_tokens.",
            "training",
        )
