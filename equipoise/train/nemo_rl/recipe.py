"""GRPO with NeMo-RL's functions, called as its `examples/run_grpo.py` calls them.

Nothing of NeMo-RL is replaced. What a run adds is handed over as arguments: prompts, an
environment's actor, a policy factory and a logger. Evaluations are rollouts of their own.
"""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from equipoise.train.nemo_rl.evaluations import Sampler, after_last_step, before_first_step
from equipoise.train.nemo_rl.history import HistoryLogger, latest_checkpoint
from equipoise.train.nemo_rl.process import WAITING, with_room_to_wait
from equipoise.train.nemo_rl.scoring import MessageLog

#: Seconds of a Slurm job that are kept for the end of a step and for its checkpoint.
_TO_SAVE = 300


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Changes of a rehearsal: what stands in for NeMo-RL's workers, and when it is stopped."""

    stand_in: Callable[[], AbstractContextManager[None]] = nullcontext
    stop_at: int | None = None  # a step
    #: Gets the conversations that were generated last.
    at_end: Callable[[Sequence[MessageLog]], None] = lambda logs: None  # noqa: ARG005


def run_grpo(
    job: Job,
    path: Path,
    done: int,
    steps: int,
    on_row: Callable[[Row], None],
    rehearsal: Rehearsal,
) -> None:
    """Evaluate, train and evaluate, as the configuration at `path` says.

    `done` of `steps` are done, and `on_row` takes each row of the history. Raises `Stopped` where
    a signal, a rehearsal or the time ends it after a step that is saved.
    """
    with one_error():
        nemo = _set_up(job, path)
    try:
        # Ray has put its own handler for SIGTERM into this process meanwhile.
        with deferring(job.reporter.warn) as stop:
            use_reference(job)  # the actor of a resumed run has read it itself
            if done == 0:
                with _sampling(job, nemo, 0, stop) as frozen:
                    before_first_step(job, frozen, nemo.environment, steps)
            if done < steps:
                _train(job, nemo, steps, on_row, rehearsal.stop_at, stop)
                if is_asynchronous(job.config):
                    return  # NeMo-RL has ended its workers
            with _sampling(job, nemo, steps, stop) as trained:
                after_last_step(job, trained)
            rehearsal.at_end(trained.last)
    finally:
        _end(nemo)


def _set_up(job: Job, path: Path) -> SimpleNamespace:
    """Start Ray and the environment's actor, and have NeMo-RL make what it trains with."""
    if missing := list(unmet()):
        raise EquipoiseError(
            "nemo-rl.other-version",
            f"this NeMo-RL cannot be used: {'; '.join(missing)}",
            f"Equipoise was tried with {' and '.join(TRIED)}: take NeMo-RL {RELEASE}, or a newer "
            "Equipoise.",
        )
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
    factory = with_first_reference(Policy)
    made = grpo.setup(config, tokenizer, data, val_data, policy_factory=factory)
    names = (
        *("policy", "generation", "gym", "cluster", "loader", "val_loader", "loss", "logger"),
        *("checkpointer", "state", "config", "teachers", "aliases"),
    )
    return SimpleNamespace(
        tokenizer=tokenizer,
        environment=Calls(actor),
        task_to_env={job.environment.name: actor},
        **dict(zip(names, made, strict=True)),
    )


def _train(
    job: Job,
    nemo: SimpleNamespace,
    steps: int,
    on_row: Callable[[Row], None],
    stop_at: int | None,
    stop: StopRequest,
) -> None:
    """Take all steps. Raises `Stopped` where NeMo-RL saves and ends before the last one."""
    from nemo_rl.algorithms import grpo

    checkpointing = nemo.config.checkpointing
    until = save_by(checkpointing["checkpoint_must_save_by"], os.environ)
    checkpointing["checkpoint_must_save_by"] = until
    ours = (job, steps, on_row, stop, stop_at)
    history = HistoryLogger(nemo.logger, nemo.environment, checkpointing, *ours)
    generation = nemo.generation
    if job.config.policy.generation.vllm_cfg.async_engine:
        generation = with_room_to_wait(generation, WAITING)
    words = {
        "policy": nemo.policy,
        "policy_generation": generation,
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
    try:
        if is_asynchronous(job.config):
            settings = nemo.config.grpo  # a dictionary on v0.7.0, a model on main
            settings = settings if isinstance(settings, dict) else settings.model_dump()
            age = settings["async_grpo"]["max_trajectory_age_steps"]
            grpo.async_grpo_train(**words, dataloader=nemo.loader, max_trajectory_age_steps=age)
        else:
            grpo.grpo_train(**words, wrapped_dataloader=nemo.loader)
    except Stopped:
        history.raise_error()
        raise
    history.raise_error()
    newest = latest_checkpoint(job.run.checkpoints)
    done = newest.step if newest else 0
    if done < steps and done == history.taken and until:
        raise Stopped("the time to save by has come")
    if done < steps:  # v0.7.0 prints an error of asynchronous training, and ends
        raise EquipoiseError(
            "nemo-rl.early-end",
            f"NeMo-RL's training ended after step {history.taken} of {steps}",
            "nemo_rl.log says why. Remove the cause, then continue with --resume.",
        )


def with_first_reference(policy: Callable[..., Any]) -> Callable[..., Any]:
    """Return NeMo-RL's `Policy`, whose reference stays that of the first start on a resume.

    NeMo-RL's DTensor worker (v0.7.0 and main) loads a checkpoint and copies the reference from
    what it has loaded, so that every resume would move what the KL penalty is measured against.
    Here it is built as for a first start, and loads the checkpoint afterwards.
    """

    def build(*args: Any, config: Mapping[str, Any], **kwargs: Any) -> Any:
        import ray

        if not (config["dtensor_cfg"]["enabled"] and kwargs.get("weights_path")):
            return policy(*args, config=config, **kwargs)  # Megatron's worker does it right
        paths = {name: kwargs.pop(name, None) for name in ("weights_path", "optimizer_path")}
        # The workers have their own working directories.
        words = {name: str(Path(path).absolute()) if path else None for name, path in paths.items()}
        built = policy(*args, config=config, **kwargs, **dict.fromkeys(paths))
        workers = built.worker_group.workers
        ray.get([worker.load_checkpoint.remote(**words) for worker in workers])
        return built

    return build


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
    yield Sampler(job, step, generation, nemo.tokenizer, stop)
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

_BUGS = (TypeError, AttributeError, LookupError, NameError, ImportError)


@contextmanager
def one_error() -> Iterator[None]:
    """Raise one `EquipoiseError` for what NeMo-RL or Ray refuses before training.

    The traceback goes into the log. Bugs keep theirs, and so does a GPU that is full.
    """
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:
        if isinstance(error, _BUGS) or type(error).__name__ == "OutOfMemoryError":
            raise
        traceback.print_exception(error)
        # What NeMo-RL has made calls Ray when it is deleted, so not after Ray's end.
        traceback.clear_frames(error.__traceback__)
        address = os.environ.get("RAY_ADDRESS", "not set")
        raise EquipoiseError(
            "nemo-rl.refused",
            f"NeMo-RL did not start: {reason_of(error)}",
            "Change what it names. nemo_rl.log has the traceback, and nemo_rl.yaml what it has "
            f"read. If Ray did not start: RAY_ADDRESS is {address}, RAY_TMPDIR (/tmp) needs room.",
        ) from error


def reason_of(error: Exception) -> str:
    """Name an error of NeMo-RL's in one line; Ray's own texts are tracebacks."""
    cause = getattr(error, "cause", None) or error  # of a task of Ray's
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    died = type(cause).__module__.startswith("ray.")  # its last line is the error in the actor
    text = " ".join(lines[-1:] if died else lines)
    return f"{type(cause).__name__}: {text if len(text) <= 500 else f'{text[:500]}...'}"
