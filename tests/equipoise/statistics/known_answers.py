"""Prompts of the tasks, what gives reward for replies, and the replies of who knows the answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import data_prep.rag.invented as stones
from environments.base import PromptRecord, Rollout
from environments.contract import Environment
from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags
from equipoise.run.task import make_environment, prepare_task, provide_models
from equipoise.statistics.trivial import Measured

PROMPTS = 120


@dataclass(frozen=True)
class Task:
    """Prompts, what gives reward for replies to them, and the replies of who knows the answers."""

    environment: Environment
    records: Sequence[PromptRecord]
    right: Sequence[str]

    def replied(self, replies):
        pairs = zip(self.records, replies, strict=True)
        return [Rollout(r.id, r.set_id, r.split, "", text, r.metadata) for r, text in pairs]

    def worth(self, replies):
        rollouts = self.replied(replies)
        measured = Measured.of(self.environment, rollouts, self.environment.score(rollouts))
        return measured.worth(self.environment.objective)


def of_local_scale(name, cache, prompts=PROMPTS, seed=42):
    """Prompts of the test split, with the reply that the task would show as a good one."""
    words = ["--config", str(CONFIG_FOLDER / "local.yaml"), f"equipoise.cache_dir={cache}"]
    words.append(f"--seed={seed}")
    loaded = load_config(name, parse_flags("x", words))
    prepare_task(loaded, lambda _: None)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    provide_models(environment, str(cache))
    assert environment.offers(Environment.example_reply)
    right = searched_by_the_learned if name == "rag" else environment.example_reply
    records = [
        r for r in loaded.data_module.build_prompts(loaded.prompt_settings) if r.split == "test"
    ]
    order = np.random.default_rng(0).permutation(len(records))[:prompts]
    known = [(records[n], reply) for n in order if (reply := right(records[n])) is not None]
    assert len(known) > len(order) / 2
    return Task(environment, [record for record, _ in known], [reply for _, reply in known])


def searched_by_the_learned(record):
    """A good example copies the plan; only the register's words find the entry."""
    kind = stones.Kind(*record.metadata["stone"])
    return stones.reply(kind, record.metadata["asked"][0], "register")
