"""Every task's objective: no trivial baseline is better by it than who knows the answer.

The task's own invented prompts, its shipped reward, and nothing that a model wrote. Fairness, whose
oracle is a distribution, has its own in tests/environments/fairness/test_objective.py.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from environments.contract import Environment
from equipoise.statistics.trivial import REFUSALS, copy_prompt, copy_prompt_end
from tests.equipoise.statistics.known_answers import Task, of_local_scale

TASKS = ("dharma", "pubmedqa", "rag")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return cache(lambda name: of_local_scale(name, tmp_path_factory.mktemp(name)))


def trivial_replies(task: Task) -> Mapping[str, Sequence[str]]:
    """The policies of the probe, and one that replies with what is right for another prompt."""
    environment, number = task.environment, len(task.records)
    constants = {reply: [reply] * number for reply in (*REFUSALS, *task.right[:3])}
    copies = {
        copy.__name__: [copy(task.records)[record.id] for record in task.records]
        for copy in (copy_prompt, copy_prompt_end)
    }
    shuffled = np.random.default_rng(1).permutation(number)
    others = {"another prompt's": [task.right[n] for n in shuffled]}
    constants |= {reply: [reply] * number for reply in environment.constant_replies()}
    own = environment.trivial_replies(task.replied(others["another prompt's"]), 0)
    return {**constants, **copies, **others, **own}


@pytest.mark.deep
@pytest.mark.parametrize("name", TASKS)
def test_no_trivial_baseline_is_better_than_who_knows_the_answer(name, tasks):
    task = tasks(name)
    oracle = task.worth(task.right)
    worths = {policy: task.worth(replies) for policy, replies in trivial_replies(task).items()}
    assert len(worths) >= 8
    assert {policy: worth for policy, worth in worths.items() if worth >= oracle} == {}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_each_of_its_own_policies_does(name, tasks):
    task = tasks(name)
    if not task.environment.offers(Environment.trivial_replies):
        return
    words = task.environment.presentation.words
    policies = task.environment.trivial_replies(task.replied(task.right), 0)
    assert policies and [policy for policy in policies if not words[policy].note] == []
