"""The command line of the doctor: what is looked at, all at once, and how it is told."""

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from dotenv import load_dotenv

from equipoise.config import LoadedConfig, load_config
from equipoise.config.engine import ram_bytes
from equipoise.config.flags import check_task
from equipoise.config.training_words import Task, Training, TrainingWords
from equipoise.doctor import accounts, nemo_rl, software, storage, task
from equipoise.doctor.checks import (
    ANSWERS,
    CACHES,
    CHECKS,
    CONFIGURATION,
    DISK,
    GPUS,
    HUB,
    MEMORY,
    MODEL,
    NEMO_RL,
    PACKAGES,
    PARTS,
    PORTS,
    PREPARATION,
    PROMPTS,
    PYTHON,
    RAY,
    REWARD,
    RUN_DIRECTORY,
    SHARED_FOLDERS,
    SHARED_MEMORY,
    STATUSES,
    TORCH,
    WANDB,
    Check,
    Result,
    failure,
    ok,
    unchecked,
    warning,
)
from equipoise.doctor.together import Job, run_together
from equipoise.errors import EquipoiseError, UsageError
from equipoise.run.redaction import redacted
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column
from equipoise.terminal.options import option
from equipoise.train.nemo_rl.launch import complete_packages
from equipoise.train.stages.wandb_account import wandb_mode

#: For an answer from the network, for the task's own parts, for another Python that imports torch.
_NETWORK, _TASK, _PYTHON = 10.0, 12.0, 90.0
_GPU_CHECKS = (TORCH, GPUS, MEMORY)
#: What cannot be looked at without a valid configuration.
_OF_RUN = (
    *(MEMORY, SHARED_MEMORY, PORTS, RUN_DIRECTORY, CACHES, DISK, SHARED_FOLDERS),
    *(MODEL, PARTS, PROMPTS, PREPARATION, REWARD, ANSWERS),
)
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Name what would keep a run from working, before it costs GPU time.

    Without a TASK the machine alone is looked at. It ends with 1 where something would keep the run
    from working; docs/doctor.md has the checks.

    Examples:
        equipoise doctor
        equipoise doctor TASK --config nemo_configs/large.yaml cluster.num_nodes=8
        equipoise doctor TASK --json --offline
    """

    task: Task = None
    json: Annotated[bool, option("one JSON object in place of the table")] = False
    gpu: Annotated[bool, option("a login node, an image build")] = True
    offline: Annotated[bool, option("make no network requests")] = False
    training: Training = field(default_factory=TrainingWords)


@dataclass(frozen=True, slots=True)
class Case:
    """The checks' input; `loaded` is None without a task or a valid configuration."""

    loaded: LoadedConfig | None
    options: DoctorOptions
    environment: Mapping[str, str]


def run(options: DoctorOptions, reporter: Reporter) -> None:
    """Look, and tell. Raises `EquipoiseError` where the configuration cannot run."""
    if options.task or options.training != TrainingWords():
        check_task(options.task or "")
    results = [safe(result) for result in examine(options)]
    failed = dict.fromkeys(r.check.name for r in results if r.status == "failure")
    if options.json:
        sys.stdout.write(json.dumps(document(options, results), indent=2) + "\n")
    else:
        show(results, reporter)
    if failed:
        raise EquipoiseError(f"not ready: {', '.join(failed)}", "")


def safe(result: Result) -> Result:
    """The result without secrets, wherever its words come from."""
    return Result(result.check, result.status, redacted(result.says), redacted(result.remedy))


def examine(options: DoctorOptions) -> list[Result]:
    """One result at least of every check."""
    path, before = Path.cwd() / ".env", dict(os.environ)
    first = list(accounts.env_file(path, before))
    if not any(result.status == "failure" and "cannot be read" in result.says for result in first):
        load_dotenv(path)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells each of its retries
    complete_packages(Reporter.for_errors())
    loaded, findings = configuration(options)
    case = Case(loaded, options, dict(os.environ))
    left_out = [unchecked(check, why) for check, why in _left_out(case)]
    results = [*first, *findings, *left_out, *run_together(list(_jobs(case)))]
    return sorted(results, key=lambda result: CHECKS.index(result.check))


def configuration(options: DoctorOptions) -> tuple[LoadedConfig | None, list[Result]]:
    """The configuration that is named, and what is to be said of it."""
    words = options.training.as_options()
    if options.task is None:
        return None, [unchecked(CONFIGURATION, "no task is named")]
    try:
        loaded = load_config(options.task, words)
    except UsageError as error:
        return None, [failure(CONFIGURATION, error.message, error.remedy)]
    message = (
        f"{options.task} on the engine {loaded.engine}, model {loaded.config.policy.model_name}"
    )
    hints = [warning(CONFIGURATION, text) for text in loaded.warnings]
    return loaded, hints or [ok(CONFIGURATION, message)]


def _why_not(case: Case) -> str:
    """Why there is no configuration to look at."""
    return "the configuration is not valid" if case.options.task else "no task is named"


def _left_out(case: Case) -> Iterator[tuple[Check, str]]:
    """Yield the checks that are left out, and why."""
    of_run = _OF_RUN if case.loaded is None else ()
    yield from ((check, _why_not(case)) for check in of_run)
    if not case.options.gpu:
        gpu_checks = (check for check in _GPU_CHECKS if check not in of_run)
        yield from ((check, "--no-gpu") for check in gpu_checks)


def _jobs(case: Case) -> Iterator[Job]:
    """Yield the checks that run at the same time."""
    online, loaded = not case.options.offline, case.loaded
    yield Job((PYTHON,), software.python, _TASK)
    yield Job((WANDB,), lambda: [_wandb(case)], _TASK)
    needed = accounts.needs_hub(loaded.config if loaded else None)
    yield Job((HUB,), lambda: [accounts.hub(online=online, needed=needed)], _NETWORK)
    if loaded is None:
        yield Job((NEMO_RL, PACKAGES, RAY), lambda: nemo_rl.unused(_why_not(case)), _TASK)
        if case.options.gpu:
            yield Job((TORCH, GPUS), lambda: software.local_gpus(None, case.environment), _PYTHON)
        return
    yield from _jobs_of_run(case, loaded)


def _jobs_of_run(case: Case, loaded: LoadedConfig) -> Iterator[Job]:
    config, engine, environment = loaded.config, loaded.engine, case.environment
    online, gpu = not case.options.offline, case.options.gpu
    folders = storage.cache_folders(config, engine, environment)
    of_gpu = _GPU_CHECKS if gpu else ()
    yield Job((MODEL,), lambda: accounts.model(config, online=online), _NETWORK)
    yield Job((PARTS, PROMPTS, PREPARATION), lambda: task.data(loaded, online=online), _TASK)
    yield Job((REWARD, ANSWERS), lambda: task.reward(loaded, online=online), _TASK)
    yield Job((RUN_DIRECTORY,), lambda: storage.run_directory(config), _TASK)
    yield Job((CACHES,), lambda: storage.caches(folders), _TASK)
    yield Job((DISK,), lambda: storage.disk(config, folders), _TASK)
    yield Job((SHARED_MEMORY, PORTS), lambda: _of_machine(case, loaded), _TASK)
    written = (storage.run_folder(config), *folders.values())
    shared = list(dict.fromkeys(map(storage.existing, written)))
    if engine == "nemo_rl":
        yield Job(
            (NEMO_RL, PACKAGES, RAY, *of_gpu, SHARED_FOLDERS),
            lambda: nemo_rl.used_by(config, environment, gpu=gpu, folders=shared),
            _PYTHON,
        )
        return
    local = "the local engine trains this"
    yield Job((NEMO_RL, PACKAGES, RAY), lambda: nemo_rl.unused(local), _TASK)
    yield Job(
        (SHARED_FOLDERS,), lambda: [ok(SHARED_FOLDERS, "the local engine runs on one node")], _TASK
    )
    if gpu:
        yield Job(of_gpu, lambda: software.local_gpus(config, environment), _PYTHON)


def _wandb(case: Case) -> Result:
    enabled = case.loaded.config.logger.wandb_enabled if case.loaded else True
    mode = wandb_mode() or case.environment.get("WANDB_MODE")
    return accounts.wandb(enabled, mode, online=not case.options.offline)


def _of_machine(case: Case, loaded: LoadedConfig) -> Iterator[Result]:
    engine, nodes = loaded.engine, loaded.config.cluster.num_nodes
    yield storage.shared_memory(engine, storage.shm_bytes(), ram_bytes())
    yield storage.ports(engine, nodes, case.environment)


def document(options: DoctorOptions, results: Sequence[Result]) -> dict[str, object]:
    """Return what --json prints."""
    return {
        "schema": _SCHEMA,
        "task": options.task,
        "ready": all(result.status != "failure" for result in results),
        "checks": [
            {"name": r.check.name, "status": r.status, "says": r.says, "remedy": r.remedy}
            for r in results
        ],
    }


def show(results: Sequence[Result], reporter: Reporter) -> None:
    """The table, and the sum of it."""
    columns = [Column(name, folds=True) for name in ("check", "status", "what", "remedy")]
    rows = [(r.check.name, r.status, r.says, r.remedy) for r in results]
    reporter.table("What a run would find here", columns, rows)
    counts = Counter(result.status for result in results)
    reporter.say(", ".join(f"{counts[status]} {status}" for status in STATUSES))
