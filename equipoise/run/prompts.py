"""The prompts of a run: what they need is made, they are made or read from a file, and checked.

Preparation and check of a task are methods of its data module, see data_prep/contract.py.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

from data_prep.contract import DataModule, Tools
from data_prep.records import (
    content_hash,
    read_prompts,
)
from data_prep.text_files import DataError
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.chat import BudgetSpentError
from environments.errors import code_of
from equipoise.config import LoadedConfig, check_prompts, control_token_problems
from equipoise.config.dry_run import Row
from equipoise.config.task_code import set_size
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.models.hub import clear_errors, offline
from equipoise.models.task_environment import load_chat_model, load_encoder, make_environment
from equipoise.run.directory import NewRun, RunDirectory

#: Of a run that stops because the requests that its models may be sent are used up.
BUDGET_REMEDY = "Continue with --resume, which grants the budget anew, or raise it before."
_TASK_REMEDY = "Change equipoise.data or env in the configuration."


def prepare_task(
    loaded: LoadedConfig, say: Callable[[str], None], *, dry_run: bool = False, ask: bool = False
) -> None:
    """Let the task make what its prompts and its environment need. Raises `EquipoiseError`.

    A dry run makes nothing; with `ask` each of its models is asked one question.
    """
    cache = loaded.config.equipoise.cache_dir
    tools = Tools(lambda name: load_chat_model(name, cache), load_encoder, say, dry_run, ask)
    try:
        # A dry run fetches nothing; with `ask` a model may be, to be asked.
        with clear_errors(), offline() if dry_run and not ask else nullcontext():
            loaded.data_module.prepare(loaded.prompt_settings, tools)
    except ValueError as error:
        raise EquipoiseError(
            code_of(error, "prompts.unprepared-task"), str(error), _TASK_REMEDY
        ) from error
    except BudgetSpentError as error:  # what was made so far is kept
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


def check_task(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> list[Row]:
    """Return what the task finds in one check of its parts, for `--dry-run`."""
    module = loaded.data_module
    if not module.offers(DataModule.check):
        return []
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    try:
        return [Row(*row) for row in module.check(loaded.prompt_settings, records, environment)]
    except ValueError as error:
        raise EquipoiseError(
            code_of(error, "prompts.unsuitable-task"), str(error), _TASK_REMEDY
        ) from error


def find_prompts(loaded: LoadedConfig, run: RunDirectory | NewRun) -> Sequence[PromptRecord]:
    """Those that the run holds; a new one's are made, and refused when they cannot be used."""
    return make_prompts(loaded) if isinstance(run, NewRun) else read_records(run.prompts)


def record_prompts(run: RunDirectory) -> list[PromptRecord]:
    """The run's prompts as its file holds them; the provenance has their hash."""
    records = read_records(run.prompts)
    run.ledger.record({"prompts": content_hash(records)})
    return records


def make_prompts(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """From `equipoise.data.data_path` where it is set, else from the task's data module.

    Raises `EquipoiseError` with every reason why they cannot be trained on. Without `to_train`
    there may be none to train on, and an environment that sees no sets may be given sets of any
    size.
    """
    path = loaded.config.equipoise.data.data_path
    settings = loaded.prompt_settings
    if to_train and not path and settings.no_training:
        raise UsageError("prompts.no-training", settings.no_training, "Nothing was started.")
    records = read_records(Path(path)) if path else _build(loaded)
    size = set_size(loaded.environment_class, loaded.env_settings)
    problems = check_prompts(records, size if to_train or size > 1 else None, to_train=to_train)
    problems += loaded.data_module.prompt_problems(records)
    problems += loaded.env_settings.prompt_problems(records)
    if problems:
        raise EquipoiseError(
            "prompts.unusable",
            "\n".join(["the prompts cannot be used:", *problems]),
            "Correct the file, or let equipoise.data.module make the prompts.",
        )
    return records


def check_steps(loaded: LoadedConfig, records: Sequence[PromptRecord]) -> None:
    """Raise `UsageError` where a step takes more prompts than there are, or a stage has none."""
    split = loaded.config.equipoise.evaluation.split
    splits = Counter(record.split for record in records)
    if split not in splits:  # the baseline would have no reply, which shows when a model is loaded
        found = ", ".join(f"{count:,} {name}" for name, count in splits.items())
        raise UsageError(
            "prompts.no-evaluation-split",
            f"no prompt is of the split {split}, on which a run is evaluated; there are {found}",
            "Name one of these splits in equipoise.evaluation.split, or correct the prompts' own.",
        )
    available = splits[TRAIN_SPLIT]
    prompts = loaded.config.grpo.num_prompts_per_step
    if prompts > available:
        size = set_size(loaded.environment_class, loaded.env_settings)
        raise UsageError(
            "prompts.too-few",
            f"grpo.num_prompts_per_step is {prompts}, and there are {available} prompts to train "
            "on",
            f"Lower it with --batch-size {available - available % size}, or make more prompts with "
            "--num-samples where there are more.",
        )


def prompts_here(loaded: LoadedConfig, *, to_train: bool = True) -> Sequence[PromptRecord]:
    """`make_prompts` for a dry run: of what is on this machine, for nothing is fetched."""
    with offline():
        try:
            return make_prompts(loaded, to_train=to_train)
        except UsageError as error:
            remedy = f"{error.remedy} A dry run fetches nothing."
            raise UsageError(error.code, error.message, remedy) from error


def refuse_control_tokens(records: Sequence[PromptRecord], tokens: Collection[str]) -> None:
    """Raise `EquipoiseError` for prompts that hold special tokens of the model's tokenizer."""
    if problems := control_token_problems(records, tokens):
        raise EquipoiseError(
            "prompts.control-tokens",
            "\n".join(["the prompts cannot be used with this model:", *problems]),
            "Correct the file of the prompts and start a new run.",
        )


def read_records(path: Path) -> list[PromptRecord]:
    """Read prompts.jsonl; a corrupt record is the user's error, with its line number."""
    try:
        return read_prompts(path)
    except DataError as error:
        raise EquipoiseError(
            error.code,
            str(error),
            f"A file that was made or changed by hand is checked and sealed by "
            f"`uv run equipoise seal {path}`.",
        ) from error


def _build(loaded: LoadedConfig) -> list[PromptRecord]:
    try:
        return loaded.data_module.build_prompts(loaded.prompt_settings)
    except ValueError as error:
        raise UsageError(
            code_of(error, "prompts.failed-build"),
            str(error),
            "Change equipoise.data in the configuration.",
        ) from error
