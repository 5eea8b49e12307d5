"""Prompts of any task with the replies of both stages side by side, chosen by a rule.

What is shown comes from the rollouts alone: reward, components and the evidence that the
environment gave. Texts are clipped and made visible, and the template escapes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from environments.base import UNPARSEABLE
from equipoise.report.document import Section
from equipoise.report.replies import (
    QUESTION,
    Field,
    address,
    differing_keys,
    in_words,
    problem,
)
from equipoise.report.run_files import Json, Reply, RunFiles
from equipoise.report.words import (
    MINUS,
    MISSING,
    Stage,
    plain_name,
    printable,
)

ROSE, FELL, SAME = "Reward rose most", "Reward fell most", "Reward unchanged"
MEDIAN_CHANGE, FAILED = "Median change of reward", "Could not be scored"
HIGHEST, LOWEST, MEDIAN = "Highest reward", "Lowest reward", "Median reward"
_CHANCE = (
    " Those at the ends were chosen for being extreme, so a part of their change is chance; the "
    "tables above say how much the model changed."
)
_MOST_GROUPS, _FIELDS_SHOWN, _ITEMS_SHOWN = 6, 40, 10
_TITLE_LIMIT, _VALUE_LIMIT, _REPLY_LIMIT, _PROMPT_LIMIT = 160, 300, 1500, 3000
_LONGEST_FACT = 60

Why = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the evidence; a field that differs between the stages is marked."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ShownReply:
    """One reply of a stage, and the rewards of all replies to the prompt if there are more."""

    stage: str
    reward: str
    problem: str
    reply: str
    lines: tuple[Line, ...]
    all_rewards: str


@dataclass(frozen=True, slots=True)
class PromptExample:
    """One prompt, why it is shown, and a reply of each stage."""

    reason: str
    rewards: str
    title: str
    facts: str
    replies: tuple[ShownReply, ...]
    prompt: str
    address: str


@dataclass(frozen=True, slots=True)
class PromptExamples(Section):
    """Prompts, noted by which rule they were chosen; several of them are folded."""

    kind = "prompts"
    legend: str = ""
    prompts: tuple[PromptExample, ...] = ()
    folded: bool = False


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The replies to one prompt by stage, at least one in each."""

    replies: Mapping[Stage, Sequence[Reply]]

    @property
    def first(self) -> Reply:
        """The first reply, for what all replies share."""
        return next(iter(self.replies.values()))[0]

    @property
    def means(self) -> tuple[float | None, ...]:
        """The mean reward of each stage; None where no reply was scored."""
        return tuple(_mean(replies) for replies in self.replies.values())

    @property
    def measure(self) -> float | None:
        """The change of the mean reward, or the mean itself while there is one stage."""
        numbers = [mean for mean in self.means if mean is not None]
        if len(numbers) < len(self.replies):
            return None
        return round(numbers[-1] - numbers[0] if len(numbers) > 1 else numbers[0], 9)

    @property
    def failed(self) -> bool:
        """Whether any reply could not be scored."""
        return any(reply.error for replies in self.replies.values() for reply in replies)


Prompts = Mapping[str, _Prompt]


def prompt_examples(run: RunFiles) -> tuple[str, tuple[PromptExample, ...]]:
    """By which rule prompts were chosen, and these prompts; nothing before an evaluation."""
    prompts = _prompts(run)
    if not prompts:
        return "", ()
    key = run.presentation.one_of_each
    in_all = all(key in prompt.first.metadata for prompt in prompts.values())
    if not in_all or not 1 < len(_groups(prompts, key)) <= _MOST_GROUPS:
        key = ""  # there cannot be one prompt of each
    chosen = _choose(prompts, key, compared=len(run.stages) > 1)
    examples = tuple(_example(run, prompts[name], reasons) for name, reasons in chosen.items())
    return _rule(prompts, key, compared=len(run.stages) > 1), examples


def prompt_sections(rule: str, prompts: Sequence[PromptExample]) -> tuple[PromptExamples, ...]:
    """The first of the prompts, and the others; nothing without any."""
    legend = ""
    if prompts and len(prompts[0].replies) > 1:
        legend = "What differs between the two replies of a prompt is bold."
    first = PromptExamples("One prompt", "example", rule, legend, tuple(prompts[:1]))
    more = PromptExamples("More prompts", "prompts", prompts=tuple(prompts[1:]), folded=True)
    return tuple(section for section in (first, more) if section.prompts)


def examples_of(run: RunFiles, reasons: Why) -> tuple[PromptExample, ...]:
    """The prompts of these names, each with the reasons for which it is shown."""
    prompts = _prompts(run)
    return tuple(
        _example(run, prompts[name], why) for name, why in reasons.items() if name in prompts
    )


def _prompts(run: RunFiles) -> Prompts:
    """The prompts that every evaluated stage answered, in the order of the first."""
    stages: dict[Stage, dict[str, list[Reply]]] = {stage: {} for stage in run.stages}
    for stage, by_prompt in stages.items():
        for reply in run.replies[stage]:
            by_prompt.setdefault(reply.prompt_name, []).append(reply)
    first = next(iter(stages.values()), {})
    return {
        name: _Prompt({stage: by_prompt[name] for stage, by_prompt in stages.items()})
        for name in first
        if all(name in by_prompt for by_prompt in stages.values())
    }


def _mean(replies: Sequence[Reply]) -> float | None:
    rewards = [reply.value for reply in replies if reply.value is not None]
    return fmean(rewards) if rewards else None


# --- which prompts ------------------------------------------------------------------------------


def _groups(prompts: Prompts, key: str) -> dict[str, list[str]]:
    """The prompts of each value of a metadata key, by value."""
    groups: dict[str, list[str]] = {}
    for name, prompt in prompts.items():
        groups.setdefault(str(prompt.first.metadata[key]), []).append(name)
    return dict(sorted(groups.items()))


def _choose(prompts: Prompts, key: str, *, compared: bool) -> dict[str, list[str]]:
    """Name of a prompt -> why it is shown; of equal ones the first of the evaluation."""
    measures = {n: m for n, prompt in prompts.items() if (m := prompt.measure) is not None}
    picks = list(_extremes(measures, prompts, compared=compared)) if measures else []
    picks += [(name, FAILED) for name, prompt in prompts.items() if prompt.failed][:1]
    for group, names in (_groups(prompts, key) if key else {}).items():
        if group_measures := {name: measures[name] for name in names if name in measures}:
            reason = f"Median of {plain_name(key)} {printable(group, 60)}"
            picks.append((_median(group_measures), reason))
    chosen: dict[str, list[str]] = {}
    for name, reason in picks:
        chosen.setdefault(name, []).append(reason)
    return chosen


def _extremes(
    measures: Mapping[str, float], prompts: Prompts, *, compared: bool
) -> Iterator[tuple[str, str]]:
    """Yield the prompts at both ends and in the middle, by what they are."""
    highest = max(measures, key=measures.__getitem__)
    lowest = min(measures, key=measures.__getitem__)
    if not compared:
        yield from ((highest, HIGHEST), (lowest, LOWEST), (_median(measures), MEDIAN))
        return
    if measures[highest] > 0:
        yield highest, ROSE
    if measures[lowest] < 0:
        yield lowest, FELL
    unchanged = {n: prompts[n].means[-1] or 0.0 for n, change in measures.items() if change == 0}
    yield (_median(unchanged), SAME) if unchanged else (_median(measures), MEDIAN_CHANGE)


def _median(measures: Mapping[str, float]) -> str:
    ranked = sorted(measures, key=measures.__getitem__)
    return ranked[len(ranked) // 2]


def _rule(prompts: Prompts, key: str, *, compared: bool) -> str:
    """How the prompts were chosen, with the number of those that they are chosen from."""
    total = f"There are {len(prompts):,} prompts."
    ends, chance = "the highest and the lowest reward", ""
    if compared:
        measures = [m for prompt in prompts.values() if (m := prompt.measure) is not None]
        rose, fell = sum(m > 0 for m in measures), sum(m < 0 for m in measures)
        unmeasured = len(prompts) - len(measures)
        total = (
            f"The mean reward of a prompt's replies rose for {rose:,} of {len(prompts):,} prompts, "
            f"fell for {fell:,} and stayed the same for {len(measures) - rose - fell:,}"
            + (f"; for {unmeasured:,} it is not known." if unmeasured else ".")
        )
        ends, chance = "where it rose and fell most", _CHANCE
    groups = f"the middle one of each {plain_name(key)}, " if key else ""
    return (
        f"{total} Shown are {ends}, a middle one, {groups}and one that could not be scored where "
        "there is one; of several replies the one whose reward is nearest to their mean."
        f"{chance}"
    )


# --- what is shown of them ----------------------------------------------------------------------


def _example(run: RunFiles, prompt: _Prompt, reasons: Sequence[str]) -> PromptExample:
    replies = {
        stage: _representative(replies, FAILED in reasons)
        for stage, replies in prompt.replies.items()
    }
    differing = differing_keys([_flat(reply) for reply in replies.values()])
    first = prompt.first
    question = first.metadata.get(QUESTION)
    named = isinstance(question, str) and question
    title = question if named else first.prompt_id or first.set_id
    return PromptExample(
        reason="; ".join(reasons),
        rewards=" \N{RIGHTWARDS ARROW} ".join(_reward(mean) for mean in prompt.means),
        title=printable(title, _TITLE_LIMIT),
        facts=_facts(first.metadata),
        replies=tuple(
            ShownReply(
                stage=run.title_of(stage),
                reward=_reward(reply.value),
                problem=printable(problem(reply)),
                reply=printable(reply.completion, _REPLY_LIMIT),
                lines=_lines(reply, differing),
                all_rewards=", ".join(_reward(r.value) for r in prompt.replies[stage])
                if len(prompt.replies[stage]) > 1
                else "",
            )
            for stage, reply in replies.items()
        ),
        prompt=printable(first.prompt, _PROMPT_LIMIT),
        address=address(run, first),
    )


def _facts(metadata: Json) -> str:
    """The short values of the metadata; long ones are in the prompt."""
    words = {key: in_words(v) for key, v in metadata.items() if isinstance(v, str | int | float)}
    parts = [
        f"{plain_name(key)} {value}"
        for key, value in words.items()
        if key != QUESTION and 0 < len(value) <= _LONGEST_FACT
    ]
    return ", ".join(parts[:_FIELDS_SHOWN])


def _representative(replies: Sequence[Reply], failed: bool) -> Reply:
    """The reply nearest to the mean reward; one that could not be scored where that is wanted."""
    broken = [reply for reply in replies if reply.error]
    mean = _mean(replies)
    if mean is None or (failed and broken):
        return (broken or list(replies))[0]
    distances = [(abs(reply.value - mean), reply) for reply in replies if reply.value is not None]
    return min(distances, key=lambda pair: round(pair[0], 9))[1]


def _reward(value: float | None) -> str:
    return MISSING if value is None else _describe(value)


def _lines(reply: Reply, differing: set[tuple[str, ...]]) -> tuple[Line, ...]:
    """Components and evidence, one line for each entry of the evidence."""
    lines: dict[str, list[Field]] = {}
    flat = list(_flat(reply).items())
    for path, words in flat[:_FIELDS_SHOWN]:
        name = " ".join(plain_name(part) for part in path[1:])
        lines.setdefault(path[0], []).append(Field(name, words, path in differing))
    if more := len(flat[_FIELDS_SHOWN:]):
        lines["not shown"] = [Field("", f"{more:,} more values", False)]
    return tuple(Line(plain_name(name), tuple(fields)) for name, fields in lines.items())


def _flat(reply: Reply) -> dict[tuple[str, ...], str]:
    """Path -> value in words of all that the environment said of a reply."""
    evidence = {k: v for k, v in reply.evidence.items() if k != UNPARSEABLE}
    return dict(_walk({"components": reply.components, **evidence}, ()))


def _walk(value: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, held in value.items():
        if isinstance(held, Mapping):
            yield from _walk(held, (*path, str(key)))
        else:
            yield (*path, str(key)), _describe(held)


def _describe(value: Any) -> str:
    """A JSON value in words; of a long list the first items."""
    if isinstance(value, list):
        items = [_describe(item) for item in value[:_ITEMS_SHOWN]]
        more = len(value) - len(items)
        return "; ".join([*items, *([f"{more:,} more"] if more else [])]) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{plain_name(key)} {_describe(held)}" for key, held in value.items())
    if isinstance(value, str):
        return printable(value, _VALUE_LIMIT) or MISSING
    if isinstance(value, float):
        return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", MINUS)
    return MISSING if value is None else in_words(value)
