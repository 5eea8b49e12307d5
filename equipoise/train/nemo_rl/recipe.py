"""GRPO with NeMo-RL's functions, called as its `examples/run_grpo.py` calls them.

Nothing of NeMo-RL is replaced. What a run adds is handed over as arguments: prompts, an
environment's actor, a policy factory and a logger.
"""

import logging
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from environments.base import PromptRecord, Rollout
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped, deferring
from equipoise.files.nemo_rl import RELEASE, TRIED, unmet
from equipoise.run.directory import GREEDY
from equipoise.run.history import Row
from equipoise.run.job import Job, Sample
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.train.nemo_rl.history import HistoryLogger
from equipoise.train.nemo_rl.process import WAITING, with_room_to_wait
from equipoise.train.nemo_rl.scoring import MessageLog, datum, single_turn_return, to_rollouts

#: The folder of replies that no stage has taken yet.
PARTS = "parts"
#: Seconds of a Slurm job that are kept for the end of a step and for its checkpoint.
_TO_SAVE = 300
_BUGS = (TypeError, AttributeError, LookupError, NameError, ImportError)


@contextmanager
def set_up(
    job: Job, path: Path, done: int, on_row: Callable[[Row], None], stop_at: int | None
) -> Iterator["NemoPolicy"]:
    """Make what the configuration at `path` says, of which `done` steps are done, and end it."""
    with one_error():
        nemo = _set_up(path)
    try:
        # Ray has put its own handler for SIGTERM into this process meanwhile.
        with deferring(logging.getLogger(__name__).warning) as stop:
            yield NemoPolicy(job, nemo, on_row, stop, stop_at, done)
            shutil.rmtree(job.run.root / PARTS, ignore_errors=True)
    finally:
        _end(nemo)


def _set_up(path: Path) -> SimpleNamespace:
    """Start Ray, and have NeMo-RL make what it trains with."""
    if missing := list(unmet()):
        raise EquipoiseError(
            "nemo-rl.other-version",
            f"this NeMo-RL cannot be used: {'; '.join(missing)}",
            f"Take NeMo-RL {RELEASE}, or a newer Equipoise; tried: {' and '.join(TRIED)}.",
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
    factory = with_first_reference(Policy)
    parts = grpo.setup(config, tokenizer, data, val_data, policy_factory=factory)
    names = (
        *("policy", "generation", "gym", "cluster", "loader", "val_loader", "loss", "logger"),
        *("checkpointer", "state", "config", "teachers", "aliases"),
    )
    return SimpleNamespace(tokenizer=tokenizer, **dict(zip(names, parts, strict=True)))


@dataclass(slots=True)
class NemoPolicy:
    """The policy of a run on NeMo-RL's workers, a `Policy`.

    A signal, a rehearsal's `stop_at` or the time ends training after a step that is saved.
    """

    job: Job
    nemo: SimpleNamespace
    on_row: Callable[[Row], None]  # takes each row of the history
    stop_requested: Callable[[], bool]
    stop_at: int | None
    steps: int
    last: list[MessageLog] = field(init=False, default_factory=list)  # replies drawn last

    def train(self) -> None:
        """Take all steps. Raises `Stopped` where NeMo-RL saves and ends before the last one."""
        if not self.steps:
            self.nemo.generation.finish_generation()
            shutil.rmtree(self.job.run.root / PARTS, ignore_errors=True)
        self._train()
        if not self.job.config.grpo.is_asynchronous:  # which has ended the workers
            self.steps = self.job.steps

    def _train(self) -> None:
        from nemo_rl.algorithms import grpo

        from equipoise.train.nemo_rl.actor import Calls, start_environment

        job, nemo = self.job, self.nemo
        actor = start_environment(job.loaded, job.run)  # it reads the reference as it starts
        generation, checkpointing = nemo.generation, nemo.config.checkpointing
        history = HistoryLogger(
            nemo.logger,
            Calls(actor),
            checkpointing,
            job,
            self.on_row,
            self.stop_requested,
            self.stop_at,
        )
        until = save_by(checkpointing["checkpoint_must_save_by"], os.environ)
        checkpointing["checkpoint_must_save_by"] = until
        environments = {job.environment.name: actor}
        if job.config.policy.generation.vllm_cfg.async_engine:
            generation = with_room_to_wait(generation, WAITING)
        words = {
            "policy": nemo.policy,
            "policy_generation": generation,
            "val_dataloader": nemo.val_loader,
            "tokenizer": nemo.tokenizer,
            "loss_fn": nemo.loss,
            "task_to_env": environments,
            "val_task_to_env": environments,
            "logger": history,
            "checkpointer": nemo.checkpointer,
            "grpo_save_state": nemo.state,
            "master_config": nemo.config,
        }
        try:
            if job.config.grpo.is_asynchronous:
                settings = nemo.config.grpo  # a dictionary on v0.7.0, a model on main
                settings = settings if isinstance(settings, dict) else settings.model_dump()
                age = settings["async_grpo"]["max_trajectory_age_steps"]
                grpo.async_grpo_train(**words, dataloader=nemo.loader, max_trajectory_age_steps=age)
            else:
                grpo.grpo_train(**words, wrapped_dataloader=nemo.loader)
        except Stopped:
            if history.error is None:
                raise
        if history.error:
            raise history.error
        done = history.saved_step
        if done < job.steps and done == history.last_step and until:
            raise Stopped("the time to save by has come")
        if done < job.steps:  # v0.7.0 prints an error of asynchronous training, and ends
            raise EquipoiseError(
                "nemo-rl.early-end",
                f"NeMo-RL's training ended after step {history.last_step} of {job.steps}",
                "nemo_rl.log says why. Remove the cause, then continue with --resume.",
            )

    # Replies before and after training are rollouts of their own, not NeMo-RL's `validate()`: it
    # never samples at temperature 0, as the probe does, and returns means in place of replies and
    # their tokens.

    def sampler(self) -> Sample:
        """Send the policy's weights to its generation, and return what samples from it."""
        from nemo_rl.algorithms import grpo

        policy = self.nemo.config.policy
        grpo.refit_policy_generation(
            self.nemo.policy,
            self.nemo.generation,
            policy["generation"]["colocated"]["enabled"],
            _refit_buffer_size_gb=policy.get("refit_buffer_size_gb"),
        )
        return self.draw

    def draw(self, records: Sequence[PromptRecord], generations: int, label: str) -> list[Rollout]:
        """Sample so many replies to each prompt, by the function that generates in training.

        They are kept in parts: what was drawn before a kill is not drawn again. Raises `Stopped`
        between two parts.
        """
        rows = [record for record in records for _ in range(generations)]
        size = self.job.config.equipoise.evaluation.batch_size
        folder = self.job.run.root / PARTS / f"{self.steps}-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        rollouts: list[Rollout] = []
        with self.job.display.progress(label, len(rows)) as bar:
            for start in range(0, len(rows), size):
                path = folder / f"{start:09}.jsonl"
                if not path.exists():
                    if self.stop_requested():
                        raise Stopped
                    part = self._generate(rows[start : start + size], greedy=label == GREEDY)
                    write_rollouts(path, part)
                rollouts += read_rollouts(path)
                bar(len(rollouts))
        return rollouts

    def _generate(self, records: Sequence[PromptRecord], *, greedy: bool) -> list[Rollout]:
        """Generate a reply to each prompt; an environment without rewards ends its conversation."""
        import ray
        from nemo_rl.data.collate_fn import rl_collate_fn
        from nemo_rl.experience import rollouts

        def end_conversations(_: Any, metadata: list[Any]) -> Any:
            return ray.put(single_turn_return([0.0] * len(metadata), metadata))

        config, task = self.job.config, self.job.environment.name
        run: Callable[..., Any] = rollouts.run_multi_turn_rollout
        if config.policy.generation.vllm_cfg.async_engine:
            run = rollouts.run_async_multi_turn_rollout
        data = [
            datum(record, task, self.nemo.tokenizer, None, n) for n, record in enumerate(records)
        ]
        batch, _ = run(
            self.nemo.generation,
            rl_collate_fn(data),
            self.nemo.tokenizer,
            {task: SimpleNamespace(step=SimpleNamespace(remote=end_conversations))},
            max_seq_len=config.policy.max_total_sequence_length,
            max_rollout_turns=1,
            greedy=greedy,
        )
        self.last = batch["message_log"]
        lengths = [[len(message["token_ids"]) for message in log[:2]] for log in self.last]
        if missing := sum(len(pair) < 2 for pair in lengths):
            raise EquipoiseError(
                "nemo-rl.missing-replies",
                f"{missing} of {len(records)} replies were not generated, nemo_rl.log says why",
                "Remove the cause, then continue with --resume.",
            )
        read, written = map(sum, zip(*lengths, strict=True))
        self.job.meter.add_tokens(read, written)
        return to_rollouts(self.last, batch["extra_env_info"])


def with_first_reference(policy: Callable[..., Any]) -> Callable[..., Any]:
    """Return NeMo-RL's `Policy`, which keeps the first start's reference on a resume.

    NeMo-RL's DTensor worker loads a checkpoint and copies the reference from what it has loaded, so
    every resume would move the KL penalty's anchor. Here the checkpoint is loaded afterwards.
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


def _end(nemo: SimpleNamespace) -> None:
    """End the work in the background while Ray runs, for NeMo-RL's objects call Ray to end."""
    if monitor := nemo.logger.gpu_monitor:
        monitor.stop()
    # Main renames a checkpoint in a thread when all is written; v0.7.0 does so at once.
    if shutdown := getattr(nemo.checkpointer, "shutdown", None):
        shutdown()
    nemo.generation.shutdown()
    nemo.policy.shutdown()


def save_by(setting: str | None, environment: Mapping[str, str]) -> str | None:
    """Return NeMo-RL's `checkpoint_must_save_by`, a Slurm job's own end where none is set."""
    end = environment.get("SLURM_JOB_END_TIME")
    if setting or not end:
        return setting
    return f"00:00:00:{max(0, int(end) - int(time.time()) - _TO_SAVE)}"


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
        cause = getattr(error, "cause", None) or error  # of a task of Ray's
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        if type(cause).__module__.startswith("ray."):  # a traceback, with the actor's error last
            lines = lines[-1:]
        address = os.environ.get("RAY_ADDRESS", "not set")
        raise EquipoiseError(
            "nemo-rl.refused",
            f"NeMo-RL did not start: {type(cause).__name__}: {' '.join(lines)[:500]}",
            "nemo_rl.log has the traceback, and nemo_rl.yaml what it has read. If Ray did not "
            f"start: RAY_ADDRESS is {address}, RAY_TMPDIR (/tmp) needs room.",
        ) from error
