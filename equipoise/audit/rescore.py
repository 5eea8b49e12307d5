"""Stored rollouts of a run, scored as it is done today, in a run directory of their own.

Beside what a run has: `<stage>/scores_before.jsonl`, the scores as they were, line by line with
rollouts.jsonl, and rescored.json, what changed.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from data_prep.files import create_folder, read_json, write_json, write_jsonl, write_text
from data_prep.records import manifest_path
from environments.base import Environment, HasSources, NeedsReference, Rollout, Scope, Score
from environments.chat import BudgetSpentError
from equipoise.config import LoadedConfig
from equipoise.config.compose import leaves
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluation.compare import compare, comparison_dict
from equipoise.evaluation.evaluate import presentation_of
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.report.report import write_report
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import record_files
from equipoise.run.provenance import (
    code_hash,
    command_line,
    git_state,
    now,
    read_provenance,
    update_provenance,
)
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from equipoise.stages.around_training import BASELINE, FINAL, NO_REPLY, write_evaluation
from equipoise.stages.failures import BUDGET_REMEDY, refuse_failures
from equipoise.stages.job import check_environment
from equipoise.stages.summary import number, print_comparison
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

FILE, BEFORE = "rescored.json", "scores_before.jsonl"
#: Keys that a rescoring may change: those of what scores, and of how it is measured and run.
MAY_CHANGE = ("env.", "equipoise.evaluation.", "equipoise.cache_dir", "equipoise.max_failure_rate")
#: What decided what was replied to stays as it was.
_FIXED = ("equipoise.evaluation.split", "equipoise.evaluation.generations")
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Rescored:
    """One stage: what was replied, its scores as they were and as they are."""

    stage: str
    rollouts: Sequence[Rollout]
    before: Sequence[Score]
    after: Sequence[Score]


def stages_of(run: RunDirectory) -> list[str]:
    """The stages that were scored. Raises `UsageError` where there is none."""
    stages = [stage for stage in (BASELINE, FINAL) if run.evaluation(stage).exists()]
    if not stages or not run.config.is_file():
        raise UsageError(
            f"{run.root} has nothing that was scored",
            "Name the folder of a run, results/<task>/<run name>.",
        )
    return stages


def refuse_other_keys(kept: LoadedConfig, wanted: LoadedConfig) -> dict[str, dict[str, Any]]:
    """What changes. Raises `UsageError` for what decides more than how replies are scored."""
    old, new = dict(leaves(kept.resolved)), dict(leaves(wanted.resolved))
    changed = [key for key in old | new if old.get(key) != new.get(key)]
    refused = [key for key in changed if not key.startswith(MAY_CHANGE) or key in _FIXED]
    if refused:
        raise UsageError(
            f"rescoring changes how stored replies are scored, and not {', '.join(refused)}",
            "Leave these keys out; env.* and the draws of equipoise.evaluation may be given.",
        )
    return {key: {"before": old.get(key), "after": new.get(key)} for key in changed}


def rescore(
    run: RunDirectory,
    loaded: LoadedConfig,
    changes: Mapping[str, Any],
    target: Path,
    reporter: Reporter,
    *,
    failed_only: bool,
) -> None:
    """Score the stages of a run again and write all that follows from it into `target`.

    Nothing is written unless all is scored; what other models answered is in their cache. Raises
    `EquipoiseError`.
    """
    if failed_only and not any(map(_has_failed, map(run.rollouts, stages_of(run)))):
        reporter.say("nothing has failed: there is nothing to score again")
        return
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    with reporter.progress("loading what gives reward"):
        provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    if isinstance(environment, NeedsReference) and run.reference.exists():
        environment.set_reference(read_rollouts(run.reference))
    stages = [
        _rescored(run, stage, environment, loaded, reporter, failed_only=failed_only)
        for stage in stages_of(run)
    ]
    old = left_out(run)
    told = {"changes": changes, "failed_only": failed_only, "left_out": old}
    fill = partial(_fill, run, loaded, environment, stages, target.name, told)
    try:
        create_folder(target, fill)
    except FileExistsError:
        raise taken(target) from None
    _print(reporter, read_json(target / FILE), environment)
    if old:
        reporter.warn(f"of the old scores, and not in the new folder: {', '.join(old)}")
    reporter.say(f"\nreport: {write_report(target)}")


def left_out(run: RunDirectory) -> list[str]:
    """What of a run is not scored again: policies without skill, the steps of training, and so on.

    It would stand beside other scores than its own.
    """
    parts = (run.probe, run.modes, run.training.parent, run.added)
    return [part.name for part in parts if part.exists()]


def _has_failed(path: Path) -> bool:
    return any(score.error for score in read_scored_rollouts(path)[1])


def taken(target: Path) -> UsageError:
    """The error for a folder that is there."""
    return UsageError(f"{target} exists already", "Name another folder with --output.")


def failed_places(scope: Scope, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[int]:
    """The places of what failed, with all that must be scored together with it."""
    keys: list[object] = list(range(len(rollouts)))
    if scope != "rollout":
        keys = [r.prompt_id if scope == "prompt" else r.set_id for r in rollouts]
    failed = {key for key, score in zip(keys, scores, strict=True) if score.error}
    return [n for n, key in enumerate(keys) if key in failed]


def _rescored(
    run: RunDirectory,
    stage: str,
    environment: Environment,
    loaded: LoadedConfig,
    reporter: Reporter,
    *,
    failed_only: bool,
) -> Rescored:
    rollouts, before = read_scored_rollouts(run.rollouts(stage))
    places = (
        failed_places(environment.scope, rollouts, before)
        if failed_only
        else list(range(len(rollouts)))
    )
    try:
        with reporter.progress(f"scoring {len(places):,} replies of {stage}"):
            fresh = environment.score([rollouts[n] for n in places]) if places else []
    except BudgetSpentError as error:
        raise EquipoiseError(str(error), BUDGET_REMEDY) from error
    new = dict(zip(places, fresh, strict=True))
    after = [
        new[n] if n in new and _is_wanted(old, failed_only=failed_only) else old
        for n, old in enumerate(before)
    ]
    rate = loaded.config.equipoise.max_failure_rate
    refuse_failures(after, rate, f"the {stage} evaluation, scored again")
    return Rescored(stage, rollouts, before, after)


def _is_wanted(old: Score, *, failed_only: bool) -> bool:
    """Whether a reply takes its new score; what was never replied has none to take."""
    return NO_REPLY not in old.evidence and (old.error is not None or not failed_only)


# --- what is written of it -----------------------------------------------------------------------


def _fill(
    run: RunDirectory,
    loaded: LoadedConfig,
    environment: Environment,
    stages: Sequence[Rescored],
    name: str,
    how: Mapping[str, Any],
    folder: Path,
) -> None:
    new = RunDirectory(folder)
    for path in (run.provenance, run.prompts, manifest_path(run.prompts), run.reference):
        _copy(path, folder)
    for path in (run.history, run.code_diff):
        _copy(path, folder)
    write_text(new.config, loaded.to_yaml())
    _update(new, run, loaded, environment, name, how)
    for stage in stages:
        _write_stage(run, new, loaded, environment, stage)
    content = _changed(stages, environment, loaded)
    write_json(folder / FILE, content)
    both = {stage.stage: environment.measure(stage.rollouts, stage.after) for stage in stages}
    if {BASELINE, FINAL} <= both.keys():
        settings = loaded.config.equipoise.evaluation.statistics
        compared = compare(both[BASELINE], both[FINAL], settings)
        write_json(new.comparison, comparison_dict(compared))
        record_files(new, new.comparison)
    record_files(new, new.config, *(new.evaluation(stage.stage).parent for stage in stages))


def _copy(path: Path, folder: Path) -> None:
    if path.is_file():
        shutil.copyfile(path, folder / path.name)


def _update(
    new: RunDirectory,
    run: RunDirectory,
    loaded: LoadedConfig,
    environment: Environment,
    name: str,
    how: Mapping[str, Any],
) -> None:
    """The provenance of the run, with what scores it now and what did before."""
    before = read_provenance(run.provenance)
    sources = dict(environment.sources()) if isinstance(environment, HasSources) else {}
    code = code_hash(loaded.environment_class)
    told = {
        "of": str(run.root.resolve()),
        "time": now(),
        "command": command_line(),
        "git": git_state(),
        **how,
        "sources_before": before.get("sources", {}),
        "environment_before": before.get("hashes", {}).get("environment"),
    }
    changed = {"run_name": name, "rescored": told, "hashes": {"environment": code}}
    if sources:
        changed["sources"] = sources
    # What the copy has sealed is the old run's.
    update_provenance(new.provenance, {"files": dict.fromkeys(before.get("files", {}))} | changed)


def _write_stage(
    run: RunDirectory,
    new: RunDirectory,
    loaded: LoadedConfig,
    environment: Environment,
    stage: Rescored,
) -> None:
    old = read_json(run.evaluation(stage.stage))
    took = ("prompt_tokens", "completion_tokens", "generation_time_seconds")
    account = {name: old[name] for name in took if name in old}
    settings = loaded.config.equipoise.evaluation
    write_evaluation(
        new,
        stage.stage,
        environment,
        stage.rollouts,
        stage.after,
        settings,
        str(old["model"]),
        account,
    )
    pairs = zip(stage.rollouts, stage.before, strict=True)
    rows = ({"prompt_id": rollout.prompt_id} | asdict(score) for rollout, score in pairs)
    write_jsonl(new.evaluation(stage.stage).with_name(BEFORE), rows)


def _changed(
    stages: Sequence[Rescored], environment: Environment, loaded: LoadedConfig
) -> dict[str, Any]:
    """The content of rescored.json."""
    settings = loaded.config.equipoise.evaluation.statistics
    content: dict[str, Any] = {"schema": 1, "confidence": settings.confidence, "stages": {}}
    for stage in stages:
        before, after = (
            environment.measure(stage.rollouts, scores) for scores in (stage.before, stage.after)
        )
        compared = comparison_dict(compare(before, after, settings), "before", "rescored")
        content["stages"][stage.stage] = {
            **_counts(stage),
            "metrics": compared["metrics"],
            "most_changed": list(_most_changed(stage)),
        }
    return content


def _counts(stage: Rescored) -> dict[str, Any]:
    pairs = list(zip(stage.before, stage.after, strict=True))
    known = [(a.value, b.value) for a, b in pairs if a.value is not None and b.value is not None]
    return {
        "rollouts": len(pairs),
        "values_changed": sum(a != b for a, b in known),
        "scored_now": sum(a.value is None and b.value is not None for a, b in pairs),
        "failed_now": sum(a.value is not None and b.value is None for a, b in pairs),
        "failures": dict(Counter(b.error.kind for _, b in pairs if b.error)),
        "reward_before": fmean(a for a, _ in known) if known else None,
        "reward_after": fmean(b for _, b in known) if known else None,
    }


def _most_changed(stage: Rescored) -> Iterator[dict[str, Any]]:
    """The replies whose reward changed most."""
    changes = [
        (abs(new.value - old.value), n)
        for n, (old, new) in enumerate(zip(stage.before, stage.after, strict=True))
        if old.value is not None and new.value is not None and old.value != new.value
    ]
    for _, n in sorted(changes, key=lambda pair: (-pair[0], pair[1]))[:_EXAMPLES]:
        yield {
            "line": n + 1,
            "prompt": stage.rollouts[n].prompt_id,
            "completion": stage.rollouts[n].completion,
            "before": stage.before[n].value,
            "after": stage.after[n].value,
        }


def _print(reporter: Reporter, content: Mapping[str, Any], environment: Environment) -> None:
    names = ("rollouts", "values_changed", "scored_now", "failed_now")
    columns = [Column("stage"), *(Column(name.replace("_", " ")) for name in names)]
    columns += [Column("reward before"), Column("reward after")]
    rows = [
        (stage, *(f"{told[name]:,}" for name in names), *map(number, _rewards(told)))
        for stage, told in content["stages"].items()
    ]
    reporter.table("What changed", columns, rows, all_in=FILE)
    for stage, told in content["stages"].items():
        if told["values_changed"] or told["scored_now"] or told["failed_now"]:
            title = f"{stage}: the same replies as they were scored and as they are"
            words = presentation_of(environment).words
            print_comparison(
                reporter, told, words, title=title, stages=("before", "rescored"), all_in=FILE
            )


def _rewards(told: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return told["reward_before"], told["reward_after"]
