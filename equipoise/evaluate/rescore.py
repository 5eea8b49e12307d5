"""Stored rollouts of a run, scored as it is done today, in a run directory of their own.

Beside what a run has: `<stage>/scores_before.jsonl`, the scores as they were, line by line with
rollouts.jsonl, `probe/before/` and modes_before.json, what was there, and rescored.json, what
changed.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from data_prep.files import create_folder, read_json, write_json, write_jsonl, write_text
from data_prep.records import manifest_path
from environments.contract import Environment
from environments.presentation import Presentation
from equipoise.config import LoadedConfig
from equipoise.config.compose import leaves
from equipoise.errors import UsageError
from equipoise.evaluate.rescorer import (
    Policies,
    Rescored,
    Rescorer,
    failed_files,
    rescore_policies,
    stored_policies,
    within_budget,
)
from equipoise.models.task_environment import provide_models
from equipoise.report.report import write_report
from equipoise.report.run_files import RunFiles
from equipoise.report.terminal import print_beside, print_comparison
from equipoise.report.words import figure, plain_name
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import OpenedRun, record_files
from equipoise.run.provenance import (
    code_hash,
    command_line,
    git_state,
    now,
)
from equipoise.run.rollouts import (
    read_rollouts,
    read_scored_rollouts,
    read_stage_rollouts,
    refuse_other_sizes,
    write_rollouts,
)
from equipoise.statistics.compare import compare, comparison_dict
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column
from equipoise.train.pipeline import stage_comparison
from equipoise.train.stages.around_training import BASELINE, FINAL, write_evaluation
from equipoise.train.stages.job import check_environment
from equipoise.train.stages.modes import modes_content, own_modes
from equipoise.train.stages.probe import compare_with_trained, fill_probe

FILE, BEFORE, MODES_BEFORE = "rescored.json", "scores_before.jsonl", "modes_before.json"
#: Keys that a rescoring may change: those of what scores, and of how it is measured and run.
MAY_CHANGE = ("env.", "equipoise.evaluation.", "equipoise.cache_dir", "equipoise.max_failure_rate")
#: What decided what was replied to stays as it was.
_FIXED = ("equipoise.evaluation.split", "equipoise.evaluation.generations")
_EXAMPLES = 10


def stages_of(run: RunDirectory) -> list[str]:
    """The stages that were scored. Raises `UsageError` if there are none."""
    stages = [stage for stage in (BASELINE, FINAL) if run.evaluation(stage).exists()]
    if not stages:
        raise UsageError(
            "rescore.nothing-scored",
            f"{run.root} has nothing that was scored",
            "Name the folder of a run, results/<task>/<run name>.",
        )
    return stages


def refuse_other_keys(
    run_config: LoadedConfig, new_config: LoadedConfig
) -> dict[str, dict[str, Any]]:
    """Return the changes. Raises `UsageError` for keys that rescoring cannot change."""
    before, after = dict(leaves(run_config.resolved)), dict(leaves(new_config.resolved))
    changed = [key for key in before | after if before.get(key) != after.get(key)]
    refused = [key for key in changed if not key.startswith(MAY_CHANGE) or key in _FIXED]
    if refused:
        raise UsageError(
            "rescore.fixed-keys",
            f"rescoring changes how stored replies are scored, and not {', '.join(refused)}",
            "Leave these keys out; env.* and the draws of equipoise.evaluation may be given.",
        )
    return {key: {"before": before.get(key), "after": after.get(key)} for key in changed}


@dataclass(frozen=True, slots=True)
class RescoredRun:
    """All of a run that has today's scores. `modes` are the task's own, see `own_modes`."""

    stages: Mapping[str, Rescored]
    policies: Policies | None
    greedy: Rescored | None  # of the trained model
    modes: Mapping[str, Any] | None


def rescore(
    opened: OpenedRun, rescorer: Rescorer, changes: Mapping[str, Any], target: Path
) -> None:
    """Score all that a run keeps again and write what follows from it into `target`.

    Nothing is written unless all is scored; what other models answered is in their cache. Raises
    `EquipoiseError`.
    """
    run, environment, reporter = opened.run, rescorer.environment, rescorer.reporter
    if rescorer.failed_only and not failed_files(run, stages_of(run)):
        reporter.say("no failed scores: nothing to rescore")
        return
    with reporter.progress("loading what gives reward"):
        provide_models(environment, rescorer.loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    if environment.reference_generations and run.reference.exists():
        environment.set_reference(read_rollouts(run.reference))
    rescored = _rescore_parts(run, rescorer)
    omissions = omitted_parts(run)
    metadata = {
        "changes": changes,
        "failed_only": rescorer.failed_only,
        "left_out": omissions,
        "unsealed": opened.unsealed,
    }
    fill = partial(_fill, opened, rescorer, rescored, target.name, metadata)
    try:
        create_folder(target, fill)
    except FileExistsError:
        raise target_exists_error(target) from None
    _print(reporter, RunDirectory(target), environment)
    if omissions:
        reporter.warn(f"not copied, because they hold old scores: {', '.join(omissions)}")
    reporter.say(f"\nreport: {write_report(target)}")


def _rescore_parts(run: RunDirectory, rescorer: Rescorer) -> RescoredRun:
    stored = {stage: read_stage_rollouts(run, stage) for stage in stages_of(run)}
    refuse_other_sizes(run, {stage: rollouts for stage, (rollouts, _) in stored.items()})
    stages = {s: rescorer.rescore(f"the {s} evaluation", *scored) for s, scored in stored.items()}
    policies = None
    if BASELINE in stages and stored_policies(run):
        policies = rescore_policies(run, rescorer, stages[BASELINE])
    greedy = None
    if FINAL in stages and run.greedy.is_file():
        label = "the trained model's likeliest replies"
        greedy = rescorer.rescore(label, *read_scored_rollouts(run.greedy))
    modes = _modes(rescorer, stages) if _modes_can_be_made(run) else None
    return RescoredRun(stages, policies, greedy, modes)


def _modes(rescorer: Rescorer, stages: Mapping[str, Rescored]) -> Mapping[str, Any]:
    """The task's own ways through the prompts, in which its environment answers now."""
    scored = {name: stage.scored for name, stage in stages.items()}
    settings = rescorer.loaded.config.equipoise.evaluation.statistics
    with rescorer.reporter.progress("answering in other ways"):
        return within_budget(lambda: own_modes(rescorer.environment, scored, settings))


def _modes_can_be_made(run: RunDirectory) -> bool:
    """Whether modes.json is there, and what it follows from."""
    evaluated = all(run.evaluation(stage).exists() for stage in (BASELINE, FINAL))
    probed = bool(stored_policies(run)) or not run.probe.exists()
    return run.modes.exists() and evaluated and probed


def omitted_parts(run: RunDirectory) -> list[str]:
    """List the parts of a run that are not scored again, such as a probe without replies.

    They would stand beside scores other than their own.
    """
    parts = {
        run.probe: not stored_policies(run),
        run.modes: not _modes_can_be_made(run),
        run.training.parent: True,
        run.added: True,
        run.gate.parent: True,
    }
    return [part.name for part, stale in parts.items() if stale and part.exists()]


def target_exists_error(target: Path) -> UsageError:
    """The error for a folder that is there."""
    return UsageError(
        "rescore.existing-folder", f"{target} exists already", "Name another folder with --output."
    )


# --- what is written of it -----------------------------------------------------------------------


def _fill(
    opened: OpenedRun,
    rescorer: Rescorer,
    rescored: RescoredRun,
    name: str,
    how: Mapping[str, Any],
    folder: Path,
) -> None:
    run, target_run = opened.run, RunDirectory(folder)
    loaded, environment = rescorer.loaded, rescorer.environment
    copied = (run.prompts, manifest_path(run.prompts), run.reference, run.history, run.code_diff)
    for path in copied:
        _copy(path, folder)
    write_text(target_run.config, loaded.to_yaml())
    target_run.ledger.create(_provenance(opened, loaded, environment, name, how))
    for stage in rescored.stages:
        _write_stage(run, target_run, rescorer, stage, rescored.stages[stage])
    if rescored.greedy:
        write_rollouts(target_run.greedy, *rescored.greedy.scored)
    write_json(folder / FILE, _changes_content(rescored, environment, loaded))
    settings = loaded.config.equipoise.evaluation.statistics
    if {BASELINE, FINAL} <= rescored.stages.keys():
        baseline, final = (rescored.stages[stage].scored for stage in (BASELINE, FINAL))
        after = environment.measure(*final)
        comparison = stage_comparison(environment, baseline, after, settings)
        write_json(target_run.comparison, comparison)
    if rescored.policies:
        fill_probe(rescored.policies.scored, rescored.policies.content, target_run.probe)
        shutil.copytree(
            run.probe, target_run.probe / "before", ignore=shutil.ignore_patterns("before")
        )
    if rescored.modes is not None:
        trivial = compare_with_trained(target_run, environment, settings)
        write_json(target_run.modes, modes_content(rescored.modes, trivial, settings))
        shutil.copyfile(run.modes, folder / MODES_BEFORE)
    evaluated = (target_run.evaluation(stage).parent for stage in rescored.stages)
    written = (
        target_run.config,
        target_run.comparison,
        target_run.probe,
        target_run.modes,
        *evaluated,
    )
    record_files(target_run, *written, *(folder / path.name for path in copied))


def _copy(path: Path, folder: Path) -> None:
    if path.is_file():
        shutil.copyfile(path, folder / path.name)


def _provenance(
    opened: OpenedRun,
    loaded: LoadedConfig,
    environment: Environment,
    name: str,
    how: Mapping[str, Any],
) -> dict[str, Any]:
    """The provenance of the run, with what scores it now and what did before."""
    before = opened.provenance
    sources = dict(environment.sources())
    code = code_hash(loaded)
    metadata = {
        "of": str(opened.run.root.resolve()),
        "time": now(),
        "command": command_line(),
        "git": git_state(),
        **how,
        "sources_before": before.get("sources", {}),
        "environment_before": before.get("hashes", {}).get("environment"),
    }
    changed = {"run_name": name, "rescored": metadata, "files": {}}
    hashes = {**before.get("hashes", {}), "environment": code}
    return {**before, **({"sources": sources} if sources else {}), "hashes": hashes, **changed}


def _write_stage(
    run: RunDirectory, target_run: RunDirectory, rescorer: Rescorer, name: str, stage: Rescored
) -> None:
    evaluation = read_json(run.evaluation(name))
    took = ("prompt_tokens", "completion_tokens", "generation_time_seconds")
    account = {name: evaluation[name] for name in took if name in evaluation}
    write_evaluation(
        target_run,
        name,
        rescorer.environment,
        stage.rollouts,
        stage.after,
        rescorer.loaded.config.equipoise.evaluation,
        str(evaluation["model"]),
        account,
    )
    pairs = zip(stage.rollouts, stage.before, strict=True)
    rows = ({"prompt_id": rollout.prompt_id} | asdict(score) for rollout, score in pairs)
    write_jsonl(target_run.evaluation(name).with_name(BEFORE), rows)


def _changes_content(
    rescored: RescoredRun, environment: Environment, loaded: LoadedConfig
) -> dict[str, Any]:
    """The content of rescored.json."""
    settings = loaded.config.equipoise.evaluation.statistics
    content: dict[str, Any] = {"schema": 1, "confidence": settings.confidence, "stages": {}}
    for name, stage in rescored.stages.items():
        before, after = (
            environment.measure(stage.rollouts, scores) for scores in (stage.before, stage.after)
        )
        changes = compare(before, after, settings, frozen=name == BASELINE)
        compared = comparison_dict(changes, "before", "rescored")
        content["stages"][name] = {
            **_counts(stage),
            "metrics": compared["metrics"],
            "most_changed": list(_most_changed(stage)),
        }
    if rescored.policies:
        content["policies"] = rescored.policies.rewards()
    return content


def _counts(stage: Rescored) -> dict[str, Any]:
    pairs = list(zip(stage.before, stage.after, strict=True))
    rewards = [(a.value, b.value) for a, b in pairs if a.value is not None and b.value is not None]
    return {
        "rollouts": len(pairs),
        "values_changed": sum(a != b for a, b in rewards),
        "scored_now": sum(a.value is None and b.value is not None for a, b in pairs),
        "failed_now": sum(a.value is not None and b.value is None for a, b in pairs),
        "failures": dict(Counter(b.error.kind for _, b in pairs if b.error)),
        "reward_before": fmean(a for a, _ in rewards) if rewards else None,
        "reward_after": fmean(b for _, b in rewards) if rewards else None,
    }


def _most_changed(stage: Rescored) -> Iterator[dict[str, Any]]:
    """The replies whose reward changed most."""
    changes = [
        (abs(after.value - before.value), n)
        for n, (before, after) in enumerate(zip(stage.before, stage.after, strict=True))
        if before.value is not None and after.value is not None and before.value != after.value
    ]
    for _, n in sorted(changes, key=lambda pair: (-pair[0], pair[1]))[:_EXAMPLES]:
        yield {
            "line": n + 1,
            "prompt": stage.rollouts[n].prompt_id,
            "completion": stage.rollouts[n].completion,
            "before": stage.before[n].value,
            "after": stage.after[n].value,
        }


def _print(reporter: Reporter, target_run: RunDirectory, environment: Environment) -> None:
    content = read_json(target_run.root / FILE)
    names = ("rollouts", "values_changed", "scored_now", "failed_now")
    columns = [Column("stage"), *(Column(name.replace("_", " ")) for name in names)]
    columns += [Column("reward before"), Column("reward after")]
    rows = [
        (stage, *(f"{summary[name]:,}" for name in names), *map(figure, _rewards(summary)))
        for stage, summary in content["stages"].items()
    ]
    reporter.table("What changed", columns, rows, all_in=FILE)
    presentation = environment.presentation
    _print_policies(reporter, target_run, content.get("policies", {}), presentation)
    for stage, summary in content["stages"].items():
        if summary["values_changed"] or summary["scored_now"] or summary["failed_now"]:
            title = f"{stage}: the same replies as they were scored and as they are"
            sides = ("before", "rescored")
            words = presentation.words
            print_comparison(reporter, summary, words, title=title, stages=sides, all_in=FILE)


def _print_policies(
    reporter: Reporter,
    target_run: RunDirectory,
    policies: Mapping[str, Mapping[str, float | None]],
    presentation: Presentation,
) -> None:
    """The policies without skill by old and new scores, and beside the trained model."""
    if not policies:
        return
    columns = (Column("policy", folds=True), Column("reward before"), Column("reward after"))
    rows = [(plain_name(name), *map(figure, _rewards(policy))) for name, policy in policies.items()]
    reporter.table("Policies without skill", columns, rows, all_in=FILE)
    if target_run.modes.exists() and (trivial := read_json(target_run.modes)["trivial"]):
        files = RunFiles(modes={"trivial": trivial}, probe=trivial, presentation=presentation)
        print_beside(reporter, files, FILE)


def _rewards(summary: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return summary["reward_before"], summary["reward_after"]
