"""`equipoise evaluate`."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction

from equipoise.commands.doctor.machine import refuse_missing_gpu
from equipoise.commands.log import kept_log
from equipoise.config.compose import CONFIG_FOLDER, tasks
from equipoise.config.schema import LOCAL_MODEL
from equipoise.config.words import Assignments, DryRun, Files, Repeated, option
from equipoise.files.console import Column, Reporter, ShowProgress
from equipoise.files.disk import write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.exits import Stopped
from equipoise.files.hub import (
    prepare_torch,
    refuse_missing_folder,
    refuse_missing_model,
    refuse_missing_package,
)
from equipoise.files.packaged_models import SMOLLM2
from equipoise.run.directory import usable_folder
from equipoise.run.seals import check_part, checkpoint_at

if TYPE_CHECKING:  # they bring what takes seconds to import
    from equipoise.evaluate.plan import Audit
    from equipoise.run.ledger import Subject, Variant

#: What is meant as a file, also where none is there: a path in one word, or a text file's name.
_FILE_NAME = re.compile(r"(\.{0,2}|~)/\S+|\S+\.(txt|md|jinja)")
_LOG = "equipoise.log"
#: What --resume leaves free; everything else is as it was asked for.
_WITH_RESUME = {"resume", "dry_run"}
_WORDS = {"task": "TASK", "assignments": "key=value"}


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Evaluate models without training: a task's own prompts, environment and statistics.

    Each model, and each way of asking it, is a row with a run directory of its own; all rows of a
    task are compared with its first one. A model is a name on the hub, a folder, a checkpoint of a
    run, the words local and smollm2, NAME@URL or a YAML file for one behind an OpenAI-compatible
    endpoint; LABEL= before it names the row.

    Examples:
        equipoise evaluate TASK --model local --limit 64
        equipoise evaluate all --model Qwen/Qwen2.5-0.5B-Instruct
        equipoise evaluate TASK --model Qwen/Qwen3-8B@http://localhost:8000/v1
        equipoise evaluate TASK --model before=my/model --model after=results/TASK/RUN
        equipoise evaluate TASK --model my/base --adapter my-adapter
        equipoise evaluate TASK --model endpoint.yaml --system asked=system.txt --blinded
        equipoise evaluate --resume results/audits/NAME
    """

    task: Annotated[str | None, Positional, option("a task, or all", "TASK")] = None
    assignments: Assignments = ()
    model: Annotated[Repeated, option("may be repeated", "MODEL")] = ()
    adapter: Annotated[
        Repeated,
        option("a LoRA adapter, merged into the one --model or into its base; another row", "DIR"),
    ] = ()
    limit: Annotated[int | None, option("about so many prompts, in whole sets", "N")] = None
    plan: Annotated[
        Path | None,
        option("prompts and replies of each task, from `equipoise gate --plan`", "FILE"),
    ] = None
    system: Annotated[
        Repeated,
        option("one more row: with this text or file as or after the system message", "NAME=TEXT"),
    ] = ()
    few_shot: Annotated[
        tuple[int, ...],
        UseAppendAction,
        option("one more row: with N training prompts and good replies to them", "N"),
    ] = ()
    blinded: Annotated[
        bool, option("one more row: without what must not decide, where a task can")
    ] = False
    config: Annotated[
        Files, option("as for training (default: local.yaml for local, else small.yaml)", "FILE")
    ] = ()
    output_dir: Annotated[
        Path | None, option("where audits/<name> goes (default: equipoise.output_dir)", "DIR")
    ] = None
    run_name: Annotated[str | None, option("default: the date and time", "NAME")] = None
    seed: Annotated[int | None, option("grpo.seed", "S")] = None
    device: Annotated[str | None, option("cpu or cuda, of models in this process", "NAME")] = None
    resume: Annotated[Path | None, option("go on with this audit", "DIR")] = None
    dry_run: DryRun = False

    def check(self) -> None:
        """Raise `UsageError` for words that do not go together."""
        overrides = [f for f in fields(self) if getattr(self, f.name) != f.default]
        if self.resume and (conflicts := {f.name for f in overrides} - _WITH_RESUME):
            if "=" in (self.task or ""):  # without TASK the first key=value is read in its place
                conflicts = conflicts - {"task"} | {"assignments"}
            flags = (_WORDS.get(name, f"--{name.replace('_', '-')}") for name in sorted(conflicts))
            raise UsageError(
                "audit.fixed-options",
                "--resume goes on with the audit as it was asked for: leave out "
                f"{', '.join(flags)}, or start another one with a --run-name of its own",
                "",
            )
        if not self.resume and not (self.task and (self.model or self.adapter)):
            raise UsageError("audit.no-model", "TASK and a --model are needed, or --resume", "")
        task_names = (*tasks(), "all")
        if not self.resume and self.task not in task_names:
            raise UsageError(
                "audit.unknown-task",
                f"task {self.task} does not exist",
                f"Take one of {', '.join(task_names)}.",
            )
        if self.plan and self.limit:
            raise UsageError("audit.plan-and-limit", "--plan says how many prompts, as --limit", "")
        if min((*self.few_shot, 1 if self.limit is None else self.limit)) < 1:
            raise UsageError(
                "audit.too-small-number", "--limit and --few-shot take a number of at least 1", ""
            )


def evaluate(options: EvaluateOptions, reporter: Reporter) -> None:
    options.check()
    from equipoise.commands.stages import display_of, report
    from equipoise.evaluate.evaluate import Actions, run_audit
    from equipoise.evaluate.plan import FILE, read_audit

    audit = read_audit(options.resume) if options.resume else make_audit(options)
    root = options.resume or new_root(options)
    threads = _check(audit, root, dry_run=options.dry_run)
    if options.dry_run:
        _show_plan(audit, root, reporter)
        return
    prepare_torch(threads)
    usable_folder(root, "--output-dir")
    write_json(root / FILE, asdict(audit))
    reporter.say(f"audit: {root}")
    as_folder = partial(as_model_folder, progress=reporter.progress)
    actions = Actions(display_of(reporter, audited=True), report, as_folder)
    with kept_log(reporter) as log_to:
        log_to(root / _LOG)
        try:
            for result in run_audit(audit, root, actions):
                from equipoise.report.comparison import show_comparison

                folder = root / result.task
                show_comparison(result.comparison, result.presentation, folder, reporter)
        except Stopped:
            raise Stopped(f"stopped; --resume {root} continues it") from None
        except EquipoiseError:
            if {path.name for path in root.iterdir()} <= {FILE, _LOG}:
                shutil.rmtree(root)  # no row has begun: the name is free again
            raise


def _show_plan(audit: "Audit", root: Path, reporter: Reporter) -> None:
    """Print what each row would ask. Raises `EquipoiseError` for a task that cannot be asked."""
    from equipoise.evaluate.plan import TaskAudit, failed_rows, plan_rows

    rows, errors = [], {}
    for task in audit.tasks:
        for subject in audit.subjects:
            try:
                rows += plan_rows(TaskAudit(audit, task, root), subject)
            except EquipoiseError as error:
                errors[f"{task}: {subject.label}"] = error
    columns = [Column("task"), Column("row", folds=True)]
    columns += [Column(n) for n in ("prompts", "replies", "tokens", "cost", "calls to score")]
    cells = []
    for row in rows:
        counts = (f"{count:,}" for count in (row.prompts, row.replies, row.tokens))
        cost = f"{row.cost:,.2f} + prompts" if row.cost else "-"
        cells.append((row.task, row.row, *counts, cost, f"{row.calls:,}" if row.calls else "-"))
    if cells:
        reporter.table("What would be asked, at most", columns, cells)
    if errors:
        raise failed_rows(audit, errors)


def make_audit(options: EvaluateOptions) -> "Audit":
    """Make the audit that the options ask for. Raises `UsageError`."""
    from equipoise.evaluate.plan import Audit, read_plan, read_subjects, refuse_equal_names

    subjects = read_subjects(options.model, options.adapter)
    files = [str(file.resolve()) for file in options.config]
    if not files:
        local = any(subject.model == LOCAL_MODEL for subject in subjects)
        files = [str(CONFIG_FOLDER / ("local.yaml" if local else "small.yaml"))]
    flags = (
        ("--seed", "grpo.seed", options.seed),
        ("--device", "equipoise.device", options.device),
    )
    task = str(options.task)
    plan = read_plan(options.plan, task) if options.plan else {}
    audit = Audit(
        tasks=tuple(plan or tasks()) if task == "all" else (task,),
        subjects=subjects,
        variants=tuple(_variants(options)),
        limit=options.limit,
        config_files=tuple(files),
        settings=tuple(flag for flag in flags if flag[2] is not None),
        assignments=options.assignments,
        plan=plan,
    )
    refuse_equal_names(audit)
    return audit


def _variants(options: EvaluateOptions) -> "Iterator[Variant]":
    """Yield the variants of each row that the options ask for, the plain one first."""
    from equipoise.evaluate.plan import NAMED
    from equipoise.run.ledger import PLAIN, Variant

    yield PLAIN
    for word in options.system:
        if not (named := NAMED.fullmatch(word)):
            raise UsageError(
                "audit.unnamed-system-prompt",
                f"--system {word!r} has no name",
                "Give NAME=TEXT or NAME=FILE.",
            )
        yield Variant(named[1], system=_text(named[2]))
    yield from (Variant(f"few-shot-{shots}", shots=shots) for shots in options.few_shot)
    if options.blinded:
        yield Variant("blinded", blinded=True)


def _text(word: str) -> str:
    """The text of the file that is named, or the text itself. Raises `UsageError`."""
    path = Path(word)
    try:
        if len(word) < 256 and (path.is_file() or _FILE_NAME.fullmatch(word)):
            return path.read_text("utf-8").strip()
        return word
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            "audit.unreadable-text", f"{word} cannot be read: {reason}", "Name a text file."
        ) from None


def new_root(options: EvaluateOptions) -> Path:
    """The folder of a new audit. Raises `UsageError` where there is one already."""
    name = options.run_name or f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    assigned = dict(word.split("=", 1) for word in options.assignments if "=" in word)
    output_dir = options.output_dir or Path(assigned.get("equipoise.output_dir", "results"))
    root = output_dir / "audits" / name
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            "audit.existing-folder",
            f"{root} exists already",
            f"Continue it with --resume {root}, or name another.",
        )
    return root


def _check(audit: "Audit", root: Path, *, dry_run: bool) -> int | None:
    """Load every configuration once, so that no mistake waits for a model; return the threads."""
    from equipoise.evaluate.plan import TaskAudit

    threads = None
    for task in audit.tasks:
        for subject in audit.subjects:
            task_audit = TaskAudit(audit, task, root)
            loaded = task_audit.load_plain(subject)
            task_audit.rows(subject)
            threads = loaded.config.equipoise.threads
            if subject.endpoint:
                continue
            refuse_missing_package(subject.model)
            for name in filter(None, (subject.model, subject.adapter)):
                refuse_missing_folder(name)
            if dry_run:
                continue
            if subject.model not in ("", LOCAL_MODEL, SMOLLM2):
                refuse_missing_model(subject.model)
            refuse_missing_gpu(loaded.config)
    return threads


def as_model_folder(subject: "Subject", target: Path, progress: ShowProgress) -> str:
    """Return the name or folder that `from_pretrained` loads.

    The files of a run or a training backend, and an adapter, are converted into `target`, once.
    Raises `EquipoiseError` for what cannot be, and like `open_run`.
    """
    folder = Path(subject.adapter or subject.model)
    if not subject.adapter and not folder.is_dir():
        return subject.model
    if not subject.adapter and (folder / "config.json").is_file():
        check_part(folder)
        return subject.model
    # torch takes seconds to import.
    from equipoise.checkpoints.convert import convert
    from equipoise.checkpoints.sources import open_source

    folder = checkpoint_at(folder)
    source = open_source(folder)
    is_complete = source.form == "hugging_face" and (source.path / "config.json").is_file()
    if is_complete and not subject.adapter:
        return str(source.path)
    if not target.exists():
        base = subject.model if subject.adapter else None
        convert(folder, target, base=base, progress=progress)
    return str(target)
