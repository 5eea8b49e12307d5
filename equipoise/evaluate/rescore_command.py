"""`equipoise rescore`."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from dotenv import load_dotenv

from equipoise.config import LoadedConfig, Options, load_config
from equipoise.models.libraries import prepare_torch
from equipoise.run.directory import RunDirectory, usable_folder
from equipoise.run.kept_files import open_run, unsealed_note
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column
from equipoise.terminal.options import (
    Assignments,
    DryRun,
    Files,
    RunFolder,
    Unsealed,
    option,
)


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """Score the stored replies of a run again.

    With today's environment, or as other settings of it say: --config and key=value change env.*.
    The result is a run directory of its own, in which all that is derived is made anew, with the
    old scores beside the new ones. RUN is never changed.

    Examples:
        equipoise rescore results/TASK/RUN
        equipoise rescore results/TASK/RUN --failed
        equipoise rescore results/TASK/RUN --config other.yaml --output-dir results/TASK/RUN-other
        equipoise rescore results/TASK/RUN env.NAME.KEY=VALUE --dry-run
    """

    run: RunFolder
    assignments: Assignments = ()
    config: Annotated[Files, option("YAML with what changes; may be repeated", "FILE")] = ()
    output_dir: Annotated[
        Path | None, option("a new folder (default: RUN-rescored-<time>)", "DIR")
    ] = None
    failed: Annotated[bool, option("only what could not be scored")] = False
    dry_run: DryRun = False
    unsealed: Unsealed = False


def run(options: RescoreOptions, reporter: Reporter) -> None:
    """Score again. Raises `EquipoiseError`."""
    load_dotenv(Path.cwd() / ".env")
    # They bring what takes a second to import.
    from equipoise.evaluate.again import Rescorer
    from equipoise.evaluate.entries import task_of
    from equipoise.evaluate.rescore import (
        refuse_other_keys,
        rescore,
        stages_of,
        target_exists_error,
    )
    from equipoise.models.task_environment import make_environment

    opened = open_run(options.run, unsealed=options.unsealed)
    source = opened.run
    stages_of(source)
    task = task_of(source)
    run_config = load_config(task, Options((source.config,)))
    files = (source.config, *options.config)
    loaded = load_config(task, Options(files, assignments=options.assignments))
    changes = refuse_other_keys(run_config, loaded)
    target = options.output_dir or _default_target(source)
    if target.exists():
        raise target_exists_error(target)
    for key, change in changes.items():
        reporter.say(f"changed: {key}: {change['before']} -> {change['after']}")
    if options.dry_run:
        _dry_run(options, loaded, source, reporter)
        return
    if opened.unsealed:
        reporter.warn(unsealed_note(opened.unsealed))
    usable_folder(target.parent, "--output-dir")
    prepare_torch(loaded.config.equipoise.threads)
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    rescore(opened, Rescorer(environment, loaded, options.failed, reporter), changes, target)


def _default_target(source: RunDirectory) -> Path:
    root = source.root.resolve()
    return root.with_name(f"{root.name}-rescored-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def _dry_run(
    options: RescoreOptions, loaded: LoadedConfig, source: RunDirectory, reporter: Reporter
) -> None:
    """How much would be scored, and how often other models would be asked at most."""
    from equipoise.evaluate.again import failed_indices, stored_policies
    from equipoise.evaluate.rescore import stages_of
    from equipoise.run.prompts import read_records
    from equipoise.run.rollouts import read_scored_rollouts

    rows, prompt_ids, settings = [], set[str](), loaded.env_settings
    files = {stage: source.rollouts(stage) for stage in stages_of(source)}
    for name, path in {**files, **stored_policies(source)}.items():
        rollouts, scores = read_scored_rollouts(path)
        number = len(rollouts)
        if options.failed:
            number = len(failed_indices(loaded.environment_class.scope, rollouts, scores))
        prompt_ids |= {rollout.prompt_id for rollout in rollouts}
        rows.append((name, f"{number:,}", _at_most(settings.model_calls([], number))))
    records = [record for record in read_records(source.prompts) if record.id in prompt_ids]
    if for_prompts := settings.model_calls(records, 0):
        rows.append(("once for each prompt", "-", _at_most(for_prompts)))
    names = ("stage or policy", "replies to score", "calls of other models")
    reporter.table("What would be scored", list(map(Column, names)), rows)


def _at_most(calls: int) -> str:
    return f"<= {calls:,}" if calls else "-"
