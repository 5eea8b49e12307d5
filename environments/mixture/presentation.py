"""The words of a mixture: those of its tasks, each with the name of its task before it."""

from collections.abc import Mapping

from environments.base import REWARD
from environments.contract import Environment
from environments.presentation import Presentation, Words


def presentation_of(tasks: Mapping[str, Environment], mean: str) -> Presentation:
    """The words of all tasks; examples are chosen from each of them."""
    words = {
        mean: Words(
            "mean objective",
            "mean over the tasks of their objectives, each in its margins; more is better",
        )
    }
    for name, task in tasks.items():
        task_words = {REWARD: Words("reward", "before it is scaled"), **task.presentation.words}
        words |= {
            f"{name}.{key}": Words(f"{name}: {entry.label}", entry.note)
            for key, entry in task_words.items()
        }
    return Presentation(title="A mixture of tasks", words=words, one_of_each="task")
