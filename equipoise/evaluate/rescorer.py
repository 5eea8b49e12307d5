"""Stored replies scored again: those of a stage, and those of policies without skill."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from environments.base import REWARD, IncompleteSetError, Rollout, Scope, Score
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.prompts import BUDGET_REMEDY
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.statistics.trivial import BEST_OF_N, best_of_n
from equipoise.terminal.console import Reporter
from equipoise.train.stages.around_training import NO_REPLY
from equipoise.train.stages.failures import refuse_unmeasured
from equipoise.train.stages.probe import (
    UNTRAINED,
    Scored,
    Untrained,
    policy_rollouts,
    probe_content,
    read_probe,
)

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
        new_scores = dict(
            zip(indices, self._score(name, [rollouts[n] for n in indices]), strict=True)
        )
        after = [
            new_scores[n] if n in new_scores and self._takes_new(score) else score
            for n, score in enumerate(before)
        ]
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

    def _takes_new(self, score: Score) -> bool:
        """Whether a reply takes its new score; what was never replied has none to take."""
        return NO_REPLY not in score.evidence and (score.error is not None or not self.failed_only)

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
        by_name[BEST_OF_N] = rescorer.fresh(f"the policy {BEST_OF_N!r}", _best(rescorer, untrained))
    scored = {name: by_name[name] for name in before["policies"]}
    statistics = rescorer.loaded.config.equipoise.evaluation.statistics
    constants = {
        name: {**constant, "worth": None} for name, constant in before["constants"].items()
    }
    content = probe_content(rescorer.environment, scored, constants, statistics)
    for name in _CHOSEN:
        content["policies"][name]["note"] += f", {_BY_OLD}"
    return Policies(before, content, scored)


def _best(rescorer: Rescorer, untrained: Rescored) -> list[Rollout]:
    copies = rescorer.loaded.env_settings.least_generations
    drawn = Untrained((), untrained.rollouts, untrained.after, copies)
    return drawn.replying(best_of_n(untrained.rollouts, untrained.after))


def failed_files(run: RunDirectory, stages: Sequence[str]) -> bool:
    """Whether anything that would be scored again has failed."""
    greedy = filter(Path.is_file, [run.greedy])
    paths = [*map(run.rollouts, stages), *stored_policies(run).values(), *greedy]
    return any(score.error for path in paths for score in read_scored_rollouts(path)[1])
