"""GRPO with NeMo-RL's functions, called as its `examples/run_grpo.py` calls them.

Nothing of NeMo-RL is replaced. What a run adds is handed over as arguments: prompts, an
environment's actor, a policy factory and a logger. Evaluations are validations of their own.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from equipoise.config import Config
from equipoise.config.nemo_rl.assumptions import RELEASE, TRIED, unmet
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped, StopRequest, deferring
from equipoise.run.evaluation import use_reference
from equipoise.run.history import Row
from equipoise.run.job import Job
from equipoise.train.nemo_rl.checkpoints import latest_checkpoint, seal_newest
from equipoise.train.nemo_rl.evaluations import (
    Sampler,
    after_last_step,
    before_first_step,
    refuse_other_view,
)
from equipoise.train.nemo_rl.history import HistoryLogger
from equipoise.train.nemo_rl.process import WAITING, reason_of, with_room_to_wait
from equipoise.train.nemo_rl.reference_policy import policy_with_first_reference

#: Seconds of a Slurm job that are kept for the end of a step and for its checkpoint.
_TO_SAVE = 300


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Changes of a rehearsal: what stands in for NeMo-RL's workers, and when it is stopped."""

    stand_in: Callable[[], AbstractContextManager[None]] = nullcontext
    stop_at: int | None = None  # a step
    #: Gets the policy and the replies that were generated last.
    at_end: Callable[[Any, Any], None] = lambda policy, replies: None  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class Course:
    """The steps to take, how many are done, and what takes each row of the history."""

    done: int
    steps: int
    on_row: Callable[[Row], None]
    rehearsal: Rehearsal


def run_grpo(job: Job, path: Path, course: Course) -> None:
    """Evaluate, train and evaluate, as the configuration at `path` says.

    Raises `Stopped` where a signal, a rehearsal or the time ends it after a step that is saved.
    """
    refuse_other_version()
    with one_error():
        nemo = _set_up(job, path)
    try:
        # Ray has put its own handler for SIGTERM into this process meanwhile.
        with deferring(job.reporter.warn) as stop:
            refuse_other_view(job, nemo.environment)
            use_reference(job)  # the actor of a resumed run has read it itself
            if course.done == 0:
                with _sampling(job, nemo, 0, stop) as frozen:
                    before_first_step(job, frozen, nemo.environment, course.steps)
            if course.done < course.steps:
                _train(job, nemo, course, stop)
                if is_asynchronous(job.config):
                    return  # NeMo-RL has ended its workers
            with _sampling(job, nemo, course.steps, stop) as trained:
                after_last_step(job, trained)
            course.rehearsal.at_end(nemo.policy, trained.last)
    finally:
        _end(nemo)


def _train(job: Job, nemo: SimpleNamespace, course: Course, stop: StopRequest) -> None:
    """Take all steps. Raises `Stopped` where NeMo-RL saves and ends before the last one."""
    from nemo_rl.algorithms import grpo

    checkpointing = nemo.config.checkpointing
    checkpointing["checkpoint_must_save_by"] = save_by(
        checkpointing["checkpoint_must_save_by"], os.environ
    )
    history = HistoryLogger(
        nemo.logger,
        nemo.environment,
        checkpointing,
        job,
        course.steps,
        course.on_row,
        stop,
        course.rehearsal.stop_at,
    )
    given = {
        "policy": nemo.policy,
        "policy_generation": nemo.generation,
        "val_dataloader": nemo.val_loader,
        "tokenizer": nemo.tokenizer,
        "loss_fn": nemo.loss,
        "task_to_env": nemo.task_to_env,
        "val_task_to_env": nemo.task_to_env,
        "logger": history,
        "checkpointer": nemo.checkpointer,
        "grpo_save_state": nemo.state,
        "master_config": nemo.config,
    }
    if job.config.policy.generation.vllm_cfg.async_engine:
        given["policy_generation"] = with_room_to_wait(nemo.generation, WAITING)
    try:
        if is_asynchronous(job.config):
            settings = nemo.config.grpo
            settings = settings if isinstance(settings, dict) else settings.model_dump()
            age = settings["async_grpo"]["max_trajectory_age_steps"]
            grpo.async_grpo_train(**given, dataloader=nemo.loader, max_trajectory_age_steps=age)
        else:
            grpo.grpo_train(**given, wrapped_dataloader=nemo.loader)
    except Stopped:
        history.raise_error()
        raise
    finally:
        seal_newest(job.run.checkpoints, history.taken)
    history.raise_error()
    newest = latest_checkpoint(job.run.checkpoints)
    done = newest.step if newest else 0
    if done < course.steps and done == history.taken and checkpointing["checkpoint_must_save_by"]:
        raise Stopped("the time to save by has come")
    if done < course.steps:  # v0.7.0 prints an error of asynchronous training, and ends
        raise EquipoiseError(
            "nemo-rl.early-end",
            f"NeMo-RL's training ended after step {history.taken} of {course.steps}",
            "nemo_rl.log says why. Remove the cause, then continue with --resume.",
        )


def _set_up(job: Job, path: Path) -> SimpleNamespace:
    """Start Ray and the environment's actor, and have NeMo-RL make what it trains with."""
    import ray
    from nemo_rl.algorithms import grpo
    from nemo_rl.algorithms.utils import get_tokenizer
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.distributed import virtual_cluster
    from nemo_rl.models.generation import configure_generation_config
    from nemo_rl.models.policy.lm_policy import Policy
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
    from nemo_rl.utils.logger import get_next_experiment_dir
    from omegaconf import OmegaConf

    from equipoise.train.nemo_rl.actor import Calls, start_environment

    register_omegaconf_resolvers()
    settings: Any = OmegaConf.to_container(load_config(str(path)), resolve=True)
    config = grpo.MasterConfig(**settings)
    config.logger["log_dir"] = get_next_experiment_dir(config.logger["log_dir"])
    virtual_cluster.init_ray()
    # NeMo-RL's memory report would fail where another Ray runs on the machine.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    tokenizer = get_tokenizer(config.policy["tokenizer"])
    megatron = config.policy.get("megatron_cfg") or {}
    config.policy["generation"] = configure_generation_config(
        config.policy["generation"],
        tokenizer,
        has_refit_draft_weights=bool(config.policy["draft"]["enabled"]),
        trains_mtp=bool(megatron.get("mtp_num_layers")),
    )
    data, val_data = setup_response_data(tokenizer, config.data)
    actor = start_environment(job.loaded, job.run)
    names = (
        *("policy", "generation", "gym", "cluster", "loader", "val_loader", "loss", "logger"),
        *("checkpointer", "state", "config", "teachers", "aliases"),
    )
    made = grpo.setup(
        config,
        tokenizer,
        data,
        val_data,
        policy_factory=policy_with_first_reference(Policy, job.run.ledger),
    )
    return SimpleNamespace(
        tokenizer=tokenizer,
        environment=Calls(actor),
        task_to_env={job.environment.name: actor},
        **dict(zip(names, made, strict=True)),
    )


def is_asynchronous(config: Config) -> bool:
    """Whether NeMo-RL generates while it trains, and ends its workers with the training."""
    return config.grpo.async_grpo is not None and config.grpo.async_grpo.enabled


@contextmanager
def _sampling(job: Job, nemo: SimpleNamespace, step: int, stop: StopRequest) -> Iterator[Sampler]:
    """Yield what samples from the policy as it is now."""
    from nemo_rl.algorithms import grpo

    policy, generation = nemo.config.policy, nemo.generation
    grpo.refit_policy_generation(
        nemo.policy,
        generation,
        policy["generation"]["colocated"]["enabled"],
        _refit_buffer_size_gb=policy.get("refit_buffer_size_gb"),
    )
    yield Sampler(job, step, grpo.validate, generation, nemo.tokenizer, nemo.config, stop)
    generation.finish_generation()


def _end(nemo: SimpleNamespace) -> None:
    """End what works in the background, while Ray runs: NeMo-RL's objects ask it for their end."""
    if monitor := nemo.logger.gpu_monitor:
        monitor.stop()
    # Main renames a checkpoint in a thread when all is written; v0.7.0 does so at once.
    if shutdown := getattr(nemo.checkpointer, "shutdown", None):
        shutdown()
    nemo.generation.shutdown()
    nemo.policy.shutdown()


def save_by(setting: str | None, environment: Mapping[str, str]) -> str | None:
    """Return NeMo-RL's `checkpoint_must_save_by`; a Slurm job's own end where none is set."""
    end = environment.get("SLURM_JOB_END_TIME")
    if setting or not end:
        return setting
    minutes, seconds = divmod(max(0, int(end) - int(time.time()) - _TO_SAVE), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24:02}:{hours % 24:02}:{minutes:02}:{seconds:02}"


# --- refusals -------------------------------------------------------------------------------------


def refuse_other_version() -> None:
    """Raise `EquipoiseError` where NeMo-RL lacks what is called here."""
    if missing := list(unmet()):
        raise EquipoiseError(
            "nemo-rl.other-version",
            f"this NeMo-RL cannot be used: {'; '.join(missing)}",
            f"Equipoise was tried with {' and '.join(TRIED)}: take NeMo-RL {RELEASE}, or a newer "
            "Equipoise.",
        )


@contextmanager
def one_error() -> Iterator[None]:
    """Raise one `EquipoiseError` for what NeMo-RL refuses before it trains.

    The traceback goes into the log. Bugs keep theirs, and so does a GPU that is full.
    """
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:
        if isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)):
            raise
        if _RAY_STARTS & {frame.name for frame in traceback.extract_tb(error.__traceback__)}:
            refusal = _no_ray(error)
        elif isinstance(error, _REFUSALS) or type(error).__module__.startswith("ray."):
            refusal = EquipoiseError(
                "nemo-rl.refused",
                f"NeMo-RL did not start: {reason_of(error)}",
                "Change what it names. nemo_rl.log has the traceback, and nemo_rl.yaml what it "
                "has read.",
            )
        else:
            raise
        traceback.print_exception(error)
        # What NeMo-RL has made calls Ray when it is deleted, so not after Ray's end.
        traceback.clear_frames(error.__traceback__)
        raise refusal from error


#: How NeMo-RL and its workers refuse a configuration: pydantic's errors are values, too.
_REFUSALS = (AssertionError, ValueError, NotImplementedError, RuntimeError)
#: NeMo-RL's function and the rehearsal's.
_RAY_STARTS = {"init_ray", "start_ray"}


def _no_ray(error: Exception) -> EquipoiseError:
    """Say what to do where Ray has not started, or cannot be joined."""
    address = os.environ.get("RAY_ADDRESS")
    remedy = (
        f"RAY_ADDRESS is {address}: unset it, or start Ray there."
        if address
        else "On a loaded machine start again; else end another Ray with `ray stop --force`, and "
        "see whether RAY_TMPDIR (/tmp) has room. Its logs are in session_latest/logs there."
    )
    return EquipoiseError("nemo-rl.no-ray", f"Ray did not start: {reason_of(error)}", remedy)
