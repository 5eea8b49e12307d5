"""The small model of a mixture, which imitates what the local models of its tasks imitate."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from data_prep.mixture.prompts import data_module
from data_prep.text_files import UnsuitablePromptsError
from data_prep.warm_start import Example, WarmStart
from environments.base import PromptRecord

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate, by "
    "the prompt, what the local models of the mixed tasks imitate: an invented person each, with a "
    "fault that was written down beforehand. It exists to show and to test the pipeline on a "
    "machine without a GPU, and says nothing of any clinical model."
)


#: A clause ends before a space that follows one of these signs, or before a new line.
_CLAUSE_END = re.compile(r"(?<=[.:,])(?= )|(?=\n)")
#: Clauses that are one token each, of every task whose own local model has such tokens, at most.
_CLAUSES = 400


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates the replies of all tasks."""

    modules: Mapping[str, str] = Field(
        default_factory=dict, description="data modules by task, whose replies it imitates"
    )
    vocab_size: int = Field(4096, ge=300)  # with 2048 dharma's words were spelt, and misspelt
    phrases: bool = False
    layers: int = Field(3, ge=1)
    # From 0.1 one seed in four gives a model that does not read some of dharma's prompts.
    initializer_range: float = Field(0.05, gt=0, le=1)
    steps: int = Field(3400, ge=1)
    learning_rate: float = Field(5e-3, gt=0, lt=1)


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of a model that imitates the replies of every task, with tokens that suit each.

    A task whose own tokens may span words has its clauses as tokens, the others read words.
    """
    from data_prep.tiny_model import warm_start  # imports torch

    replies = imitated_replies(records, settings)
    form = list(settings.form)
    for task in sorted({record.task for record in records}):
        task_settings = _settings_of(task, settings)
        form += task_settings.form
        if task_settings.phrases:
            form += clauses([pair for pair in replies if pair[0].task == task])
    examples = [Example(record.messages, reply) for record, reply in replies]
    complete = settings.model_copy(update={"form": tuple(dict.fromkeys(form))})
    return warm_start(examples, complete, cache)


def clauses(replies: Sequence[tuple[PromptRecord, str]]) -> list[str]:
    """The commonest clauses of prompts and replies that end in a sign, so that no word is cut."""
    texts = (text for record, reply in replies for text in (record.messages[-1]["content"], reply))
    counts = Counter(part for text in texts for part in _CLAUSE_END.split(text))
    return [part for part, _ in counts.most_common(_CLAUSES) if part.endswith((".", ":", ","))]


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The replies of every task's own warm start, shuffled.

    Each task has a share as large as its own warm start is among them. Raises
    `UnsuitablePromptsError` where a task knows no reply to its prompts, or has no local model.
    """
    tasks = sorted({record.task for record in records})
    own_settings = {task: _settings_of(task, settings) for task in tasks}
    total = sum(task_settings.steps for task_settings in own_settings.values())
    number = settings.steps * settings.batch_size
    examples: list[tuple[PromptRecord, str]] = []
    for task, task_settings in own_settings.items():
        share = -(-number * task_settings.steps // total)
        steps = -(-share // settings.batch_size)
        mine = [record for record in records if record.task == task]
        made = data_module(settings.modules[task]).imitated_replies(
            mine, task_settings.model_copy(update={"steps": steps})
        )
        examples += made[:share]
    order = np.random.default_rng(settings.seed).permutation(len(examples))[:number]
    return [examples[n] for n in order]


def _settings_of(task: str, settings: LocalModelSettings) -> WarmStart:
    """The warm start of a task, in batches and with the seed of the mixture."""
    name = settings.modules.get(task)
    kind = data_module(name).LocalModelSettings if name else None
    if kind is None or not issubclass(kind, WarmStart):
        raise UnsuitablePromptsError(
            "local-model.no-module",
            f"the task {task} has no local model: name its data module in "
            f"equipoise.local_model.modules.{task}",
        )
    return kind.model_validate({"batch_size": settings.batch_size, "seed": settings.seed})
