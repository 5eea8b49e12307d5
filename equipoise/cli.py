"""The command line that every training recipe shares."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from dotenv import load_dotenv

from data_prep.files import DamagedFileError, write_text
from environments.base import PromptRecord
from environments.chat import CountsCalls
from equipoise.config import (
    LOCAL_MODEL,
    LoadedConfig,
    Options,
    ignored_by_local,
    load_config,
    parse_flags,
    refuse_missing_engine,
)
from equipoise.config.dry_run import Row, dry_run_rows
from equipoise.config.task_code import set_size
from equipoise.config.workload import total_generations, workload_of
from equipoise.engines.nemo_rl.launch import complete_packages, hand_over
from equipoise.engines.nemo_rl.rehearsal.shrink import rehearsal_config
from equipoise.errors import EquipoiseError
from equipoise.installation.environment import is_launched
from equipoise.models.task_environment import hand_in_models, make_environment
from equipoise.run.directory import (
    NewRun,
    RunDirectory,
    model_label,
    open_run_directory,
    usable_folder,
)
from equipoise.run.log import kept_log
from equipoise.run.ownership import owning
from equipoise.run.provenance import read_provenance
from equipoise.run.resume import Resumption, check_resume, keep_changes
from equipoise.stages.job import check_environment
from equipoise.stages.preparation import check_task, prepare_task
from equipoise.stages.prompts import make_prompts
from equipoise.terminal.console import Reporter, guard_terminal
from equipoise.terminal.interrupts import Stopped, raising
from equipoise.terminal.layout import Column

EXIT_STOPPED = 130
_DISK_REMEDIES = {
    errno.ENOSPC: "Free some space, then continue with --resume.",
    errno.EDQUOT: "Your quota is used up: free some space, then continue with --resume.",
    errno.EACCES: "Choose a folder that you may write to with --output-dir.",
    errno.EPERM: "Choose a folder that you may write to with --output-dir.",
    errno.EROFS: "The file system is read-only: choose another folder with --output-dir.",
}
_MEMORY_REMEDY = (
    "Lower policy.train_micro_batch_size and equipoise.evaluation.batch_size, shorten "
    "policy.generation.max_new_tokens, train a LoRA with --lora-rank, or take a smaller model."
)


def main(task: str, description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Run a recipe and leave with its exit code: 0, 1 for a failure, 2 for wrong usage."""
    options = parse_flags(description or task, arguments)
    sys.exit(guarded(lambda reporter: run(task, options, reporter)))


def run(task: str, options: Options, reporter: Reporter) -> None:
    """Validate everything, then show what would run, or run it."""
    load_dotenv(Path.cwd() / ".env")
    complete_packages(reporter)
    loaded = load_config(task, options)
    label = model_label(loaded.config.policy.model_name)
    rehearse = options.rehearse or is_rehearsal(options)
    if rehearse and not options.resume:
        loaded, label = rehearsal_config(task, options, loaded), f"{label}-rehearsal"
    found = check_resume(task, options, loaded) if options.resume else None
    usable_folder(Path(loaded.config.equipoise.cache_dir).expanduser(), "equipoise.cache_dir=DIR")
    if options.dry_run:
        announce(loaded, reporter)
        dry_run(loaded, label, reporter, ask=options.ask)
        return
    if options.planner_only:
        announce(loaded, reporter)
        if not hasattr(loaded.data_module, "prepare"):
            reporter.warn(f"--planner-only does nothing here: {task} needs no index and no plans")
        prepare_task(loaded, reporter.say)
        return
    directory = run_directory(loaded, options, label)
    prepare_torch(loaded.config.equipoise.threads)
    with kept_log(reporter) as keep_log_in:
        reach_engine(loaded, reporter, rehearse=rehearse)
        announce(loaded, reporter)
        with resumed(found, reporter) if found else nullcontext():
            # torch and transformers take seconds to import; a mistake should not wait for them.
            from equipoise.pipeline import run_pipeline

            run_pipeline(loaded, directory, reporter, keep_log_in, rehearse=rehearse)


@contextmanager
def resumed(found: Resumption, reporter: Reporter) -> Iterator[None]:
    """Inside, the run is this process's, and what changes is written down."""
    with owning(found.run.root, reporter.warn):
        keep_changes(found, reporter.say)
        yield


def reach_engine(loaded: LoadedConfig, reporter: Reporter, *, rehearse: bool) -> None:
    """Refuse an engine that is not there. For NeMo-RL's the process goes on in NeMo-RL's Python."""
    refuse_missing_engine(loaded.config, loaded.engine, rehearse=rehearse)
    if loaded.engine == "nemo_rl" and not rehearse and not is_launched():
        hand_over(loaded.config, reporter)


def announce(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Say what is about to run, and what of the configuration will not be read."""
    config = loaded.config
    reporter.say(
        f"Equipoise: task {config.equipoise.task}, engine {loaded.engine}, "
        f"model {config.policy.model_name}"
    )
    for name, file in loaded.own_code():
        reporter.say(f"code of your own: {name} of {file}")
    for warning in loaded.warnings:
        reporter.warn(warning)
    stand_in = getattr(loaded.env_settings, "stand_in", None)
    if stand_in and config.policy.model_name != LOCAL_MODEL:
        reporter.warn(stand_in)
    if loaded.engine == "local" and (ignored := ignored_by_local(loaded)):
        reporter.warn(f"the local engine does not read {', '.join(ignored)}")


def dry_run(loaded: LoadedConfig, label: str, reporter: Reporter, *, ask: bool = False) -> None:
    """Print the arithmetic and write the resolved configuration; load no model, train nothing.

    With `ask` what prepares prompts and gives reward is asked one question.
    """
    settings = loaded.config.equipoise
    folder = Path(settings.output_dir) / settings.task
    usable_folder(folder, "--output-dir")
    prepare_task(loaded, reporter.say, dry_run=True, ask=ask)
    if ask:
        ask_environment(loaded, reporter)
    records = make_prompts(loaded)
    workload = workload_of(
        records,
        set_size(loaded.environment_class) or 1,
        getattr(loaded.env_settings, "reference_generations", 0),
    )
    rows = [
        *dry_run_rows(loaded.config, loaded.engine, workload),
        *_calls(loaded, records, total_generations(loaded.config, loaded.engine, workload)),
        *check_task(loaded, records),
    ]
    cells = [(row.label, row.value, row.note) for row in rows]
    columns = [Column(name, folds=True) for name in ("what", "figure", "note")]
    reporter.table("What would run", columns, cells)
    path = folder / f"{settings.run_name or label}.dry-run.yaml"
    write_text(path, loaded.to_yaml())
    reporter.say(f"resolved configuration: {path}")


def ask_environment(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Ask what gives reward one question, and say that it answers."""
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    hand_in_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    reporter.say("what gives reward answers")


def _calls(loaded: LoadedConfig, records: Sequence[PromptRecord], generations: int) -> list[Row]:
    settings = loaded.env_settings
    calls = settings.model_calls(records, generations) if isinstance(settings, CountsCalls) else 0
    note = "of a judge or generator; equal ones are asked once"
    return [Row("model calls", f"<= {calls:,}", note)] if calls else []


def run_directory(loaded: LoadedConfig, options: Options, label: str) -> RunDirectory | NewRun:
    """The directory to resume, or where a new run will be kept, which is there and free."""
    if options.resume:
        return open_run_directory(options.resume)
    settings = loaded.config.equipoise
    started = datetime.now().astimezone()
    new = NewRun(Path(settings.output_dir) / settings.task, settings.run_name, label, started)
    new.check()
    return new


def is_rehearsal(options: Options) -> bool:
    """Whether the run to resume is one."""
    if not options.resume:
        return False
    run = open_run_directory(options.resume)
    return bool(read_provenance(run.provenance).get("rehearsal"))


def prepare_torch(threads: int | None) -> None:
    """Set what torch reads when it is imported.

    Waiting threads must sleep: on a shared machine spinning ones take seconds from every step.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # It advises the developers of torchao, which transformers imports.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)


def guarded(action: Callable[[Reporter], None]) -> int:
    """Run `action`. What a user can mend becomes a few clear lines; a bug keeps its traceback."""
    guard_terminal()
    errors = Reporter.for_errors()
    try:
        with raising():
            action(Reporter())
    except EquipoiseError as error:
        errors.say(f"error: {error}")
        return error.exit_code
    except Stopped as stopped:
        errors.say(str(stopped) or "stopped before the run began; nothing is kept of it")
        return EXIT_STOPPED
    except Exception as error:  # noqa: BLE001  what has no remedy is printed whole, and escaped
        known = damaged(error) or memory_trouble(error) or disk_trouble(error)
        if known is None:
            errors.say(traceback.format_exc())
            return EquipoiseError.exit_code
        errors.say(f"error: {known}")
        return known.exit_code
    return 0


def damaged(error: Exception) -> EquipoiseError | None:
    """The clear error for a file of a run that a crash or a hand has damaged."""
    if not isinstance(error, DamagedFileError):
        return None
    return EquipoiseError(f"a file is damaged: {error}", "Put it back, or start a new run.")


def memory_trouble(error: Exception) -> EquipoiseError | None:
    """The clear error for memory that is used up, of the GPU or of the machine."""
    out_of_memory = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    of_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    if not (of_cpu or isinstance(error, out_of_memory | MemoryError)):
        return None
    first_line = next(iter(str(error).splitlines()), "")
    where = "the GPU's" if isinstance(error, out_of_memory) and not of_cpu else "this machine's"
    return EquipoiseError(f"{where} memory is used up. {first_line}".strip(), _MEMORY_REMEDY)


def disk_trouble(error: Exception) -> EquipoiseError | None:
    """The clear error for a disk that is full or closed to us; None for anything else.

    torch and safetensors report a full disk through exceptions of their own, with the system's
    words in them.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None and os.strerror(errno.ENOSPC) in str(error):
        number = errno.ENOSPC
    if number not in _DISK_REMEDIES:
        return None
    where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
    return EquipoiseError(f"{os.strerror(number)}{where}", _DISK_REMEDIES[number])
