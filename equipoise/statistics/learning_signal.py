"""Whether there is anything to learn from: GRPO compares the generations of one prompt.

Where all generations of a prompt score the same, their advantages are 0 and the prompt changes
nothing. A model that never writes what the environment can read has no other prompts.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from environments.base import UNPARSEABLE, Rollout, Score

#: Shares from which on training is doubtful, though not in vain.
MANY_TIED, _MANY_UNREADABLE = 0.9, 0.5
#: Rewards closer than this differ by rounding.
_TIED = 1e-9
_EXAMPLES, _EXAMPLE_CHARACTERS = 3, 160


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that occurs `count` times. `problem` is why it could not be read, if it was not."""

    text: str
    problem: str | None
    value: float | None
    count: int = 1

    def __str__(self) -> str:
        """Shorten it to one line."""
        line = " ".join(self.text.split())
        excerpt = line[:_EXAMPLE_CHARACTERS] + ("..." if len(line) > _EXAMPLE_CHARACTERS else "")
        score = "not scored" if self.value is None else f"score {self.value:g}"
        return f"{self.count:,}x, {self.problem or score}: {excerpt!r}"


@dataclass(frozen=True, slots=True)
class LearningSignal:
    """Rewards of the frozen model's replies, as training compares them.

    A group is the generations of one prompt. `tied` is the share of `groups` whose rewards are all
    the same, `spread` the mean over groups of the standard deviation of their rewards, `unreadable`
    the share of all replies that the environment could not read. Where each prompt has but one
    generation there are no `groups`, and all of them are compared with each other.
    """

    groups: int
    tied: float
    spread: float
    unreadable: float
    commonest: tuple[Reply, ...] = ()

    @property
    def none(self) -> bool:
        return self.tied == 1.0 and (self.groups > 0 or self.unreadable == 1.0)

    @property
    def little(self) -> bool:
        return self.tied >= MANY_TIED or self.unreadable >= _MANY_UNREADABLE

    def __str__(self) -> str:
        """One line for a reader."""
        tied = "all generations score the same"
        where = f"in {_percent(self.tied)} of {self.groups:,} prompts {tied}, and within one"
        if not self.groups:
            where = f"{'' if self.tied else 'not '}{tied}, one for each prompt, and"
        return (
            f"{where} rewards spread by {self.spread:.3g}; "
            f"{_percent(self.unreadable)} of the replies could not be read"
        )


def learning_signal(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> LearningSignal:
    """Measure it on scored rollouts."""
    groups: dict[str, list[float]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.value is not None:
            groups.setdefault(rollout.prompt_id, []).append(score.value)
    several = [values for values in groups.values() if len(values) > 1]
    compared = several or [[value for values in groups.values() for value in values]]
    unreadable = [UNPARSEABLE in score.evidence for score in scores]
    return LearningSignal(
        groups=len(several),
        tied=fmean(not values or max(values) - min(values) <= _TIED for values in compared),
        spread=fmean(pstdev(values) if values else 0.0 for values in compared),
        unreadable=fmean(unreadable),
        commonest=_commonest(rollouts, scores, broken=any(unreadable)),
    )


def _commonest(
    rollouts: Sequence[Rollout], scores: Sequence[Score], *, broken: bool
) -> tuple[Reply, ...]:
    """The commonest replies, of those that could not be read where there are any."""
    replies = Counter(
        Reply(rollout.completion, score.evidence.get(UNPARSEABLE), score.value)
        for rollout, score in zip(rollouts, scores, strict=True)
        if not broken or UNPARSEABLE in score.evidence
    )
    return tuple(
        Reply(reply.text, reply.problem, reply.value, count)
        for reply, count in replies.most_common(_EXAMPLES)
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 1 else f"{share:.0%}"
