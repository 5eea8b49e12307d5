"""Ways through the invented questions that need no training: the attacks of docs/rag.md.

    uv run docs/experiments/rag_ways.py --seeds 101 102

For each seed the corpus is built and the shipped number of questions made; every way answers those
of the test split. `the register's words` is what training has to come to. Recall, and the share of
replies that name an option, are means over the seeds.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import data_prep.rag.invented as stones
from data_prep import rag
from data_prep.contract import Tools
from data_prep.rag.prompts import canned_rollout
from environments.base import TEST_SPLIT, Rollout
from environments.rag import RagEnvironment, RagSettings

_QUESTIONS = 800  # equipoise.data.num_samples of tasks/rag.local.yaml
#: What is shown as a mean over the seeds, beside the accuracy of each.
_MEANS = {"retrieval_recall": "recall", "answer_in_query": "answer in a query"}


Figures = Mapping[str, float]


def ways(rollouts: Sequence[Rollout], environment: RagEnvironment, seed: int) -> dict[str, Figures]:
    """Name of a way -> its metrics."""
    right = [r.metadata["options"][r.metadata["gold"]] for r in rollouts]
    asked = [(stones.Kind(*r.metadata["stone"]), r.metadata["asked"][0]) for r in rollouts]
    rng = np.random.default_rng(seed)
    colours, shapes, roles = (
        _shuffled(words, rng) for words in (stones.COLOURS, stones.SHAPES, stones.ROLES)
    )
    replies = {
        "the register's words": [stones.reply(kind, role, "register") for kind, role in asked],
        "the same, nobody asked for": [
            stones.reply(kind, stones.SOMEONE, "register") for kind, _ in asked
        ],
        "a random map": [
            stones.reply(
                stones.Kind(colours[kind.colour], shapes[kind.shape]), roles[role], "register"
            )
            for kind, role in asked
        ],
        "everyday words": [stones.reply(kind, role, "everyday") for kind, role in asked],
        "the right name, known by heart": list(map(stones.naming_reply, right)),
        **environment.trivial_replies(rollouts, seed),
    }
    for reply in environment.constant_replies():
        replies[f"`{reply.splitlines()[0]} ...`"] = [reply] * len(rollouts)
    modes = environment.modes(rollouts).measured
    return {
        **{name: _figures(environment, rollouts, texts) for name, texts in replies.items()},
        **{name: mode.point_estimates() for name, mode in modes.items()},
    }


def _shuffled(words: Sequence[str] | dict[str, str], rng: np.random.Generator) -> dict[str, str]:
    """Every everyday word -> another one, drawn."""
    return dict(zip(words, map(str, rng.permutation(list(words))), strict=True))


def _figures(
    environment: RagEnvironment, rollouts: Sequence[Rollout], replies: Sequence[str]
) -> Figures:
    replaced = [replace(r, completion=text) for r, text in zip(rollouts, replies, strict=True)]
    return environment.measure(replaced, environment.score(replaced)).point_estimates()


def _of_seed(seed: int, say: Callable[[str], None]) -> dict[str, Figures]:
    with tempfile.TemporaryDirectory() as folder:
        settings = rag.PromptSettings(num_samples=_QUESTIONS, seed=seed, index=f"{folder}/index")
        rag.prepare(settings, Tools(_no_model, _no_model, say))
        records = [r for r in rag.build_prompts(settings) if r.split == TEST_SPLIT]
        environment = RagEnvironment(RagSettings(index=Path(settings.index)))
        return ways([canned_rollout(record) for record in records], environment, seed)


def _no_model(_: object) -> None:
    raise ValueError("no model is needed here")


def main() -> None:
    """Print the table, a column for each seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    seeds = parser.parse_args().seeds
    columns = [_of_seed(seed, lambda _: None) for seed in seeds]
    titles = [*map(str, seeds), *_MEANS.values()]
    print(f"| way | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}")
    for name in columns[0]:
        figures = [column[name]["accuracy"] for column in columns]
        figures += [sum(column[name][key] for column in columns) / len(columns) for key in _MEANS]
        cells = ["-" if math.isnan(figure) else f"{figure:.3f}" for figure in figures]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
