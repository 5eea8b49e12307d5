"""The NeMo-RL engine: what is done before NeMo-RL is imported, and after it has trained."""

import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import BinaryIO

from omegaconf import OmegaConf

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.checkpoints.convert import convert
from equipoise.checkpoints.tensors import ConversionError
from equipoise.config import Config
from equipoise.config.nemo_rl.installation import Installation, converting, find_installation
from equipoise.config.schedule import total_steps
from equipoise.files.console import escaped
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.models.pretrained import (
    check_model,
    control_tokens,
    identity_of,
    load_tokenizer,
    template_of,
    tokenizer_of,
)
from equipoise.models.template import CHAT_TEMPLATE, check_template, template_hash
from equipoise.run.history import keep_steps, read_history
from equipoise.run.job import Display, Job, Watch
from equipoise.run.ledger import Provenance
from equipoise.run.seals import seal
from equipoise.run.start import refuse_control_tokens
from equipoise.train.nemo_rl.configuration import nemo_rl_config
from equipoise.train.nemo_rl.evaluations import is_drawn, score_final
from equipoise.train.nemo_rl.history import latest_checkpoint, usable_checkpoint
from equipoise.train.nemo_rl.process import before_nemo_rl
from equipoise.train.nemo_rl.recipe import Rehearsal, run_grpo
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
    """Text without colours, in which a carriage return, of a progress bar, begins a new line."""

    def __init__(self, log: BinaryIO) -> None:
        copy = os.fdopen(os.dup(log.fileno()), "ab")
        super().__init__(copy, "utf-8", "backslashreplace", write_through=True)

    def write(self, text: str) -> int:
        super().write(escaped(_COLOURS.sub("", text).replace("\r", "\n")))
        return len(text)


def check_start(config: Config, records: Sequence[PromptRecord], model_name: str) -> None:
    """Refuse a model that cannot be read or runs code, and prompts that it cannot be trained on."""
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
    check_template(tokenizer, records)
    words, ranks = model.get_text_config().vocab_size, policy.dtensor_cfg.tensor_parallel_size
    if policy.dtensor_cfg.enabled and words % ranks:
        raise UsageError(
            "model.uneven-vocabulary",
            f"{model_name} has {words:,} words, which {ranks} GPUs do not share evenly; NeMo-RL's "
            "DTensor workers would train on wrong log-probabilities",
            "Set policy.dtensor_cfg.tensor_parallel_size to a divisor; a rehearsal's local model "
            "has equipoise.local_model.vocab_size words.",
        )
    refuse_control_tokens(records, control_tokens(tokenizer))
    room = policy.max_total_sequence_length - policy.generation.max_new_tokens
    lengths = {record.id: len(templated(record, tokenizer)[1]) for record in records}
    worst = max(lengths, key=lengths.__getitem__)
    if lengths[worst] > room:
        raise EquipoiseError(
            "prompts.too-long",
            f"the prompt {worst} has {lengths[worst]:,} tokens, and {room:,} are left for one",
            "Raise policy.max_total_sequence_length, or lower policy.generation.max_new_tokens.",
        )


def run(job: Job, watch: Watch, rehearsal: Rehearsal | None = None) -> None:
    """Do every stage that the run directory does not hold yet.

    Raises `Stopped` when training was stopped with a checkpoint before its last step.
    """
    if job.run.final_checkpoint.exists():
        return
    installation, policy = find_installation(), job.config.policy
    names = tokenizer_of(policy, job.model_name), template_of(policy.tokenizer)
    tokenizer = load_tokenizer(job.model_name, *names)
    if note := check_template(tokenizer, job.records):
        _LOG.warning(note)
    identity = identity_of(job.model_name, *names)
    hashes = {"model": identity, CHAT_TEMPLATE: template_hash(tokenizer)}
    job.run.ledger.update(Provenance(hashes=hashes, nemo_rl=installation.version))
    config = nemo_rl_config(
        job.loaded,
        installation.base_config,
        job.run,
        job.model_name,
        validates=bool(job.split(VALIDATION_SPLIT)),
        steps=total_steps(len(job.split(TRAIN_SPLIT)), job.config),
    )
    path = job.run.root / "nemo_rl.yaml"
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(config)))
    rehearsal = rehearsal or Rehearsal()
    train(job, installation, path, watch, rehearsal)
    if not is_drawn(job):  # asynchronous training has ended the workers: they start again
        train(job, installation, path, watch, rehearsal)
    score_final(job)
    export(job, installation)


def train(
    job: Job, installation: Installation, config: Path, watch: Watch, rehearsal: Rehearsal
) -> None:
    """Run NeMo-RL from its newest checkpoint, or from the start, to the last step."""
    steps = total_steps(len(job.split(TRAIN_SPLIT)), job.config)
    keep_steps(job.run.history, steps)  # drops a row that a kill cut off
    taken = int(max(read_history(job.run.history).get("step", ()), default=0))
    newest = usable_checkpoint(job.run.checkpoints, taken, _LOG.warning)
    done = newest.step if newest else 0
    if done >= steps and is_drawn(job):
        return
    keep_steps(job.run.history, done)
    keep_steps(job.run.training, done)
    log = job.run.root / "nemo_rl.log"
    _LOG.info(f"NeMo-RL: {installation.root}, its own output: {log}")
    installation.make_importable()
    before_nemo_rl()
    # NeMo-RL's logger starts wandb, which goes on in the run that it names here.
    run_id = job.run.ledger.read().run_id
    os.environ |= {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"}
    with (
        converting(job.config, job.model_name, os.environ, _LOG.info),
        watch(steps, done) as take,
        job.timed("nemo_rl"),
        output_to(log, job.display),
        rehearsal.stand_in(),
        _ray_ended(),
    ):
        run_grpo(job, config, done, steps, take, rehearsal)


@contextmanager
def _ray_ended() -> Iterator[None]:
    """End Ray, and what it has put into the environment, with the block."""
    import ray

    joined = os.environ.get("RAY_ADDRESS")
    try:
        yield
    finally:
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS", None)  # of a Ray that has ended
        if joined:
            os.environ["RAY_ADDRESS"] = joined


def export(job: Job, installation: Installation) -> None:
    """Write `final_checkpoint/`, or say what makes it of a model that Equipoise does not know."""
    form, destination = job.config.equipoise.export, job.run.final_checkpoint
    if form == "none":
        return
    newest = latest_checkpoint(job.run.checkpoints)
    assert newest is not None, "NeMo-RL saves a checkpoint at the last step"
    adapter = form == "adapter"
    try:
        convert(
            newest.path,
            destination,
            base=job.model_name,
            keep_adapter=adapter,
            progress=job.display.progress,
        )
    except ConversionError as error:
        converters = installation.root / "examples" / "converters"
        _LOG.warning(
            f"{destination} was not made: {error.message}; NeMo-RL's own converters are in "
            f"{converters}: give them {newest.path}"
        )
        return
    seal(job.run, destination)
