"""Alerts that a reader must not miss: what got worse, what failed, and a lack of signal."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.tables import compared
from equipoise.report.words import (
    Stage,
    figure,
    not_beaten,
    number,
    plain_name,
    printable,
)
from equipoise.run.kept_files import unsealed_note
from equipoise.run.usage import changed_models
from equipoise.statistics.learning_signal import MANY_TIED

#: Shares of generations that a reader is warned of.
_MANY_FAILED, _MANY_UNREADABLE, _MANY_CUT_OFF = 0.02, 0.2, 0.2
_LAST_STEPS = 10
#: NeMo-RL's own tests fail where more of the steps are above this.
_MISMATCHED, _MANY_MISMATCHED = 1.05, 0.02


@dataclass(frozen=True, slots=True)
class Alert:
    """A sentence, and the section of the page that says more."""

    text: str
    section: str


def alerts(run: RunFiles) -> tuple[Alert, ...]:
    """Nothing where nothing is wrong."""
    return (
        *_unsealed(run),
        *_other_sizes(run),
        *_lost(run),
        *policy_alerts(run),
        *_changed(run),
        *_failed(run),
        *_unreadable(run),
        *_mismatched(run),
        *(() if run.audited else _no_signal(run)),
        *_cut_off(run),
    )


def _unsealed(run: RunFiles) -> Iterator[Alert]:
    if run.unsealed:
        yield Alert(unsealed_note(map(printable, run.unsealed)), "provenance")


def _other_sizes(run: RunFiles) -> Iterator[Alert]:
    """Both stages ask the same prompts, equally often."""
    counted = (number(run.evaluations[stage].get("n_rollouts")) for stage in run.stages)
    sizes = [size for size in counted if size is not None]
    if len(set(sizes)) > 1:
        counts = " and ".join(f"{size:,.0f}" for size in sizes)
        yield Alert(f"The two evaluations differ in their size: {counts} generations.", "verdicts")


def _lost(run: RunFiles) -> Iterator[Alert]:
    """Guards before other metrics."""
    news = (("guard", "lost", "Lost guard"), ("verdict", "worse", "Worse"))
    for key, value, words in (*news, ("guard", "not shown", "Guard not shown")):
        for name, row in compared(run).items():
            if row.get(key) == value:
                before, after = (figure(number(row.get(stage))) for stage in ("before", "after"))
                text = f"{words}: {run.name_of(name)}, {before} before and {after} after training."
                yield Alert(text, "verdicts")


def policy_alerts(run: RunFiles) -> Iterator[Alert]:
    """Warn of policies without skill that are as good as the model, or were better before it."""
    yield from _not_beaten(run)
    yield from _ahead(run)


def _not_beaten(run: RunFiles) -> Iterator[Alert]:
    if policies := not_beaten(run.trivial):
        name = run.name_of(run.objective)
        text = f"Policies without skill that the trained model does not beat in {name}: {policies}."
        yield Alert(text, "section-1")  # `build_view` puts the probe before all other sections


def _ahead(run: RunFiles) -> Iterator[Alert]:
    names = run.probe.get("ahead")
    if isinstance(names, list) and names:
        policies = ", ".join(plain_name(str(name)) for name in names)
        name = run.name_of(run.objective)
        text = (
            f"Before training policies that read no prompt were better in {name}, and training may "
            f"find that first: {policies}. Look at the reward, or show the model good replies "
            "(equipoise cold-start)."
        )
        yield Alert(text, "section-1")


def _changed(run: RunFiles) -> Iterator[Alert]:
    for change in changed_models(run.provenance.get("usage")):
        yield Alert(f"{printable(change, 500)}.", "provenance")


def _failed(run: RunFiles) -> Iterator[Alert]:
    for stage in run.stages:
        failed, total = (number(run.evaluations[stage].get(k)) for k in ("n_failed", "n_rollouts"))
        if failed and total and failed / total >= _MANY_FAILED:
            yield _share_alert(run, stage, failed, total, "could not be scored")


def _unreadable(run: RunFiles) -> Iterator[Alert]:
    for stage in run.stages:
        replies = run.replies[stage]
        unreadable = sum(reply.unparseable is not None for reply in replies)
        if replies and unreadable / len(replies) >= _MANY_UNREADABLE:
            yield _share_alert(run, stage, unreadable, len(replies), "could not be read")


def _share_alert(run: RunFiles, stage: Stage, count: float, total: float, problem: str) -> Alert:
    share = f"{count:,.0f} of {total:,.0f} generations ({count / total:.0%})"
    text = f"{share} {problem}." if run.audited else f"{run.title_of(stage)} {share} {problem}."
    return Alert(text, "failures")


def _no_signal(run: RunFiles) -> Iterator[Alert]:
    """GRPO learns from how the generations of one prompt differ."""
    groups: dict[str, list[Reply]] = defaultdict(list)
    for reply in run.replies["before"] if "before" in run.stages else ():
        groups[reply.prompt_id].append(reply)
    several = [replies for replies in groups.values() if len(replies) > 1]
    tied = sum(len({reply.value for reply in replies}) == 1 for replies in several)
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
