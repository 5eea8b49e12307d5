"""The NeMo-RL engine: what is done before NeMo-RL is imported, and after it has trained."""

import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from copy import deepcopy
from pathlib import Path
from typing import Any, BinaryIO

from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerBase

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.config import Config, LoadedConfig
from equipoise.config.schema import SchedulerEntry
from equipoise.files.console import escaped
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.nemo_rl import converting, find_installation
from equipoise.files.pretrained import check_model, identity_of, load_tokenizer
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Display, Job, Watch, record_model
from equipoise.run.task import check_readable
from equipoise.run.tokenizer import template_of, tokenizer_of
from equipoise.train.nemo_rl.history import go_back
from equipoise.train.nemo_rl.process import before_nemo_rl
from equipoise.train.nemo_rl.recipe import NemoPolicy, set_up
from equipoise.train.nemo_rl.scoring import templated

_LOG = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def output_to(path: Path, display: Display) -> Iterator[None]:
    """Append what this process and its workers print, thousands of lines, to `path`.

    The display keeps writing to where standard output was. What Python prints, NeMo-RL's samples
    of completions among it, is escaped, since people read the file in a terminal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        log = stack.enter_context(path.open("ab"))
        terminal = stack.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8"))
        stack.enter_context(display.writing_to(terminal))
        for target in (1, 2):
            copy = os.dup(target)
            stack.callback(os.close, copy)
            stack.callback(os.dup2, copy, target)
            os.dup2(log.fileno(), target)
        text = _Escaping(log)  # not closed: loggers that begin inside keep it
        with redirect_stdout(text), redirect_stderr(text):
            yield


class _Escaping(io.TextIOWrapper):
    """Strip colours, and start a new line at each carriage return of a progress bar."""

    def __init__(self, log: BinaryIO) -> None:
        copy = os.fdopen(os.dup(log.fileno()), "ab")
        super().__init__(copy, "utf-8", "backslashreplace", write_through=True)

    def write(self, text: str) -> int:
        super().write(escaped(_COLOURS.sub("", text).replace("\r", "\n")))
        return len(text)


def open_tokenizer(
    config: Config, records: Sequence[PromptRecord], model_name: str
) -> PreTrainedTokenizerBase:
    """Load the tokenizer, before anything of a run is kept.

    Refuse a model that cannot be read or runs code, and prompts that it cannot be trained on.
    """
    policy = config.policy
    model = check_model(model_name)
    tokenizer_name, template = tokenizer_of(policy, model_name), template_of(policy.tokenizer)
    tokenizer = load_tokenizer(model_name, tokenizer_name, template)
    for file, settings in (
        ("config.json", model.to_dict()),
        ("tokenizer_config.json", tokenizer.init_kwargs),
    ):
        if settings.get("auto_map"):  # all workers of NeMo-RL load with trust_remote_code=True
            raise EquipoiseError(
                "model.auto-map",
                f"{file} of {model_name} names code of its own (auto_map), which NeMo-RL would run",
                "No code of others is run. If transformers has the model's family: take auto_map "
                "out of a copy, and name the copy.",
            )
    check_readable(tokenizer, records)
    words, ranks = model.get_text_config().vocab_size, policy.dtensor_cfg.tensor_parallel_size
    if policy.dtensor_cfg.enabled and words % ranks:
        raise UsageError(
            "model.uneven-vocabulary",
            f"{model_name} has {words:,} words, which {ranks} GPUs do not share evenly; NeMo-RL's "
            "DTensor workers would train on wrong log-probabilities",
            "Set policy.dtensor_cfg.tensor_parallel_size to a divisor; a rehearsal's local model "
            "has equipoise.local_model.vocab_size words.",
        )
    room = policy.max_total_sequence_length - policy.generation.max_new_tokens
    lengths = {record.id: len(templated(record, tokenizer)[1]) for record in records}
    worst = max(lengths, key=lengths.__getitem__)
    if lengths[worst] > room:
        raise EquipoiseError(
            "prompts.too-long",
            f"the prompt {worst} has {lengths[worst]:,} tokens, and {room:,} are left for one",
            "Raise policy.max_total_sequence_length, or lower policy.generation.max_new_tokens.",
        )
    return tokenizer


def record_identity(job: Job, tokenizer: PreTrainedTokenizerBase) -> None:
    """Record the model and the version of NeMo-RL in the provenance."""
    policy, name = job.config.policy, job.model_name
    identity = identity_of(name, tokenizer_of(policy, name), template_of(policy.tokenizer))
    record_model(job, tokenizer, identity, nemo_rl=find_installation().version)


@contextmanager
def open_policy(
    job: Job,
    watch: Watch,
    workers: AbstractContextManager[None] | None = None,
    stop_at: int | None = None,
) -> Iterator[NemoPolicy]:
    """Start NeMo-RL with what it has saved last, and end it with the block.

    A rehearsal has other `workers`, and is stopped at a step.
    """
    installation, log = find_installation(), job.run.root / "nemo_rl.log"
    config = nemo_rl_config(
        job.loaded,
        installation.base_config,
        job.run,
        job.model_name,
        validates=bool(job.validation_prompts),
        steps=job.steps,
    )
    path = job.run.root / "nemo_rl.yaml"
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(config)))
    _LOG.info(f"NeMo-RL: {installation.root}, its own output: {log}")
    installation.make_importable()
    before_nemo_rl()
    # NeMo-RL's logger starts wandb, which goes on in the run that it names here.
    run_id = job.run.ledger.read().run_id
    os.environ |= {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"}
    done = go_back(job.run)
    converts = job.config.policy.converts
    with (
        converting(job.model_name, os.environ, _LOG.info) if converts else nullcontext(),
        watch(job.steps, done) as on_row,
        job.timed("nemo_rl"),
        output_to(log, job.display),
        workers or nullcontext(),
        _ray_ended(),
        set_up(job, path, done, on_row, stop_at) as policy,
    ):
        yield policy


@contextmanager
def _ray_ended() -> Iterator[None]:
    """Stop Ray at the end of the block, and remove its environment variables."""
    import ray

    joined = os.environ.get("RAY_ADDRESS")
    try:
        yield
    finally:
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS", None)  # of a Ray that has ended
        if joined:
            os.environ["RAY_ADDRESS"] = joined


# --- its configuration ----------------------------------------------------------------------------
# The YAML that NeMo-RL's loader reads names the installed version's `grpo_math_1B.yaml` as its
# `defaults`, so that the loader fills in what is not set and the version decides its own defaults.
# Sections are merged over that base key by key and lists replace each other; the sections `data`
# and `env`, where keys of the base would reach our dataset and start its math environment, replace
# it whole.


DATASET = "equipoise.train.nemo_rl.dataset.PromptDataset"
#: The word of NeMo-RL's loader for a top-level section that replaces the base's.
_REPLACES_BASE = {"_override_": True}
#: NeMo-RL takes no empty list and no null: a constant learning rate is a scheduler too.
_CONSTANT: list[SchedulerEntry] = [
    {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": 1}}
]


def nemo_rl_config(
    loaded: LoadedConfig,
    base: Path,
    run: RunDirectory,
    model_name: str,
    *,
    validates: bool = True,
    steps: int | None = None,
) -> dict[str, Any]:
    """Return the configuration for NeMo-RL's loader, as plain values.

    `base` is the version's own configuration, `model_name` the name or the folder of the model, for
    which `policy.model_name` may have a word. `validates` says whether there are prompts to
    validate on, `steps` how many there are prompts for. Paths become absolute, for NeMo-RL's
    workers have their own working directories.
    """
    config, grpo, env = loaded.config, loaded.config.grpo, loaded.environment_class.name
    resolved = deepcopy({k: value for k, value in loaded.resolved.items() if k != "equipoise"})
    # NeMo-RL counts rows, and a validation prompt has as many as a prompt has generations.
    rows, wandb = grpo.num_generations_per_prompt, config.logger.wandb
    data = _data(loaded, run, validates=validates)
    changes = {
        "grpo": {
            "max_num_epochs": 1,  # over our schedule
            "max_num_steps": steps or grpo.max_num_steps,  # asynchronous GRPO sees no end of data
            "val_at_start": False,  # the baseline takes its place
            "val_at_end": validates,
            "val_batch_size": (grpo.val_batch_size or 256) * rows,
            "max_val_samples": (grpo.max_val_samples or 2**31 - 1) * rows,  # all that there are
        },
        "policy": _policy(loaded, model_name),
        "checkpointing": {"checkpoint_dir": str(run.checkpoints.resolve())},
        "logger": {
            "log_dir": str(run.root.resolve() / "logs"),
            "wandb": wandb.model_dump(mode="json", exclude_none=True, exclude_unset=True)
            | {"name": wandb.name or run.root.name},
        },
    }
    return {
        "defaults": str(base.resolve()),
        **resolved,
        **{section: resolved[section] | keys for section, keys in changes.items()},
        "data": data,
        "env": {**_REPLACES_BASE, env: loaded.env_settings.model_dump(mode="json")},
    }


def _policy(loaded: LoadedConfig, model_name: str) -> dict[str, Any]:
    policy = loaded.config.policy
    tokenizer = policy.tokenizer.model_dump(mode="json", by_alias=True, exclude_unset=True)
    scheduler: list[dict[str, Any]] = [dict(entry) for entry in policy.scheduler or _CONSTANT]
    # NeMo-RL's workers read the milestones of every chain, that of a single scheduler too.
    if not any("milestones" in entry for entry in scheduler):
        scheduler.append({"milestones": []})
    changed = {
        "model_name": model_name,
        "tokenizer": tokenizer | {"name": tokenizer_of(policy, model_name)},
        "scheduler": scheduler,
    }
    if start := policy.pretrained_checkpoint:
        path = str(Path(start.path).expanduser().resolve())
        changed["pretrained_checkpoint"] = {"path": path, "format": start.format}
    return changed


def _data(loaded: LoadedConfig, run: RunDirectory, *, validates: bool) -> dict[str, Any]:
    """Return the whole section; every key that NeMo-RL reads is named: none comes from its base."""
    config, grpo = loaded.config, loaded.config.grpo
    room = config.policy.max_total_sequence_length - config.policy.generation.max_new_tokens
    entry = {
        "dataset_name": DATASET,
        "env_name": loaded.environment_class.name,
        "prompts": str(run.prompts.resolve()),
    }
    training = {
        "split": TRAIN_SPLIT,
        "prompts_per_step": grpo.num_prompts_per_step,
        "max_steps": grpo.max_num_steps,
        "max_epochs": grpo.max_num_epochs,
        "seed": grpo.seed,
        "spare": grpo.is_asynchronous,
    }
    validation = {"split": VALIDATION_SPLIT, "generations": grpo.num_generations_per_prompt}
    return {
        **_REPLACES_BASE,
        "max_input_seq_length": config.data.max_input_seq_length or room,
        "shuffle": False,
        "num_workers": config.data.num_workers,
        "use_multiple_dataloader": False,
        "train": entry | training,
        "validation": entry | validation if validates else None,
        "default": {"prompt_file": None, "system_prompt_file": None},
    }
