"""Stored rollouts of a run, scored as it is done today, in a run directory of their own.

Beside what a run has: `<stage>/scores_before.jsonl`, the scores as they were, line by line with
rollouts.jsonl, `probe/before/` and modes_before.json, what was there, and rescored.json, what
changed.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from data_prep.files import create_folder, read_json, write_json, write_jsonl, write_text
from data_prep.records import manifest_path
from environments.base import REWARD, IncompleteSetError, Rollout, Scope, Score
from environments.chat import BudgetSpentError
from environments.contract import Environment
from environments.presentation import Presentation
from equipoise.config import LoadedConfig
from equipoise.config.compose import differences
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import provide_models
from equipoise.report.renderers import print_beside, print_comparison
from equipoise.report.report import write_report
from equipoise.report.run_files import RunFiles
from equipoise.report.words import figure, plain_name
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import (
    code_hash,
    command_line,
    git_state,
    now,
)
from equipoise.run.prompts import BUDGET_REMEDY
from equipoise.run.rollouts import (
    read_rollouts,
    read_scored_rollouts,
    read_stage_rollouts,
    refuse_other_sizes,
    write_rollouts,
)
from equipoise.run.seals import OpenedRun, record_files
from equipoise.statistics.compare import compare, comparison_dict
from equipoise.statistics.trivial import BEST_OF_N, best_of_n
from equipoise.terminal.console import Column, Reporter
from equipoise.train.pipeline import stage_comparison
from equipoise.train.stages.around_training import BASELINE, FINAL, NO_REPLY, write_evaluation
from equipoise.train.stages.job import check_environment, refuse_unmeasured
from equipoise.train.stages.modes import modes_content, own_modes
from equipoise.train.stages.probe import (
    UNTRAINED,
    Scored,
    Untrained,
    compare_with_trained,
    fill_probe,
    policy_rollouts,
    probe_content,
    read_probe,
)

# --- rescorer -------------------------------------------------------------------------------------
# Stored replies scored again: those of a stage, and those of policies without skill.


#: Policies that were chosen by their reward among replies which no run keeps.
_CHOSEN = ("constant", "declining")
_BY_OLD = "chosen by the old scores"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rescored:
    """The replies of a stage or a policy, with their scores before and after rescoring."""

    name: str
    rollouts: Sequence[Rollout]
    before: Sequence[Score]
    after: Sequence[Score]

    @property
    def scored(self) -> Scored:
        """The replies with the new scores."""
        return self.rollouts, self.after


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a probe: the old and the new content of probe.json, and what it is of."""

    before: Mapping[str, Any]
    content: Mapping[str, Any]
    scored: Mapping[str, Scored]

    def rewards(self) -> dict[str, dict[str, float | None]]:
        """The mean reward of each by the old scores and by the new ones."""
        before, after = (content["policies"] for content in (self.before, self.content))
        return {
            name: {
                "reward_before": before[name]["metrics"][REWARD]["value"],
                "reward_after": policy["metrics"][REWARD]["value"],
            }
            for name, policy in after.items()
        }


@dataclass(frozen=True, slots=True)
class Rescorer:
    """A rescoring of stored replies; `failed_only` limits it to what had failed."""

    environment: Environment
    loaded: LoadedConfig
    failed_only: bool
    reporter: Reporter

    def rescore(self, name: str, rollouts: Sequence[Rollout], before: Sequence[Score]) -> Rescored:
        """Score replies again. Raises `EquipoiseError` where too many cannot be scored."""
        indices = (
            failed_indices(self.environment.scope, rollouts, before)
            if self.failed_only
            else list(range(len(rollouts)))
        )
        after = list(before)
        new_scores = self._score(name, [rollouts[n] for n in indices])
        for n, score in zip(indices, new_scores, strict=True):
            # What was never replied has no score to take.
            if NO_REPLY not in before[n].evidence and (before[n].error or not self.failed_only):
                after[n] = score
        self._refuse(name, after)
        return Rescored(name, rollouts, before, after)

    def fresh(self, name: str, rollouts: Sequence[Rollout]) -> Scored:
        """Replies that have no scores yet."""
        scores = self._score(name, rollouts)
        self._refuse(name, scores)
        return rollouts, scores

    def _score(self, name: str, rollouts: Sequence[Rollout]) -> list[Score]:
        with self.reporter.progress(f"scoring {len(rollouts):,} replies of {name}"):
            try:
                return within_budget(lambda: self.environment.score(rollouts)) if rollouts else []
            except IncompleteSetError as error:  # of a file without a seal
                raise EquipoiseError(
                    "rescore.incomplete-set",
                    f"{name} cannot be scored: {error}",
                    "Put its file back from a copy.",
                ) from error

    def _refuse(self, name: str, scores: Sequence[Score]) -> None:
        rate = self.loaded.config.equipoise.max_failure_rate
        if missing := refuse_unmeasured(scores, rate, f"{name}, scored again"):
            self.reporter.warn(missing)


def within_budget(call: Callable[[], T]) -> T:
    """Return the call's result. Raises `EquipoiseError` if a budget is used up meanwhile."""
    try:
        return call()
    except BudgetSpentError as error:
        raise EquipoiseError(error.code, str(error), BUDGET_REMEDY) from error


def failed_indices(scope: Scope, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[int]:
    """The indices of what failed, with all that must be scored together with it."""
    keys: list[object] = list(range(len(rollouts)))
    if scope != "rollout":
        keys = [r.prompt_id if scope == "prompt" else r.set_id for r in rollouts]
    failed = {key for key, score in zip(keys, scores, strict=True) if score.error}
    return [n for n, key in enumerate(keys) if key in failed]


# --- policies without skill ----------------------------------------------------------------------


def stored_policies(run: RunDirectory) -> dict[str, Path]:
    """Policy -> its scored replies, without the untrained model; empty where one has none.

    The best of n is chosen anew among the untrained model's replies, so it needs no file.
    """
    if not (run.probe / "probe.json").is_file():
        return {}
    names = [name for name in read_probe(run)["policies"] if name not in (UNTRAINED, BEST_OF_N)]
    paths = {name: policy_rollouts(run, name) for name in names}
    return paths if all(path.is_file() for path in paths.values()) else {}


def rescore_policies(run: RunDirectory, rescorer: Rescorer, untrained: Rescored) -> Policies:
    """Every policy of a run with today's scores, and its figures by them.

    The constant replies stay what they are: they were searched on training prompts, among replies
    that are not kept.
    """
    policies = {
        name: rescorer.rescore(f"the policy {name!r}", *read_scored_rollouts(path))
        for name, path in stored_policies(run).items()
    }
    by_name = {name: policy.scored for name, policy in policies.items()}
    by_name[UNTRAINED] = untrained.scored
    before = read_probe(run)
    if BEST_OF_N in before["policies"]:
        copies = rescorer.loaded.env_settings.least_generations
        drawn = Untrained((), *untrained.scored, copies)
        best = drawn.replying(best_of_n(*untrained.scored))
        by_name[BEST_OF_N] = rescorer.fresh(f"the policy {BEST_OF_N!r}", best)
    scored = {name: by_name[name] for name in before["policies"]}
    statistics = rescorer.loaded.config.equipoise.evaluation.statistics
    constants = {
        name: {**constant, "worth": None} for name, constant in before["constants"].items()
    }
    content = probe_content(rescorer.environment, scored, constants, statistics)
    for name in _CHOSEN:
        content["policies"][name]["note"] += f", {_BY_OLD}"
    return Policies(before, content, scored)


def failed_files(run: RunDirectory, stages: Sequence[str]) -> bool:
    """Whether anything that would be scored again has failed."""
    greedy = filter(Path.is_file, [run.greedy])
    paths = [*map(run.rollouts, stages), *stored_policies(run).values(), *greedy]
    return any(score.error for path in paths for score in read_scored_rollouts(path)[1])


# --- rescore --------------------------------------------------------------------------------------


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
    changed = differences(run_config.resolved, new_config.resolved)
    refused = [key for key in changed if not key.startswith(MAY_CHANGE) or key in _FIXED]
    if refused:
        raise UsageError(
            "rescore.fixed-keys",
            f"rescoring changes how stored replies are scored, and not {', '.join(refused)}",
            "Leave these keys out; env.* and the draws of equipoise.evaluation may be given.",
        )
    return {key: {"before": before, "after": after} for key, (before, after) in changed.items()}


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
    modes = None
    if _modes_can_be_made(run):
        by_stage = {name: stage.scored for name, stage in stages.items()}
        settings = rescorer.loaded.config.equipoise.evaluation.statistics
        with rescorer.reporter.progress("answering in other ways"):
            modes = within_budget(lambda: own_modes(rescorer.environment, by_stage, settings))
    return RescoredRun(stages, policies, greedy, modes)


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
    for path in filter(Path.is_file, copied):
        shutil.copyfile(path, folder / path.name)
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
        pairs = [(a.value, b.value) for a, b in zip(stage.before, stage.after, strict=True)]
        rewards = [(a, b) for a, b in pairs if a is not None and b is not None]
        content["stages"][name] = {
            "rollouts": len(pairs),
            "values_changed": sum(a != b for a, b in rewards),
            "scored_now": sum(a is None and b is not None for a, b in pairs),
            "failed_now": sum(a is not None and b is None for a, b in pairs),
            "failures": dict(Counter(score.error.kind for score in stage.after if score.error)),
            "reward_before": fmean(a for a, _ in rewards) if rewards else None,
            "reward_after": fmean(b for _, b in rewards) if rewards else None,
            "metrics": comparison_dict(changes, "before", "rescored")["metrics"],
            "most_changed": list(_most_changed(stage)),
        }
    if rescored.policies:
        content["policies"] = rescored.policies.rewards()
    return content


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
