"""Every task's objective: no policy without skill is better by it than who knows the answer.

The task's own invented prompts, its shipped reward, and nothing that a model wrote. Fairness, whose
oracle is a distribution, has its own in tests/environments/disparity/test_objective.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from data_prep.rag import invented as stones
from environments.base import (
    Environment,
    HasObjective,
    HasTrivialPolicies,
    PromptRecord,
    Rollout,
    ShowsExamples,
    objective_of,
)
from environments.choice import ChoiceEnvironment, ChoiceSettings
from equipoise.config import load_config, parse_flags
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.evaluation.trivial import DECLINING, Measured, copying
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.stages.preparation import prepare_task

PROMPTS = 120
TASKS = ("choice", "dharma", "pubmedqa", "rag")


@dataclass(frozen=True)
class Task:
    """Prompts, what gives reward for replies to them, and the replies of who knows the answers."""

    environment: Environment
    records: Sequence[PromptRecord]
    right: Sequence[str]

    def replied(self, replies: Sequence[str]) -> list[Rollout]:
        pairs = zip(self.records, replies, strict=True)
        return [Rollout(r.id, r.set_id, r.split, "", text, r.metadata) for r, text in pairs]

    def worth(self, replies: Sequence[str]) -> float:
        rollouts = self.replied(replies)
        measured = Measured.of(self.environment, rollouts, self.environment.score(rollouts))
        return measured.worth(objective_of(self.environment))


def of_local_scale(name: str, cache: Path) -> Task:
    """Prompts of the test split, with the reply that the task would show as a good one."""
    words = ["--config", str(CONFIG_FOLDER / "local.yaml"), f"equipoise.cache_dir={cache}"]
    loaded = load_config(name, parse_flags("x", words))
    prepare_task(loaded, lambda _: None)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    provide_models(environment, str(cache))
    assert isinstance(environment, ShowsExamples)
    right = searched_by_the_learned if name == "rag" else environment.example_reply
    records = [
        r for r in loaded.data_module.build_prompts(loaded.prompt_settings) if r.split == "test"
    ]
    order = np.random.default_rng(0).permutation(len(records))[:PROMPTS]
    known = [(records[n], reply) for n in order if (reply := right(records[n])) is not None]
    assert len(known) > PROMPTS / 2
    return Task(environment, [record for record, _ in known], [reply for _, reply in known])


def searched_by_the_learned(record: PromptRecord) -> str:
    """A good example copies the plan; only the register's words find the entry."""
    kind = stones.Kind(*record.metadata["stone"])
    return stones.reply(kind, record.metadata["asked"][0], "register")


def choices() -> Task:
    """Questions with four options, each right as often as another."""
    rng = np.random.default_rng(0)
    labels = ["A", "B", "C", "D"]
    records = []
    for n in range(PROMPTS):
        gold = labels[int(rng.integers(len(labels)))]
        options = [f"drug {n}-{label}" for label in labels]
        metadata = {"labels": labels, "options": options, "gold": gold, "variant": "plain"}
        message = {"role": "user", "content": f"Which one? Options: {', '.join(options)}."}
        records.append(PromptRecord(f"q{n}", "choice", (message,), f"q{n}", "test", metadata))
    right = [f"Answer: {record.metadata['gold']}" for record in records]
    return Task(ChoiceEnvironment(ChoiceSettings()), records, right)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Task]:
    made: dict[str, Task] = {}

    def task(name: str) -> Task:
        if name not in made:
            cache = tmp_path_factory.mktemp(name)
            made[name] = choices() if name == "choice" else of_local_scale(name, cache)
        return made[name]

    return task


def without_skill(task: Task) -> Mapping[str, Sequence[str]]:
    """The policies of the probe, and one that replies with what is right for another prompt."""
    environment, number = task.environment, len(task.records)
    constants = {reply: [reply] * number for reply in (*DECLINING, *task.right[:3])}
    copies = {
        name: [replies[record.id] for record in task.records]
        for name, replies in copying(task.records).items()
    }
    shuffled = np.random.default_rng(1).permutation(number)
    others = {"another prompt's": [task.right[n] for n in shuffled]}
    own: Mapping[str, Sequence[str]] = {}
    if isinstance(environment, HasTrivialPolicies):
        constants |= {reply: [reply] * number for reply in environment.constant_replies()}
        own = environment.trivial_replies(task.replied(others["another prompt's"]), 0)
    return {**constants, **copies, **others, **own}


@pytest.mark.deep
@pytest.mark.parametrize("name", TASKS)
def test_no_policy_without_skill_is_better_than_who_knows_the_answer(
    name: str, tasks: Callable[[str], Task]
) -> None:
    task = tasks(name)
    oracle = task.worth(task.right)
    worths = {policy: task.worth(replies) for policy, replies in without_skill(task).items()}
    assert len(worths) >= 8
    assert {policy: worth for policy, worth in worths.items() if worth >= oracle} == {}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_each_of_its_own_policies_does(
    name: str, tasks: Callable[[str], Task]
) -> None:
    task = tasks(name)
    if not isinstance(task.environment, HasTrivialPolicies):
        return
    words = task.environment.presentation.words
    policies = task.environment.trivial_replies(task.replied(task.right), 0)
    assert policies and [policy for policy in policies if not words[policy].note] == []


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_its_objective_is(name: str, tasks: Callable[[str], Task]) -> None:
    assert isinstance(tasks(name).environment, HasObjective)
