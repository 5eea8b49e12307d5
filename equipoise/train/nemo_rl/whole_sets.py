"""NeMo-RL's replay buffer and collector of asynchronous GRPO, for whole counterfactual sets.

NeMo-RL puts the generations of one prompt into the buffer when they are there, each group for the
step that is to train on it. Here groups wait until their set is whole and come into the buffer
together. So every count of the buffer is of whole sets, and what is filled up, after a restart or
a failure, is whole sets, too: the prompts of a batch come in sets. When a step takes its groups,
the environment scores them by one call, as after synchronous rollouts.
"""

# ruff: noqa: E402
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.train.nemo_rl.process import before_nemo_rl

before_nemo_rl()  # it is imported by processes that NeMo-RL starts, too

import ray
from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBufferImpl
from nemo_rl.algorithms.async_utils.trajectory_collector import AsyncTrajectoryCollector

from equipoise.train.nemo_rl.together import reward_metrics, rewards_of

#: So often the collector looks whether a group is missing after all.
_LOOK = 5.0  # s


class PromptsSpentError(RuntimeError):
    """No prompts are left for a step that lacks some."""


class WholeSetsImpl(ReplayBufferImpl):
    """A replay buffer of whole, scored sets; several threads call it."""

    def __init__(self, environment: Any, set_size: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._environment, self._set_size = environment, set_size
        #: By step and set, then by prompt: groups whose set is not whole, and their weights.
        self._waiting: dict[tuple[int, str], dict[str, tuple[dict[str, Any], int]]] = {}
        self._gate = threading.Lock()
        self._spent = False

    def add(
        self, trajectory: dict[str, Any], weight_version: int, target_weight_version: int
    ) -> str:
        """Keep a group; "full" where its set is whole with it and does not fit."""
        with self._gate:
            info = trajectory["batch"]["extra_env_info"][0]
            key = (target_weight_version, info["set_id"])
            groups = self._waiting.get(key, {}) | {info["prompt_id"]: (trajectory, weight_version)}
            if len(groups) < self._set_size:
                self._waiting[key] = groups
                return "success"
            if self.size() + len(groups) > self.max_size:
                return "full"
            self._waiting.pop(key, None)
            # One age for a set: else a part of it could become too old.
            oldest = min(version for _, version in groups.values())
            for group, _ in groups.values():
                super().add(group, oldest, target_weight_version)
            return "success"

    def sample(self, **request: Any) -> dict[str, Any] | None:
        """A step's groups with their rewards; None while some are missing.

        Raises `PromptsSpentError` where none will come.
        """
        spent = self._spent  # before it looks: what comes meanwhile is taken by the next call
        sampled: dict[str, Any] | None = super().sample(**request)
        if sampled is None:
            _refuse_to_wait(spent)
            return None
        step = request["current_weight_version"]
        with self._gate:  # sets of this step that are not whole will not become so
            self._waiting = {key: groups for key, groups in self._waiting.items() if key[0] > step}
        score(self._environment, sampled["trajectories"])
        return sampled

    def has_complete_batch(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a step can be taken. Raises `PromptsSpentError` where it never can."""
        spent = self._spent
        complete = bool(super().has_complete_batch(*args, **kwargs))
        if not complete:
            _refuse_to_wait(spent)
        return complete

    def end(self) -> None:
        """Note that nothing more will come."""
        self._spent = True


def _refuse_to_wait(spent: bool) -> None:
    if spent:
        raise PromptsSpentError("the prompts are used up before the last step: replies failed")


def score(environment: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Write the rewards of whole sets into their groups."""
    batches = [group["batch"] for group in groups]
    conversations = [messages for batch in batches for messages in batch["message_log"]]
    metadata = [info for batch in batches for info in batch["extra_env_info"]]
    rewards = rewards_of(environment, conversations, metadata)
    sizes = [len(batch["message_log"]) for batch in batches]
    for group, group_rewards in zip(groups, rewards.split(sizes), strict=True):
        group["batch"]["total_reward"] = group_rewards.clone()
        group["rollout_metrics"] |= reward_metrics(group_rewards)


@dataclass(frozen=True, slots=True)
class _NotifyWhenExhausted:
    """Batches of a dataloader, and what is done after the last, before its end is seen."""

    batches: Any
    at_end: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.batches
        finally:
            self.at_end()

    def state_dict(self) -> Any:
        """Return the dataloader's own state."""
        return self.batches.state_dict()


class CollectorImpl(AsyncTrajectoryCollector.__ray_metadata__.modified_class):
    """NeMo-RL's collector, which takes a batch when a step needs it, and says when none is left.

    NeMo-RL sleeps from the start of a step's last group to the next weights, and generates with
    these for later steps alone: it would wait for ever for a group that failed (v0.7.0; main
    wakes, but the step whose turn it is by then is none of its own any more).
    """

    def start_collection(self, dataloader: Any) -> None:
        """Begin; the groups that are on their way at the end come before it is told."""
        super().start_collection(_NotifyWhenExhausted(dataloader, self._end))

    def _end(self) -> None:
        self.wait_for_pending_generations()
        ray.get(self.replay_buffer.end.remote())

    def _calculate_target_weights(self, generation_weight_version: int) -> list[int]:
        later: list[int] = super()._calculate_target_weights(generation_weight_version)
        return sorted({generation_weight_version, *later})

    def _should_pause_for_generation_limits(self) -> bool:
        return False  # `_process_batch` waits

    def _process_batch(self, batch: Any) -> None:
        while self.running and self._nothing_is_needed():
            self._generation_limit_cleared.wait(_LOOK)
        super()._process_batch(batch)

    def _nothing_is_needed(self) -> bool:
        self._generation_limit_cleared.clear()  # new weights set it, and on main a failure
        return bool(super()._should_pause_for_generation_limits())


#: A call of `sample` waits for the environment, and the others must not.
WholeSets = ray.remote(max_concurrency=8)(WholeSetsImpl)
Collector = ray.remote(CollectorImpl)
