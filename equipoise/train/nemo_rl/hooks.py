"""The eight names of `nemo_rl.algorithms.grpo` that are replaced while a run is watched.

NeMo-RL looks them up when it calls them, so its code stays as it is. A start checks that they are
there, see assumptions.py. Besides the original each replacement does this:

    Logger              the environment's metrics join NeMo-RL's, the history gets its row, and
                        no step's tokens are written
    TimeoutChecker      says that it is time to save and stop when a signal or failures ask for it
    validate            the reference and the baseline before the first step, the final
                        evaluation after the last
    run_multi_turn_rollout   the environment's metrics join those of the batch; the likeliest
                        replies, where these are asked for
    run_async_multi_turn_rollout   also, whole groups are scored together, see together.py
    Policy              keeps the reference policy of the first start when a run is resumed
    grpo_train, async_grpo_train   tell where the environment's actor is, and take signals over
"""

import inspect
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

from environments.base import PromptRecord, Rollout
from equipoise.config.task_code import set_size
from equipoise.errors import EquipoiseError
from equipoise.statistics.trivial import GREEDY
from equipoise.terminal.exits import Stopped, deferring
from equipoise.train.nemo_rl.process import beside_driver, reason_of
from equipoise.train.nemo_rl.reference_policy import policy_with_first_reference
from equipoise.train.nemo_rl.scoring import is_generated, to_rollouts
from equipoise.train.nemo_rl.together import collecting, end, replaced, scored_together
from equipoise.train.nemo_rl.watch import Watch
from equipoise.train.stages.around_training import Sample

_ROW = "row"
#: NeMo-RL looks up the one metric when it saves.
_NOT_VALIDATED: tuple[dict[str, float], dict[str, float]] = ({"accuracy": math.nan}, {})


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have NeMo-RL's GRPO tell `watch` what it does."""
    from nemo_rl.algorithms import grpo

    loggers: list[Any] = []
    with ExitStack() as stack:
        for name, replacement in _replacements(grpo, watch, loggers).items():
            stack.enter_context(replaced(grpo, name, replacement))
        try:
            yield
        finally:
            for logger in loggers:
                _end_monitor(logger)


def _replacements(grpo: ModuleType, watch: Watch, loggers: list[Any]) -> dict[str, Any]:
    return {
        "Logger": _watched_logger(grpo.Logger, watch, loggers),
        "TimeoutChecker": _watched_timeout(grpo.TimeoutChecker, watch),
        "validate": _watched_validate(grpo.validate, watch),
        "run_multi_turn_rollout": _watched_rollouts(grpo.run_multi_turn_rollout, watch),
        "run_async_multi_turn_rollout": _watched_rollouts(
            scored_together(grpo.run_async_multi_turn_rollout), watch
        ),
        "Policy": policy_with_first_reference(grpo.Policy, watch.job.run.ledger),
        "grpo_train": _watched_training(grpo.grpo_train, watch),
        "async_grpo_train": _watched_training(_in_whole_sets(grpo.async_grpo_train, watch), watch),
    }


def _end_monitor(logger: Any) -> None:
    """End the thread that asks Ray for GPU metrics: without Ray it would print so for ever."""
    monitor, logger.gpu_monitor = logger.gpu_monitor, None
    if monitor:
        monitor.stop()


def _watched_logger(logger: Any, watch: Watch, made: list[Any]) -> type:
    class WatchedLogger(logger):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

        def log_batched_dict_as_jsonl(self, to_log: Any, filename: str) -> None:
            # 75 bytes a padded token, 16 to 100 GB a run; training/rollouts.jsonl has a sample.
            if not filename.startswith("train_data"):
                super().log_batched_dict_as_jsonl(to_log, filename)

        def log_metrics(
            self, metrics: dict[str, Any], step: int, prefix: str = "", *args: Any, **kwargs: Any
        ) -> None:
            watch.on_metrics(metrics, step, prefix)
            super().log_metrics(metrics, step, prefix, *args, **kwargs)
            if prefix == "validation":
                watch.make_rankable(metrics, "val")

    return WatchedLogger


def _watched_rollouts(run: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def watched_run(*args: Any, **kwargs: Any) -> Any:
        # NeMo-RL's validation samples: it says `greedy=False`.
        batch, metrics = run(*args, **(kwargs | {"greedy": True} if watch.greedy else kwargs))
        watch.count_tokens(batch["message_log"])
        watch.on_rollouts(metrics)
        return batch, metrics

    return watched_run


def _watched_timeout(timeout: Any, watch: Watch) -> type:
    class WatchedTimeout(timeout):
        def check_save(self) -> bool:
            with _remembering(watch):
                stop = watch.should_stop()
            return bool(super().check_save()) or stop

    return WatchedTimeout


def _watched_training(train: Callable[..., None], watch: Watch) -> Callable[..., None]:
    signature = inspect.signature(train)

    def watched_train(*args: Any, **kwargs: Any) -> None:
        environments = signature.bind(*args, **kwargs).arguments["task_to_env"]
        # Ray has put its own handler for SIGTERM into this process meanwhile.
        with deferring(watch.job.reporter.warn) as stop:
            watch.stop_requested = stop
            watch.begin(_Actor(next(iter(environments.values()))))
            _pin_cluster()
            train(*args, **kwargs)

    return watched_train


def _in_whole_sets(train: Callable[..., None], watch: Watch) -> Callable[..., None]:
    """Asynchronous GRPO whose steps are scored as whole sets; its errors are raised.

    NeMo-RL's loop prints an error and goes on, or ends as if nothing were wrong (v0.7.0).
    """
    signature = inspect.signature(train)

    @wraps(train)
    def train_on_sets(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        environments = call.arguments["task_to_env"]
        call.arguments["task_to_env"] = collecting(environments)
        actor = next(iter(environments.values()))
        loaded = watch.job.loaded
        size = set_size(loaded.environment_class, loaded.env_settings)
        with whole_sets(actor, size), _said_clearly(watch):
            train(*call.args, **call.kwargs)
        if watch.error:
            raise watch.error
        if not watch.ended:
            raise _ended_early("nemo_rl.log says why")

    return train_on_sets


@contextmanager
def whole_sets(environment: Any, set_size: int) -> Iterator[None]:
    """Have asynchronous GRPO train on whole sets that `environment` scores, see whole_sets.py.

    NeMo-RL's trainer imports both names when it starts, and would have Ray place both actors on any
    node, the other ones included, where our code need not be.
    """
    from nemo_rl.algorithms import async_utils

    from equipoise.train.nemo_rl.whole_sets import Collector, WholeSets

    def buffer(**options: Any) -> SimpleNamespace:
        remote = WholeSets.options(**options, **beside_driver()).remote
        return SimpleNamespace(remote=partial(remote, environment, set_size))

    def collector(**options: Any) -> Any:
        return Collector.options(**options, **beside_driver())

    classes = {"ReplayBuffer": buffer, "AsyncTrajectoryCollector": collector}
    with ExitStack() as stack:
        for name, options in classes.items():
            stack.enter_context(replaced(async_utils, name, SimpleNamespace(options=options)))
        yield


@contextmanager
def _said_clearly(watch: Watch) -> Iterator[None]:
    """Raise the error that was raised here before, or one line; the log has the whole."""
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:
        if watch.error:
            raise watch.error from None
        traceback.print_exception(error)  # of waiting for the first step NeMo-RL prints none
        raise _ended_early(f"{reason_of(error)}; nemo_rl.log has more") from error


def _ended_early(reason: str) -> EquipoiseError:
    return EquipoiseError(
        "nemo-rl.early-end",
        f"NeMo-RL's asynchronous training ended before its last step, {reason}",
        "Remove the cause, then continue with --resume.",
    )


@contextmanager
def _remembering(watch: Watch) -> Iterator[None]:
    """Remember an exception: it ends the run even where NeMo-RL goes on."""
    if watch.error:
        raise watch.error
    try:
        yield
    except Exception as error:
        watch.error = error
        raise


def _pin_cluster() -> None:
    """Name this run's Ray to NeMo-RL's memory report, which fails where another one runs."""
    import ray

    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def _watched_validate(validate: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    signature = inspect.signature(validate)

    def watched_validate(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        sample = _sampler(validate, arguments, watch)
        with _remembering(watch):
            if arguments["step"] == 0:
                watch.before_first_step(sample)
            result = validate(*args, **kwargs) if watch.validates else _NOT_VALIDATED
            if arguments["step"] == watch.steps:
                watch.after_last_step(sample)
        return result

    return watched_validate


def _sampler(validate: Callable[..., Any], arguments: Mapping[str, Any], watch: Watch) -> Sample:
    """Sampling by NeMo-RL's own validation, whose environment only keeps what was generated.

    Before the first step a signal ends the run between two batches; after the last one it does
    not, for the model is not saved yet.
    """
    job, frozen = watch.job, arguments["step"] == 0
    size, task = job.config.equipoise.evaluation.batch_size, job.environment.name

    def draw(
        rows: Sequence[PromptRecord], done: int, bar: Callable[[int], None]
    ) -> Sequence[Rollout]:
        collector = _Collector(lambda more: bar(done + more))
        changes = {
            "val_dataloader": [_batch(rows, task, arguments["tokenizer"])],
            "val_task_to_env": {task: collector},
            "master_config": _for_one_batch(arguments["master_config"]),
            "logger": None,
        }
        validate(**{**arguments, **changes})
        return collector.rollouts

    def sample(records: Sequence[PromptRecord], generations: int, label: str) -> list[Rollout]:
        rows = [record for record in records for _ in range(generations)]
        rollouts: list[Rollout] = []
        with job.reporter.progress(label, len(rows)) as bar, _greedily(watch, label):
            for start in range(0, len(rows), size):
                if frozen and watch.stop_requested():
                    raise Stopped
                rollouts += draw(rows[start : start + size], start, bar)
        return rollouts

    return sample


@contextmanager
def _greedily(watch: Watch, stage: str) -> Iterator[None]:
    """Take the likeliest replies where the stage is of these."""
    watch.greedy = stage == GREEDY
    try:
        yield
    finally:
        watch.greedy = False


def _batch(records: Sequence[PromptRecord], task: str, tokenizer: Any) -> Any:
    from nemo_rl.data.collate_fn import rl_collate_fn

    from equipoise.train.nemo_rl.dataset import datum

    batch = [datum(record, task, tokenizer, None, idx) for idx, record in enumerate(records)]
    for number, row in enumerate(batch):
        row["extra_env_info"][_ROW] = number
    return rl_collate_fn(batch)


def _for_one_batch(config: Any) -> Any:
    """Return the configuration with which validation takes one batch as it is.

    `grpo` is a dictionary on v0.7.0 and a model on main.
    """
    changes = {
        "max_val_samples": 1,
        "val_batch_size": 1,
        "val_num_generations_per_prompt": 1,
    }
    grpo = config.grpo
    changed = {**grpo, **changes} if isinstance(grpo, dict) else grpo.model_copy(update=changes)
    return config.model_copy(update={"grpo": changed})


@dataclass(slots=True)
class _Collector:
    """Stands in for an environment's actor: keeps the rollouts and gives no reward."""

    progress: Callable[[int], None]
    _by_row: dict[int, Rollout] = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Rollout]:
        """Return the rollouts in the order in which they were asked for."""
        return [self._by_row[row] for row in sorted(self._by_row)]

    @property
    def step(self) -> SimpleNamespace:
        return SimpleNamespace(remote=self._step)

    def _step(self, messages: Any, metadata: Any) -> Any:
        if missing := sum(not is_generated(conversation) for conversation in messages):
            raise EquipoiseError(
                "nemo-rl.missing-replies",
                f"{missing} of {len(messages)} replies were not generated, nemo_rl.log says why",
                "Remove the cause, then continue with --resume.",
            )
        rollouts = to_rollouts(messages, metadata)
        rows = (info[_ROW] for info in metadata)
        self._by_row.update(zip(rows, rollouts, strict=True))
        self.progress(len(self._by_row))
        return end(messages, metadata)


@dataclass(frozen=True, slots=True)
class _Actor:
    """An environment's actor by plain calls, which wait for its answers."""

    handle: Any

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return the call of one of the actor's methods."""
        import ray

        remote = getattr(self.handle, method).remote
        return lambda *arguments: ray.get(remote(*arguments))
