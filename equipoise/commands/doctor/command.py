"""`equipoise doctor`: every check at once, as a table or as JSON."""

import json
import logging
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from equipoise.commands.doctor import examine
from equipoise.commands.doctor.checks import STATUSES, Case
from equipoise.config import load_config
from equipoise.config.compose import check_task
from equipoise.config.secrets import redacted
from equipoise.config.words import Task, Training, TrainingWords, option
from equipoise.files.console import Column, Reporter
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.nemo_rl import find_root, hand_over, is_installed, is_launched

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Find what would stop a run before it costs GPU time.

    Without a TASK only the machine is checked. Exit code 1 means that something would stop the run;
    docs/troubleshooting.md has the checks.

    Examples:
        equipoise doctor
        equipoise doctor TASK --config nemo_configs/large.yaml cluster.num_nodes=8
        equipoise doctor TASK --json --offline
    """

    task: Task = None
    json: Annotated[bool, option("one JSON object in place of the table")] = False
    offline: Annotated[bool, option("make no network requests")] = False
    training: Training = field(default_factory=TrainingWords)


def run(options: DoctorOptions, reporter: Reporter) -> None:
    """Look, and tell. Raises `EquipoiseError` where the configuration cannot run."""
    if options.task or options.training != TrainingWords():
        check_task(options.task or "")
    rows = [  # without secrets, wherever their words come from
        (result.check.name, result.status, redacted(result.says), redacted(result.remedy))
        for result in examine(case_of(options))
    ]
    failed = dict.fromkeys(name for name, status, *_ in rows if status == "failure")
    if options.json:
        keys = ("name", "status", "says", "remedy")
        document = {
            "schema": _SCHEMA,
            "task": options.task,
            "ready": not failed,
            "checks": [dict(zip(keys, row, strict=True)) for row in rows],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        columns = [Column(name, folds=True) for name in ("check", "status", "what", "remedy")]
        reporter.table("What a run would find here", columns, rows)
        counts = Counter(status for _, status, *_ in rows)
        reporter.say(", ".join(f"{counts[status]} {status}" for status in STATUSES))
    if failed:
        raise EquipoiseError("doctor.not-ready", f"not ready: {', '.join(failed)}", "")


def case_of(options: DoctorOptions) -> Case:
    """Load the configuration of the options."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells each of its retries
    loaded, invalid = None, None
    if options.task is not None:
        try:
            loaded = load_config(options.task, options.training.as_options())
        except UsageError as error:
            invalid = error
    case = Case(loaded, invalid, dict(os.environ), not options.offline)
    root = find_root()
    if root and case.on_nemo_rl and case.place == "here" and is_installed() and not is_launched():
        hand_over(root)  # NeMo-RL's Python sees its GPUs and its Ray
    return case
