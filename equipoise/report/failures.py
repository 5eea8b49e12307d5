"""What could not be scored and what could not be read, counted by reason."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import STAGES, Stage, printable

_REASONS_SHOWN, _REPLY_LIMIT = 5, 600


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that replies share: how many before and after, and one of these replies."""

    text: str
    before: int
    after: int
    reply: str


def failures(run: RunFiles) -> tuple[Reason, ...]:
    """The most frequent errors of replies that could not be scored."""
    return _reasons(run, lambda reply: reply.error)


def unparseable(run: RunFiles) -> tuple[Reason, ...]:
    """The most frequent reasons of replies that could not be read."""
    return _reasons(run, lambda reply: reply.unparseable)


def _reasons(run: RunFiles, reason_of: Callable[[Reply], str | None]) -> tuple[Reason, ...]:
    counts: dict[Stage, Counter[str]] = {stage: Counter() for stage in STAGES}
    example: dict[str, str] = {}
    for stage in run.stages:
        for reply in run.replies[stage]:
            if (reason := reason_of(reply)) is not None:
                counts[stage][reason] += 1
                example.setdefault(reason, reply.completion)
    before, after = counts["before"], counts["after"]
    ranked = sorted(example, key=lambda reason: (-before[reason] - after[reason], reason))
    return tuple(
        Reason(
            text=printable(reason),
            before=before[reason],
            after=after[reason],
            reply=printable(example[reason], _REPLY_LIMIT),
        )
        for reason in ranked[:_REASONS_SHOWN]
    )
