"""The one Ray actor that serves every environment to NeMo-RL."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from environments.chat.accounting import spent
from equipoise.models.task_environment import build_environment
from equipoise.run.rollouts import choose, read_rollouts
from equipoise.train.nemo_rl.process import beside_driver
from equipoise.train.nemo_rl.scoring import MessageLog, StepScorer, StepSummary
from equipoise.train.nemo_rl.together import single_turn_return


@ray.remote(max_restarts=-1, max_task_retries=-1)
class _Actor(EnvironmentInterface):
    """Scores in a process of its own; all that it needs to start again is in its arguments."""

    def __init__(
        self,
        class_name: str,
        settings: Mapping[str, Any],
        cache_dir: str,
        reference: str,
        kept: Mapping[str, int],
    ) -> None:
        environment = build_environment(class_name, settings, cache_dir)
        self._scorer = StepScorer(
            environment, partial(choose, limit=kept["most"], seed=kept["seed"])
        )
        self._reference = Path(reference)
        if self._reference.exists():
            self.load_reference()

    def step(
        self, message_log_batch: Sequence[MessageLog], metadata: list[dict[str, Any]]
    ) -> EnvironmentReturn:
        """Score a batch; every conversation ends with its first reply."""
        return single_turn_return(self._scorer.rewards(message_log_batch, metadata), metadata)

    def load_reference(self) -> None:
        """Hand the frozen model's rollouts to an environment that needs them."""
        if self._scorer.environment.reference_generations:
            self._scorer.environment.set_reference(read_rollouts(self._reference))

    def summary(self, split: str) -> StepSummary | None:
        """See `StepScorer.summary`."""
        return self._scorer.summary(split)

    def unseen(self, paths: Sequence[str]) -> list[str]:
        """Those of the driver's files and folders that are not there for this process."""
        return [path for path in paths if not Path(path).exists()]

    def sources(self) -> dict[str, str]:
        """Return the reward's sources, as this process sees them."""
        return dict(self._scorer.environment.sources())

    def spent(self) -> dict[str, dict[str, float]]:
        """Count what this process has asked of other models since it started."""
        return spent()

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing: NeMo-RL declares the method and does not call it."""
        return batch, {}

    def shutdown(self) -> None:
        """Nothing is open."""


class EnvironmentActor:
    """A stand-in for the actor's class: it starts `_Actor` where the configuration says.

    NeMo-RL calls `EnvironmentActor.options(runtime_env=...).remote(settings)` with the
    configuration's `env.<name>`, and says of no actor on which node it belongs.
    """

    @staticmethod
    def options(**options: Any) -> SimpleNamespace:
        """Ray's options that NeMo-RL sets; what comes back has `remote`."""
        return SimpleNamespace(remote=partial(_start, options))


def _start(options: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Start an actor where `placement` says."""
    arguments = {name: value for name, value in settings.items() if name != "placement"}
    placement = settings["placement"]
    # Where a resource is named, Ray sets a CPU aside, too; NeMo-RL's workers may hold them all.
    options = {**options, "num_cpus": 0, "num_gpus": placement["num_gpus"]}
    options["resources"] = dict(placement["resources"])
    if placement["node"] != "any":  # there it reads what the driver reads, packages and caches too
        options |= beside_driver()
    return _Actor.options(**options).remote(**arguments)
