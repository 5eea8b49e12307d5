"""`equipoise compare`, `equipoise gate` and `equipoise rescore`."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from dotenv import load_dotenv
from tyro.conf import Positional

from equipoise.config import LoadedConfig, Options, load_config
from equipoise.errors import UsageError
from equipoise.models.libraries import prepare_torch
from equipoise.run.directory import RunDirectory, usable_folder
from equipoise.run.seals import open_run, unsealed_note
from equipoise.terminal.console import Column, Reporter
from equipoise.terminal.options import (
    Assignments,
    DryRun,
    Files,
    Repeated,
    RunFolder,
    Unsealed,
    option,
)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Compare what was evaluated, each entry with the first.

    By metric: the paired difference with its interval, p after Holm's correction, a verdict, and
    guards kept, lost or not shown. An entry is the folder of a run (its last stage) or of a stage;
    NAME=DIR names it, and NAME=DIR,DIR,... are several seeds of one configuration, compared seed
    by seed. Nothing is generated and nothing is scored.

    Examples:
        equipoise compare results/TASK/RUN/baseline results/TASK/RUN/final
        equipoise compare results/TASK/FIRST results/TASK/SECOND results/TASK/THIRD
        equipoise compare before=r/a-1,r/a-2 after=r/b-1,r/b-2 --output-dir over-seeds
    """

    entries: Annotated[tuple[str, ...], Positional, option("DIR, NAME=DIR, NAME=DIR,DIR", "ENTRY")]
    output_dir: Annotated[Path, option("where compare.json and compare.html go", "DIR")] = Path(
        "results/comparison"
    )
    different_items: Annotated[bool, option("compare on the prompts that both were asked")] = False
    different_environments: Annotated[
        bool, option("compare although scores were given with other settings, models or code")
    ] = False
    unsealed: Unsealed = False
    dry_run: Annotated[bool, option("show the comparison, and write nothing")] = False


def compare(options: CompareOptions, reporter: Reporter) -> None:
    """Compare what was evaluated. Raises `EquipoiseError`."""
    if len(options.entries) < 2:
        raise UsageError(
            "compare.too-few-entries",
            "name two entries at least",
            "Both stages of one run are DIR/baseline DIR/final.",
        )
    if not options.dry_run:
        usable_folder(options.output_dir, "--output-dir")
    # matplotlib, which the page brings, takes a second to import.
    from equipoise.evaluate.compare import compare_entries, print_compared, write_comparison
    from equipoise.evaluate.entries import Checks, entries_of

    checks = Checks(options.different_items, options.different_environments)
    with reporter.progress("reading"):
        entries = entries_of(options.entries, unsealed=options.unsealed)
    compared = compare_entries(entries, checks, reporter)
    if options.dry_run:
        print_compared(compared, reporter)
        return
    write_comparison(compared, options.output_dir, reporter)


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Say whether AFTER is worse than BEFORE by more than is allowed.

    Compared are each task's objective and guards, in pairs on the same items. Exit code 0: passed,
    everything is shown to be within its margin; 3: failed, something is shown to be beyond it; 4:
    not enough data for either. A side is an audit, a row of one (AUDIT:ROW), or the folder of a run
    (its last stage) or of a stage, with the other tasks that it asked. Nothing is generated and
    nothing is scored.

    Examples:
        equipoise evaluate all --model before=my/model --model after=my/new --run-name ship
        equipoise gate results/audits/ship:before results/audits/ship:after --markdown gate.md
        equipoise gate results/TASK/RUN/baseline results/TASK/RUN/final --margin reward=0.05
    """

    before: Annotated[str, Positional, option("the model in use: AUDIT:ROW or DIR", "BEFORE")]
    after: Annotated[str, Positional, option("the one that is to replace it", "AFTER")]
    margin: Annotated[
        Repeated,
        option("how far a metric may move, in its unit; also of one without a guard", "NAME=VALUE"),
    ] = ()
    output_dir: Annotated[Path, option("where gate.json goes", "DIR")] = Path("results/gate")
    junit: Annotated[
        Path | None, option("write JUnit's XML, a test case for each metric", "FILE")
    ] = None
    markdown: Annotated[Path | None, option("write a table for a pull request", "FILE")] = None
    unsealed: Unsealed = False


def gate(options: GateOptions, reporter: Reporter) -> None:
    """Gate. Raises `EquipoiseError`, also for a verdict that is no pass."""
    usable_folder(options.output_dir, "--output-dir")
    for flag, path in (("--junit", options.junit), ("--markdown", options.markdown)):
        if path is not None:
            usable_folder(path.parent, flag)
    from equipoise.evaluate.gate import gate_stored, read_margins
    from equipoise.evaluate.gate_report import print_gate, write_gate

    margins = read_margins(options.margin)
    result = gate_stored(
        options.before, options.after, margins, reporter, unsealed=options.unsealed
    )
    path = options.output_dir / "gate.json"
    write_gate(result, path, options.junit, options.markdown)
    print_gate(result, path, reporter)


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


def rescore(options: RescoreOptions, reporter: Reporter) -> None:
    """Score again. Raises `EquipoiseError`."""
    load_dotenv(Path.cwd() / ".env")
    # They bring what takes a second to import.
    from equipoise.evaluate.entries import task_of
    from equipoise.evaluate.rescore import (
        Rescorer,
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
    root, stamp = source.root.resolve(), f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    target = options.output_dir or root.with_name(f"{root.name}-rescored-{stamp}")
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


def _dry_run(
    options: RescoreOptions, loaded: LoadedConfig, source: RunDirectory, reporter: Reporter
) -> None:
    """How much would be scored, and how often other models would be asked at most."""
    from equipoise.evaluate.rescore import failed_indices, stages_of, stored_policies
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
