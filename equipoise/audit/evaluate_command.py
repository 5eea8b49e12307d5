"""`recipes/evaluate.py`: its command line, and what it does."""

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dotenv import load_dotenv

from data_prep.packaged_models import SMOLLM2
from environments.base import YARDSTICKS
from equipoise.config.engine import refuse_missing_gpu
from equipoise.config.flags import CONFIG_FOLDER, evaluations, tasks
from equipoise.config.schema import LOCAL_MODEL
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.hub import refuse_missing_folder, refuse_missing_model
from equipoise.models.libraries import prepare_torch
from equipoise.models.packaged import refuse_missing_package
from equipoise.run.directory import usable_folder
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.run.log import kept_log
from equipoise.terminal.console import Reporter
from equipoise.terminal.interrupts import Stopped
from equipoise.terminal.layout import Column

if TYPE_CHECKING:  # they bring what takes seconds to import
    from equipoise.audit.plan import Audit
    from equipoise.audit.subjects import Subject
    from equipoise.audit.variants import Variant

_DESCRIPTION = """\
Evaluate models without training: a task's own prompts, environment and statistics. Each model, and
each way of asking it, is a row with a run directory of its own; all rows of a task are compared
with its first one. A model is a name on the hub, a folder, a checkpoint of a run, the words local
and smollm2, NAME@URL or a YAML file for one behind an OpenAI-compatible endpoint; LABEL= before it
names the row.
"""
#: What is meant as a file, also where none is there: a path in one word, or a text file's name.
_FILE_NAME = re.compile(r"(\.{0,2}|~)/\S+|\S+\.(txt|md|jinja)")
_LOG = "equipoise.log"
_EXAMPLES = """\
examples:
  uv run recipes/evaluate.py --task TASK --model local --limit 64
  uv run recipes/evaluate.py --task all --model Qwen/Qwen2.5-0.5B-Instruct
  uv run recipes/evaluate.py --task TASK --model Qwen/Qwen3-8B@http://localhost:8000/v1
  uv run recipes/evaluate.py --task TASK --model before=my/model --model after=results/TASK/RUN
  uv run recipes/evaluate.py --task TASK --model my/base --adapter my-adapter
  uv run recipes/evaluate.py --task TASK --model endpoint.yaml --system asked=system.txt --blinded
  uv run recipes/evaluate.py --resume results/audits/NAME
"""


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What the command line asks for, as words."""

    task: str | None
    model: tuple[str, ...]
    adapter: tuple[str, ...]
    limit: int | None
    system: tuple[str, ...]
    few_shot: tuple[int, ...]
    blinded: bool
    constrained: bool
    yardstick: bool
    config: tuple[str, ...]
    output_dir: str
    run_name: str | None
    seed: int | None
    device: str | None
    resume: Path | None
    dry_run: bool
    unsealed: bool
    assignments: tuple[str, ...]


def parse_options(arguments: Sequence[str] | None = None) -> EvaluateOptions:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="any key, for all rows")
    _add_what(parser.add_argument_group("what is evaluated"))
    _add_ways(parser.add_argument_group("other ways to ask, each a row beside the plain one"))
    _add_run(parser.add_argument_group("the run"))
    given = vars(parser.parse_intermixed_args(arguments))
    if given["resume"]:
        _refuse_with_resume(parser, given)
    elif not given["task"] or not (given["model"] or given["adapter"]):
        parser.error("--task and a --model are needed, or --resume")
    limits = [] if given["limit"] is None else [given["limit"]]
    if any(number < 1 for number in (*given["few_shot"], *limits)):
        parser.error("--limit and --few-shot take a number of at least 1")
    words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return EvaluateOptions(**words)


def _add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--task",
        choices=(*tasks(), *evaluations(), "all"),
        help=f"all: without {', '.join(evaluations())}, which equipoise.data.* has to name first",
    )
    group.add_argument(
        "--model", action="append", default=[], metavar="MODEL", help="may be repeated"
    )
    group.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="DIR",
        help="a LoRA adapter, merged into the one --model or into the base that it names; a row of "
        "its own",
    )
    group.add_argument(
        "--limit", type=int, metavar="N", help="about so many prompts, in whole sets"
    )


def _add_ways(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--system",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="with this text, or that of a file, as system message, or after the task's own",
    )
    group.add_argument(
        "--few-shot",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="with N training prompts and good replies to them",
    )
    group.add_argument(
        "--blinded", action="store_true", help="without what must not decide, where a task can"
    )
    group.add_argument(
        "--constrained",
        action="store_true",
        help="held to the JSON schema of the replies, where there is one and the server takes it",
    )

    group.add_argument(
        "--yardstick",
        action="store_true",
        help="with sets that differ in what means nothing, a placebo and a paraphrase, where a "
        "task has some: a row each, to read an effect beside",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="as for training (default: nemo_configs/local.yaml for local, else small.yaml)",
    )
    group.add_argument("--output-dir", default="results", metavar="DIR", help="of audits/<name>")
    group.add_argument("--run-name", metavar="NAME", help="default: the date and time")
    group.add_argument("--seed", type=int, metavar="S", help="grpo.seed")
    group.add_argument("--device", choices=("cpu", "cuda"), help="of models in this process")
    group.add_argument("--resume", type=Path, metavar="DIR", help="go on with this audit")
    group.add_argument("--dry-run", action="store_true", help="show what would be asked; ask none")
    group.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)


def _refuse_with_resume(parser: argparse.ArgumentParser, given: dict[str, Any]) -> None:
    free = ("resume", "dry_run", "unsealed")
    defaults = {"output_dir": "results", **{key: given[key] for key in free}}
    if other := [key for key, value in given.items() if value and value != defaults.get(key)]:
        words = {"assignments": "key=value"}
        named = ", ".join(words.get(key, f"--{key.replace('_', '-')}") for key in other)
        parser.error(
            f"--resume goes on with the audit as it was asked for: leave out {named}, or start "
            "another one with a --run-name of its own"
        )


def run(options: EvaluateOptions, reporter: Reporter) -> None:
    """Evaluate. Raises `EquipoiseError`."""
    load_dotenv(Path.cwd() / ".env")
    from equipoise.audit.evaluate import run_audit
    from equipoise.audit.plan import read_audit, write_audit

    audit = read_audit(options.resume) if options.resume else asked_for(options)
    audit = replace(audit, unsealed=audit.unsealed or options.unsealed)
    root = options.resume or new_root(options)
    threads = _check(audit, root, reporter, dry_run=options.dry_run)
    if options.dry_run:
        _dry_run(audit, root, reporter)
        return
    prepare_torch(threads)
    usable_folder(root, "--output-dir")
    write_audit(root, audit)
    reporter.say(f"audit: {root}")
    with kept_log(reporter) as log_to:
        log_to(root / _LOG)
        try:
            run_audit(audit, root, reporter)
        except Stopped:
            raise Stopped(f"stopped; --resume {root} continues it") from None
        except EquipoiseError:
            _discard_unbegun(root)
            raise


def _discard_unbegun(root: Path) -> None:
    """Remove the folder of an audit of which no row has begun: its name is free again."""
    from equipoise.audit.plan import FILE

    if {path.name for path in root.iterdir()} <= {FILE, _LOG}:
        shutil.rmtree(root)


def asked_for(options: EvaluateOptions) -> "Audit":
    """The audit in its own words. Raises `UsageError`."""
    from equipoise.audit.plan import Audit
    from equipoise.audit.subjects import read_subjects

    subjects = read_subjects(options.model, options.adapter)
    flags = (
        ("--seed", "grpo.seed", options.seed),
        ("--device", "equipoise.device", options.device),
    )
    return Audit(
        tasks=tuple(tasks()) if options.task == "all" else (str(options.task),),
        subjects=subjects,
        variants=tuple(_variants(options)),
        limit=options.limit,
        config_files=tuple(_config_files(options, subjects)),
        settings=tuple(flag for flag in flags if flag[2] is not None),
        assignments=options.assignments,
    )


def _config_files(options: EvaluateOptions, subjects: "Sequence[Subject]") -> Iterator[str]:
    if options.config:
        yield from (str(Path(file).resolve()) for file in options.config)
        return
    local = any(subject.model == LOCAL_MODEL for subject in subjects)
    yield str(CONFIG_FOLDER / ("local.yaml" if local else "small.yaml"))


def _variants(options: EvaluateOptions) -> "Iterator[Variant]":
    """The plain row first."""
    from equipoise.audit.subjects import NAMED
    from equipoise.audit.variants import PLAIN, Variant

    yield PLAIN
    for word in options.system:
        if not (named := NAMED.fullmatch(word)):
            raise UsageError(f"--system {word!r} has no name", "Give NAME=TEXT or NAME=FILE.")
        yield Variant(named[1], system=_text(named[2]))
    yield from (Variant(f"few-shot-{shots}", shots=shots) for shots in options.few_shot)
    if options.blinded:
        yield Variant("blinded", blinded=True)
    if options.constrained:
        yield Variant("constrained", constrained=True)
    if options.yardstick:
        yield from (Variant(name, yardstick=name) for name in YARDSTICKS)


def _text(word: str) -> str:
    """The text of the file that is named, or the text itself. Raises `UsageError`."""
    path = Path(word)
    try:
        if len(word) < 256 and (path.is_file() or _FILE_NAME.fullmatch(word)):
            return path.read_text("utf-8").strip()
        return word
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{word} cannot be read: {reason}", "Name a text file.") from None


def new_root(options: EvaluateOptions) -> Path:
    """The folder of a new audit. Raises `UsageError` where there is one already."""
    name = options.run_name or f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    root = Path(options.output_dir) / "audits" / name
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            f"{root} exists already", f"Continue it with --resume {root}, or name another."
        )
    return root


def _check(audit: "Audit", root: Path, reporter: Reporter, *, dry_run: bool) -> int | None:
    """Load every configuration once, so that no mistake waits for a model; the CPU threads."""
    from equipoise.audit.plan import Place, rows_of

    threads = None
    for task in audit.tasks:
        for subject in audit.subjects:
            place = Place(audit, task, root, reporter)
            loaded = place.load(subject.model or subject.label, subject.label)
            rows_of(audit, subject, loaded.environment_class)
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


def _dry_run(audit: "Audit", root: Path, reporter: Reporter) -> None:
    """The rows with what they ask, at most."""
    from equipoise.audit.plan import Place, planned

    columns = [Column("task"), Column("row", folds=True)]
    columns += [Column(n) for n in ("prompts", "replies", "tokens", "cost", "calls to score")]
    rows = [row for task in audit.tasks for row in planned(Place(audit, task, root, reporter))]
    reporter.table("What would be asked, at most", columns, rows)
