"""`recipes/rescore.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dotenv import load_dotenv
from pydantic import BaseModel

from environments.base import CountsCalls, PromptRecord
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.models.libraries import prepare_torch
from equipoise.run.directory import RunDirectory, usable_folder
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP, open_run, unsealed_note
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

_DESCRIPTION = """\
Score the stored replies of a run again, with today's environment, or as other settings of it say:
--config and key=value change env.*. The result is a run directory of its own, in which all that is
derived is made anew, with the old scores beside the new ones. RUN is never changed.
"""
_EXAMPLES = """\
examples:
  uv run recipes/rescore.py results/TASK/RUN
  uv run recipes/rescore.py results/TASK/RUN --failed
  uv run recipes/rescore.py results/TASK/RUN --config other.yaml --output results/TASK/RUN-other
  uv run recipes/rescore.py results/TASK/RUN env.NAME.KEY=VALUE --dry-run
"""


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """What the command line asks for."""

    run: Path
    assignments: tuple[str, ...]
    config: tuple[Path, ...]
    output: Path | None
    failed: bool
    dry_run: bool
    unsealed: bool


def parse_options(arguments: Sequence[str] | None = None) -> RescoreOptions:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("assignments", nargs="*", metavar="key=value", help="of env, mostly")
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="YAML with what changes; may be repeated",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="a new folder (default: RUN-rescored-<time>)"
    )
    parser.add_argument("--failed", action="store_true", help="only what could not be scored")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be scored, and score nothing"
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_intermixed_args(arguments)
    return RescoreOptions(
        given.run,
        tuple(given.assignments),
        tuple(given.config),
        given.output,
        given.failed,
        given.dry_run,
        given.unsealed,
    )


def run(options: RescoreOptions, reporter: Reporter) -> None:
    """Score again. Raises `EquipoiseError`."""
    load_dotenv(Path.cwd() / ".env")
    # They bring what takes a second to import.
    from equipoise.audit.again import Rescorer
    from equipoise.audit.entries import task_of
    from equipoise.audit.rescore import refuse_other_keys, rescore, stages_of, taken
    from equipoise.models.task_environment import make_environment

    opened = open_run(options.run, unsealed=options.unsealed)
    source = opened.run
    stages_of(source)
    task = task_of(source)
    kept = load_config(task, Options((source.config,)))
    files = (source.config, *options.config)
    loaded = load_config(task, Options(files, assignments=options.assignments))
    changes = refuse_other_keys(kept, loaded)
    target = options.output or _named(source)
    if target.exists():
        raise taken(target)
    for key, change in changes.items():
        reporter.say(f"changed: {key}: {change['before']} -> {change['after']}")
    if options.dry_run:
        _dry_run(options, loaded, source, reporter)
        return
    if opened.unsealed:
        reporter.warn(unsealed_note(opened.unsealed))
    usable_folder(target.parent, "--output")
    prepare_torch(loaded.config.equipoise.threads)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    rescore(opened, Rescorer(environment, loaded, options.failed, reporter), changes, target)


def _named(source: RunDirectory) -> Path:
    root = source.root.resolve()
    return root.with_name(f"{root.name}-rescored-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _dry_run(
    options: RescoreOptions, loaded: LoadedConfig, source: RunDirectory, reporter: Reporter
) -> None:
    """How much would be scored, and how often other models would be asked at most."""
    from equipoise.audit.again import failed_places, stored_policies
    from equipoise.audit.rescore import stages_of
    from equipoise.run.rollouts import read_scored_rollouts
    from equipoise.stages.prompts import read_records

    rows, asked, settings = [], set[str](), loaded.env_settings
    files = {stage: source.rollouts(stage) for stage in stages_of(source)}
    for name, path in {**files, **stored_policies(source)}.items():
        rollouts, scores = read_scored_rollouts(path)
        number = len(rollouts)
        if options.failed:
            number = len(failed_places(loaded.environment_class.scope, rollouts, scores))
        asked |= {rollout.prompt_id for rollout in rollouts}
        rows.append((name, f"{number:,}", _at_most(_calls(settings, [], number))))
    records = [record for record in read_records(source.prompts) if record.id in asked]
    if for_prompts := _calls(settings, records, 0):
        rows.append(("once for each prompt", "-", _at_most(for_prompts)))
    names = ("stage or policy", "replies to score", "calls of other models")
    reporter.table("What would be scored", list(map(Column, names)), rows)


def _calls(settings: BaseModel, records: Sequence[PromptRecord], replies: int) -> int:
    return settings.model_calls(records, replies) if isinstance(settings, CountsCalls) else 0


def _at_most(calls: int) -> str:
    return f"<= {calls:,}" if calls else "-"
