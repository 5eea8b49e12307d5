"""Examples of a cold start: prompts with replies to imitate, none that a run evaluates on."""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from data_prep.contract import DataModule
from data_prep.text_files import DataError, UnsuitablePromptsError, json_lines, read_source
from data_prep.warm_start import Example
from environments.base import TRAIN_SPLIT, Message, PromptRecord
from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import read_rollouts
from equipoise.run.seals import COPY, check_part

_KIND = "file of replies to imitate"
_OWN_REPLIES = "Name a file of them with equipoise.cold_start.replies=FILE, see docs/cold-start.md."


class _Turn(BaseModel, extra="forbid"):
    role: Literal["system", "user", "assistant"]
    content: str


class _Row(BaseModel, extra="forbid"):
    """A line of the file; the names are those of TRL's data sets."""

    prompt: tuple[_Turn, ...] = Field(min_length=1)
    completion: str = Field(min_length=1)


def find_examples(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> list[Example]:
    """As many as the configuration asks for: those of the file, again and again, or the task's own.

    Of a run they are the replies of its frozen model. Raises `EquipoiseError`.
    """
    settings = loaded.config.equipoise.cold_start
    if settings.replies is None:
        return _imitated(loaded, records)
    source = Path(settings.replies)
    rows = _dealt(loaded, RunDirectory(source)) if source.is_dir() else _read(source)
    # Under any system message.
    held_out = {r.messages[-1]["content"] for r in records if r.split != TRAIN_SPLIT}
    questions = [example.messages[-1]["content"] for example in rows]
    if leaks := [question for question in questions if question in held_out]:
        raise EquipoiseError(
            "cold-start.held-out-prompts",
            f"{len(leaks)} of the replies are to prompts of an evaluation split: {leaks[0][:80]!r}",
            "Take replies to training prompts alone (split `train` in a run's prompts.jsonl).",
        )
    return list(islice(cycle(rows), settings.examples))


def _dealt(loaded: LoadedConfig, run: RunDirectory) -> list[Example]:
    """A run's reference as its environment deals it out to the run's own training prompts."""
    config = loaded.config
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    if not environment.offers(Environment.dealt_replies):
        raise UsageError(
            "cold-start.no-deal",
            f"the task {config.equipoise.task} deals out no replies of a run",
            _OWN_REPLIES,
        )
    check_part(run.reference, otherwise=COPY)
    train = [record for record in read_records(run.prompts) if record.split == TRAIN_SPLIT]
    passes = -(-config.equipoise.cold_start.examples // max(1, len(train)))
    reference = read_rollouts(run.reference)
    dealt = environment.dealt_replies(train, reference, passes, config.grpo.seed)
    if not dealt:
        raise UsageError(
            "cold-start.no-readable-set",
            f"{run.reference}: of no set can every reply be read, so there is none to imitate",
            _OWN_REPLIES,
        )
    return [Example(reply.record.messages, reply.completion) for reply in dealt]


def _imitated(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> list[Example]:
    """Fresh ones of the data module, which keeps the evaluation's prompts out of them."""
    module, config = loaded.data_module, loaded.config
    if not module.offers(DataModule.imitated_replies) or loaded.local_model_settings is None:
        raise UsageError(
            "cold-start.no-replies",
            f"the task {config.equipoise.task} has no replies to show",
            _OWN_REPLIES,
        )
    count = {"steps": config.equipoise.cold_start.examples, "batch_size": 1}
    settings = loaded.local_model_settings.model_copy(update=count | {"seed": config.grpo.seed})
    try:
        pairs = module.imitated_replies(records, settings)
    except UnsuitablePromptsError as error:
        raise UsageError(error.code, str(error), _OWN_REPLIES) from error
    return [Example(tuple(record.messages), reply) for record, reply in pairs]


def _read(path: Path) -> list[Example]:
    faults: list[str] = []
    try:
        rows = list(_rows(read_source(path, _KIND), faults))
        if faults or not rows:
            raise DataError("cold-start.invalid-replies", path, _KIND, faults or ["it has no line"])
    except DataError as error:
        raise EquipoiseError(
            error.code,
            str(error),
            'Each line is {"prompt": [{"role": …, "content": …}], "completion": "…"}.',
        ) from error
    return rows


def _rows(text: str, faults: list[str]) -> Iterator[Example]:
    for number, value in json_lines(text, faults):
        try:
            row = _Row.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(map(str, first["loc"])) or "the line"
            faults.append(f"line {number}: {location}: {first['msg']}")
        else:
            prompt = tuple(Message(role=t.role, content=t.content) for t in row.prompt)
            yield Example(prompt, row.completion)
