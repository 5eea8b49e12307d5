"""Replies that could not be scored, by kind, or not be read, by reason."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import Stage, heading, plain_name, printable

_REASONS_SHOWN, _REPLY_LIMIT = 5, 600


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that replies share: how many before and after, and the text and reply of one.

    `text` is the most frequent one, empty where the reason says it all.
    """

    name: str
    text: str
    before: int
    after: int
    reply: str


def failures(run: RunFiles) -> tuple[Reason, ...]:
    """The kinds of failure of replies that could not be scored, the most frequent first."""
    return _reasons(
        run,
        lambda reply: None if reply.error is None else heading(plain_name(reply.failure_kind)),
        lambda reply: reply.error or "",
    )


def unparseable(run: RunFiles) -> tuple[Reason, ...]:
    """The most frequent reasons of replies that could not be read."""
    return _reasons(run, lambda reply: reply.unparseable, lambda _: "")


def _reasons(
    run: RunFiles, name_of: Callable[[Reply], str | None], text_of: Callable[[Reply], str]
) -> tuple[Reason, ...]:
    counts: dict[str, Counter[Stage]] = {}
    texts: dict[str, Counter[str]] = {}
    examples: dict[tuple[str, str], str] = {}
    for stage in run.stages:
        for reply in run.replies[stage]:
            if (name := name_of(reply)) is not None:
                text = text_of(reply)
                counts.setdefault(name, Counter())[stage] += 1
                texts.setdefault(name, Counter())[text] += 1
                examples.setdefault((name, text), reply.completion)
    ranked = sorted(counts, key=lambda name: (-counts[name].total(), name))
    reasons = [(name, texts[name].most_common(1)[0][0]) for name in ranked[:_REASONS_SHOWN]]
    return tuple(
        Reason(
            printable(name),
            printable(text),
            counts[name]["before"],
            counts[name]["after"],
            printable(examples[name, text], _REPLY_LIMIT),
        )
        for name, text in reasons
    )
