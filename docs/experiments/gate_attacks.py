"""Gate attackers against a trained model: on the prompts that they know, and on another seed's.

    uv run docs/experiments/gate_attacks.py RUN OTHER

Both are finished runs of one task with other seeds. BEFORE is the trained model of each; AFTER is
an attacker. The tuned one has a table of the trained model's replies to RUN's prompts and declines
any other prompt; those below it have no skill. No model is asked.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path

from equipoise.evaluate.entries import read_stage
from equipoise.statistics.gate import Replies, Watched, gate, verdict_of
from equipoise.statistics.trivial import DECLINING, commonest, exchange, first_of_each

REPLIES = 8  # of a prompt, at most
HEAD = ("before", "after", "its prompts", "another seed's", "its prompts", "another seed's")


class Items:
    """A run's test prompts, the trained model's replies to them, and what scores replies."""

    def __init__(self, run: Path) -> None:
        stage = read_stage(run)
        self.watched = Watched(stage.environment(), {})
        rollouts = list(first_of_each(stage.rollouts, REPLIES))
        self.trained: Replies = (rollouts, self.watched.environment.score(rollouts))

    def replied(self, replies: Sequence[str]) -> Replies:
        """Other replies in place of the trained model's."""
        pairs = zip(self.trained[0], replies, strict=True)
        rollouts = [replace(rollout, completion=reply) for rollout, reply in pairs]
        return rollouts, self.watched.environment.score(rollouts)

    def attackers(self, table: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Replies]]:
        """Each attacker's replies here; `table` has prompt -> replies."""
        rollouts = self.trained[0]
        turns = {prompt: cycle(replies) for prompt, replies in table.items()}
        declining = repeat(DECLINING[0])
        (common,) = commonest((rollout.completion for rollout in rollouts), 1)
        yield "tuned", self.replied([next(turns.get(r.prompt, declining)) for r in rollouts])
        yield "the commonest reply", self.replied([common] * len(rollouts))
        yield "declining", self.replied([DECLINING[0]] * len(rollouts))
        yield "copying the prompt", self.replied([r.prompt for r in rollouts])
        yield "replies to other prompts", self.replied([r.completion for r in exchange(rollouts)])

    def judge(self, before: Replies, after: Replies) -> tuple[str, str]:
        """The verdict, and whether the replies are shown to go by their prompts."""
        metrics = self.watched.compare(before, after)
        decided = gate({("", name): metric for name, metric in metrics.items()})
        reads = self.watched.beside_exchanged(after[0]).verdict == "better"
        return verdict_of(decided.values()), "yes" if reads else "not shown"


def rows(known: Items, other: Items) -> Iterator[Sequence[str]]:
    """An attacker against the trained model, and against one that reads no prompt."""
    table: dict[str, list[str]] = {}
    for rollout in known.trained[0]:
        table.setdefault(rollout.prompt, []).append(rollout.completion)
    for (name, here), (_, there) in zip(
        known.attackers(table), other.attackers(table), strict=True
    ):
        pairs = known.judge(known.trained, here), other.judge(other.trained, there)
        yield ("trained", name, *(p[0] for p in pairs), *(p[1] for p in pairs))
    pairs = [items.judge(*[dict(items.attackers({}))["declining"]] * 2) for items in (known, other)]
    yield ("declining", "declining", *(p[0] for p in pairs), *(p[1] for p in pairs))


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    options = parser.parse_args()
    known, other = Items(options.run), Items(options.other)
    shared = {r.prompt for r in known.trained[0]} & {r.prompt for r in other.trained[0]}
    print(f"{len(shared)} prompts of {len({r.prompt for r in known.trained[0]})} are in both\n")
    for cells in (HEAD, ["---"] * len(HEAD), *rows(known, other)):
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
