"""The local engine: `trl.GRPOTrainer` and peft on a CPU or one GPU, watched, stopped, resumed."""

import logging
import math
import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from environments.base import PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.config.schedule import Schedule, plan, total_steps
from equipoise.config.schema import Config
from equipoise.config.schema import LoraConfig as LoraSettings
from equipoise.files.disk import flush, write_folder, write_json
from equipoise.files.exits import Stopped, deferring
from equipoise.run.history import Row, append_row, restore, step_row
from equipoise.run.job import FailureMonitor, Job, Watch, score_within_budget
from equipoise.run.ledger import Meter
from equipoise.run.policy import in_half, sampling_of
from equipoise.run.rollouts import Choice, Sample, TrainingRollouts, choose
from equipoise.run.sampling import LoadedModel, Sampling, complete, until_end
from equipoise.run.seals import CheckpointFolder, find_checkpoints, seal

_LOG = logging.getLogger(__name__)

#: Rendered prompts and the trainer that asks, to the tokens of prompts and completions; see TRL.
RolloutFunction = Callable[[Sequence[str], GRPOTrainer], dict[str, list[list[int]] | None]]
RewardFunction = Callable[..., list[float | None]]
#: A checkpoint is deleted only when a newer one is complete, so two must fit.
_MIN_CHECKPOINTS = 2


def train(job: Job, loaded: LoadedModel, watch: Watch) -> None:
    """Train with TRL from the newest whole checkpoint, and save the final one.

    Raises `Stopped` where it was stopped before its last step.
    """
    config, run, records = job.config, job.run, job.training_prompts
    checkpoint = latest_checkpoint(run.checkpoints)
    for file in (run.history, run.training):
        restore(file, checkpoint.path / file.name if checkpoint else None)
    set_seed(config.grpo.seed)
    model = trainable(loaded, config)
    monitor = FailureMonitor(config.equipoise.max_failure_rate, config.equipoise.failure_window)
    with (
        job.timed("training"),
        deferring(_LOG.warning) as stop,
        watch(job.steps, checkpoint.step if checkpoint else 0) as on_row,
    ):
        kept = config.equipoise.training_rollouts
        recorder = StepRecorder(
            run.history,
            TrainingRollouts(run.training, kept.steps, job.steps),
            partial(choose, limit=kept.sets, seed=config.grpo.seed),
            monitor,
            job.meter,
            on_row,
            stop,
        )
        reward = reward_function(job.environment, records, recorder.record)
        trainer = build_trainer(model, loaded, records, reward, config, run.checkpoints, recorder)
        if checkpoint and isinstance(model, PeftModel):
            # With a KL penalty a checkpoint has TRL's reference adapter in a folder of its own, and
            # transformers then loads no other one.
            model.load_adapter(str(checkpoint.path), model.active_adapter, is_trainable=True)
        set_seed(config.grpo.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    if monitor.exceeded:
        raise monitor.error()
    if trainer.state.global_step < job.steps:
        raise Stopped

    def save(folder: Path) -> None:
        # TRL keeps the reference of a KL penalty as an adapter beside the trained one.
        trained = {"selected_adapters": ["default"]} if isinstance(model, PeftModel) else {}
        model.save_pretrained(folder, **trained)
        loaded.tokenizer.save_pretrained(folder)

    write_folder(run.final_checkpoint, save)
    seal(run, run.final_checkpoint, run.history, run.training.parent)


# --- checkpoints: TRL's folders, each with the run's files so far ---------------------------------

_PREFIX = "checkpoint-"
#: The last file of a whole checkpoint.
_COMPLETE = "complete.json"


def finish_checkpoint(folder: Path, *files: Path) -> None:
    """Add the run's files up to this step and say that everything has been written."""
    for file in files:
        if file.exists():
            shutil.copyfile(file, folder / file.name)
    for path in (*folder.rglob("*"), folder):
        flush(path)
    write_json(folder / _COMPLETE, {})


def latest_checkpoint(folder: Path) -> CheckpointFolder | None:
    """The newest checkpoint that was written to its end; a later half is written over."""
    return next(iter(find_checkpoints(folder, _PREFIX, _COMPLETE)), None)


# --- a step ---------------------------------------------------------------------------------------

#: TRL's names for what the history keeps of its own logs.
_TRL_LOGS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "kl": "kl",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated",
}


@dataclass(slots=True)
class StepRecorder(TrainerCallback):
    """Writes each step's rollouts and row, ends its checkpoint, and stops training when it must.

    A step begins, has its replies scored (`record`), ends, is logged and then saved.
    """

    history: Path
    rollouts: TrainingRollouts
    choose: Choice
    monitor: FailureMonitor
    meter: Meter
    on_row: Callable[[Row], None]
    stop_requested: Callable[[], bool]
    _row: dict[str, float | None] = field(init=False, default_factory=dict)
    _sample: Sample = field(init=False, default=())
    _tokens_before: int = field(init=False, default=0)
    _started: float = field(init=False, default_factory=time.perf_counter)

    def record(self, rollouts: Sequence[Rollout], scores: Sequence[Score], row: Row) -> None:
        """Keep what the reward function measured until the step ends."""
        self.monitor.add([score.error for score in scores])
        self._row, self._sample = dict(row), self.choose(rollouts, scores)

    def on_step_begin(self, _args: Any, state: TrainerState, _control: Any, **_: Any) -> None:
        """Start the step's clock, and note how many tokens the steps before it had."""
        self._started = time.perf_counter()
        self._tokens_before = state.num_input_tokens_seen

    def on_step_end(
        self, _args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the sample. End training with a checkpoint on a request or after failures."""
        self.rollouts.write_step(state.global_step, self._sample)
        if self.monitor.exceeded or self.stop_requested():
            control.should_save = True
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        _control: Any,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Write the step's row; TRL's closing summary has no loss and is not a step."""
        if not logs or "loss" not in logs:
            return
        row = self._row | {"step": state.global_step}
        row |= {ours: float(logs[theirs]) for theirs, ours in _TRL_LOGS.items() if theirs in logs}
        row["seconds"] = round(time.perf_counter() - self._started, 3)
        append_row(self.history, row)
        completions = args.per_device_train_batch_size * args.gradient_accumulation_steps
        written = round(logs["completions/mean_length"] * completions)
        self.meter.add_tokens(int(logs["num_tokens"]) - self._tokens_before - written, written)
        self.on_row(row)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, _control: Any, **_: Any
    ) -> None:
        """Called after the last file of the checkpoint."""
        folder = Path(str(args.output_dir)) / f"{_PREFIX}{state.global_step}"
        finish_checkpoint(folder, self.history, self.rollouts.path)


class ScheduleCallback(TrainerCallback):
    """Puts a resumed run where its configuration's schedule has that step.

    TRL loads the scheduler of the checkpoint, whose length may be another one.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def on_train_begin(self, _args: Any, state: TrainerState, _control: Any, **_: Any) -> None:
        self.schedule.go_to(state.global_step)


# --- from the keys of NeMo-RL to TRL --------------------------------------------------------------


class CardlessTrainer(GRPOTrainer):
    """TRL's trainer, which writes no model card here.

    The run's own card stands beside the trained weights; TRL's lists its tags in another order in
    every process, so a resumed run would change a file of the run before.
    """

    def create_model_card(self, *_: object, **__: object) -> None:
        """Write nothing."""


def build_trainer(
    model: PreTrainedModel | PeftModel,
    loaded: LoadedModel,
    records: Sequence[PromptRecord],
    reward: RewardFunction,
    config: Config,
    checkpoints: Path,
    *callbacks: TrainerCallback,
) -> GRPOTrainer:
    """Build the trainer of `model`: one epoch is the whole run, and every step has whole sets."""
    logging.getLogger("trl").setLevel(logging.ERROR)
    schedule, grpo = Schedule.of(model, config.policy), config.grpo
    generations, at_once = grpo.num_generations_per_prompt, grpo.rollouts_per_step
    # The completions of a step are drawn all at once, from the trainer's own random state.
    sampling = sampling_of(config, generations, at_once, grpo.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)
        trainer = CardlessTrainer(
            model=model,
            reward_funcs=reward,
            rollout_func=draw_for_training(sampling),
            args=grpo_arguments(config, checkpoints, loaded.model),
            train_dataset=train_rows(records, loaded, config),
            processing_class=loaded.tokenizer,
            callbacks=[ScheduleCallback(schedule), *callbacks],
            optimizers=(schedule.optimizer, schedule.scheduler),
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def draw_for_training(sampling: Sampling) -> RolloutFunction:
    """Make TRL's `rollout_func`: completions sampled as in an evaluation.

    TRL repeats every prompt for each of its completions, next to one another.
    """

    def draw(prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[list[int]] | None]:
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        tokenizer, n = trainer.processing_class, sampling.generations
        was_training = model.training
        model.eval()
        with torch.no_grad():
            inputs, new_tokens = complete(model, tokenizer, prompts[::n], sampling)
        model.train(was_training)
        ends = until_end(new_tokens, tokenizer.eos_token_id)
        return {
            "prompt_ids": _masked_rows(inputs["input_ids"], inputs["attention_mask"], n),
            "completion_ids": _masked_rows(new_tokens, ends),
            "logprobs": None,  # TRL computes them anew
        }

    return draw


def _masked_rows(tokens: torch.Tensor, mask: torch.Tensor, copies: int = 1) -> list[list[int]]:
    """Return the tokens under the mask, row by row, each row `copies` times in succession."""
    rows = [row[flags.bool()].tolist() for row, flags in zip(tokens, mask, strict=True)]
    return [row for row in rows for _ in range(copies)]


def train_rows(records: Sequence[PromptRecord], loaded: LoadedModel, config: Config) -> Dataset:
    """One row per prompt and step, in the order of training; `index` points into `records`.

    Prompts are rendered, because TRL reads every row of a step again for each of its micro-batches
    and goes through all that is in it. `select` would look each row up once more.
    """
    grpo, steps = config.grpo, total_steps(len(records), config)
    order = plan(records, grpo.num_prompts_per_step, steps, grpo.seed)
    prompts = [loaded.render(record) for record in records]
    return Dataset.from_dict({"prompt": [prompts[i] for i in order], "index": order})


def grpo_arguments(config: Config, checkpoints: Path, base: PreTrainedModel) -> GRPOConfig:
    """TRL's arguments. One update per generation batch, as NeMo-RL does on policy."""
    grpo, loss, policy = config.grpo, config.loss_fn, config.policy
    generation, on_cpu = policy.generation, base.device.type == "cpu"
    return GRPOConfig(
        output_dir=str(checkpoints),
        seed=grpo.seed,
        num_train_epochs=1,
        per_device_train_batch_size=policy.train_micro_batch_size,
        gradient_accumulation_steps=policy.train_global_batch_size // policy.train_micro_batch_size,
        num_generations=grpo.num_generations_per_prompt,
        max_completion_length=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k or 0,
        beta=loss.reference_policy_kl_penalty,
        epsilon=loss.ratio_clip_min,
        epsilon_high=loss.ratio_clip_max,
        loss_type="dapo" if loss.token_level_loss else "grpo",
        scale_rewards="group" if grpo.normalize_rewards else "none",
        max_grad_norm=policy.max_grad_norm,
        bf16=in_half(config, base),
        gradient_checkpointing=policy.dtensor_cfg.activation_checkpointing,
        use_cpu=on_cpu,
        shuffle_dataset=False,
        dataloader_pin_memory=not on_cpu,
        logging_steps=1,
        save_strategy="steps" if config.checkpointing.enabled else "no",
        save_steps=config.checkpointing.save_period,
        save_total_limit=max(_MIN_CHECKPOINTS, config.checkpointing.keep_top_k or 0),
        report_to=list(config.logger.report_to) or "none",
        run_name=checkpoints.parent.name,
        project=config.logger.wandb.project,
        disable_tqdm=True,
    )


def trainable(loaded: LoadedModel, config: Config) -> PreTrainedModel | PeftModel:
    """The weights that a run trains: the model's own, or a fresh adapter's over them."""
    policy, model = config.policy, loaded.model
    if config.equipoise.load_in_4bit:  # all else of it in float32, as its training wants it
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=policy.dtensor_cfg.activation_checkpointing
        )
    return with_adapter(model, policy.dtensor_cfg.lora_cfg)


def with_adapter(model: PreTrainedModel, lora: LoraSettings) -> PreTrainedModel | PeftModel:
    """The model itself for full fine-tuning, or with a fresh LoRA adapter."""
    if not lora.enabled:
        return model
    adapter = LoraConfig(
        r=lora.dim,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        # all-linear is PEFT's word for every linear map but the output layer
        target_modules=_layers(lora.target_modules) or "all-linear",
        exclude_modules=_layers(lora.exclude_modules) or None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


def _layers(names: Sequence[str]) -> str:
    """The regular expression of these layers for PEFT: last names, or whole ones with `*`."""
    return "|".join(
        re.escape(name).replace(r"\*", ".*") if "*" in name else rf"(.*\.)?{re.escape(name)}"
        for name in names
    )


# --- reward ---------------------------------------------------------------------------------------


def reward_function(
    environment: Environment,
    records: Sequence[PromptRecord],
    record: Callable[[Sequence[Rollout], Sequence[Score], Row], None],
) -> RewardFunction:
    """Make the function that `GRPOTrainer` calls once per step with whole sets.

    The dataset's column `index` says which record a completion belongs to. A score of None stays
    None: TRL leaves it out of the baseline and gives it advantage 0. `log_metric` hands the
    environment's metrics to TRL's trackers, and `record` takes what the step has measured.
    """

    def score(
        *,
        prompts: list[str],
        completions: list[str],
        index: list[int],
        log_metric: Callable[[str, float], None] = lambda *_: None,
        **_: Any,
    ) -> list[float | None]:
        rollouts = [
            Rollout(r.id, r.set_id, r.split, prompt, completion, r.metadata)
            for r, prompt, completion in zip(
                (records[i] for i in index), prompts, completions, strict=True
            )
        ]
        scores = score_within_budget(environment, rollouts)
        row = step_row(environment, rollouts, scores)
        record(rollouts, scores, row)
        for name, value in row.items():
            if name.startswith("env/") and math.isfinite(value):
                log_metric(name, value)
        return [item.value for item in scores]

    score.__name__ = environment.name
    return score
