"""The local engine: `trl.GRPOTrainer` and peft on a CPU or one GPU, watched, stopped, resumed."""

import logging
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils

from environments.base import TRAIN_SPLIT, PromptRecord, Rollout, Score
from environments.contract import Environment
from equipoise.config.schedule import Schedule, plan, total_steps
from equipoise.config.schema import Config
from equipoise.config.schema import LoraConfig as LoraSettings
from equipoise.files.disk import write_folder
from equipoise.files.exits import Stopped, deferring
from equipoise.models.causal import (
    LoadedModel,
    Sampling,
    complete,
    in_half,
    render_prompt,
    until_end,
)
from equipoise.run.history import Row, restore, step_row
from equipoise.run.job import FailureMonitor, Job, Watch, begin_training, score_within_budget
from equipoise.run.rollouts import TrainingRollouts, choose
from equipoise.run.seals import CheckpointFolder, seal
from equipoise.train.local_callbacks import (
    CheckpointCallback,
    HistoryCallback,
    RolloutsCallback,
    ScheduleCallback,
    StopCallback,
    latest_checkpoint,
)

_LOG = logging.getLogger(__name__)

#: Rendered prompts and the trainer that asks, to the tokens of prompts and completions; see TRL.
RolloutFunction = Callable[[Sequence[str], GRPOTrainer], dict[str, list[list[int]] | None]]
RewardFunction = Callable[..., list[float | None]]
#: A checkpoint is deleted only when a newer one is complete, so two must fit.
_MIN_CHECKPOINTS = 2


def train(job: Job, loaded: LoadedModel, watch: Watch) -> None:
    """Train with TRL from the newest whole checkpoint, and save the final one."""
    config, run = job.config, job.run
    steps = total_steps(len(job.split(TRAIN_SPLIT)), config)
    begin_training(job, steps)
    checkpoint = latest_checkpoint(run.checkpoints)
    restore(run.history, checkpoint.path / run.history.name if checkpoint else None)
    restore(run.training, checkpoint.path / run.training.name if checkpoint else None)
    set_seed(config.grpo.seed)
    model = _grpo(job, watch, trainable(loaded, config), loaded, steps, checkpoint)

    def save(folder: Path) -> None:
        # TRL keeps the reference of a KL penalty as an adapter beside the trained one.
        trained = {"selected_adapters": ["default"]} if isinstance(model, PeftModel) else {}
        model.save_pretrained(folder, **trained)
        loaded.tokenizer.save_pretrained(folder)

    write_folder(run.final_checkpoint, save)
    seal(run, run.final_checkpoint, run.history, run.training.parent)


def _grpo(
    job: Job,
    watch: Watch,
    model: PreTrainedModel | PeftModel,
    loaded: LoadedModel,
    steps: int,
    checkpoint: CheckpointFolder | None,
) -> PreTrainedModel | PeftModel:
    """The model after its last step. Raises `Stopped` where it was stopped before."""
    config, run = job.config, job.run
    monitor = FailureMonitor(config.equipoise.max_failure_rate, config.equipoise.failure_window)
    with (
        job.timed("training"),
        deferring(_LOG.warning) as stop,
        watch(steps, checkpoint.step if checkpoint else 0) as on_row,
    ):
        history = HistoryCallback(run.history, on_row, job.meter)
        settings = config.equipoise.training_rollouts
        rollouts = RolloutsCallback(
            TrainingRollouts(run.training, settings.steps, steps),
            partial(choose, limit=settings.sets, seed=config.grpo.seed),
        )
        callbacks = [
            StopCallback(monitor, stop),
            history,
            rollouts,
            CheckpointCallback(run.history, run.training),
        ]
        records = job.split(TRAIN_SPLIT)
        reward = reward_function(job.environment, records, monitor, history.record, rollouts.record)
        trainer = build_trainer(model, loaded, records, reward, config, run.checkpoints, callbacks)
        set_seed(config.grpo.seed)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    if monitor.exceeded:
        raise monitor.error()
    if trainer.state.global_step < steps:
        raise Stopped
    return trainer.model


# --- from the keys of NeMo-RL to TRL --------------------------------------------------------------


class CardlessTrainer(GRPOTrainer):
    """TRL's trainer, which writes no model card here.

    The run's own card stands beside the trained weights; TRL's lists its tags in another order in
    every process, so a resumed run would change a file of the run before.
    """

    def create_model_card(self, *_: object, **__: object) -> None:
        """Write nothing."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the trained adapter, too.

        With a KL penalty a checkpoint has TRL's reference adapter in a folder of its own, and
        transformers then loads no other one: training would go on from untrained weights.
        """
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        model = model or self.model
        if isinstance(model, PeftModel):
            model.load_adapter(resume_from_checkpoint, model.active_adapter, is_trainable=True)


def build_trainer(
    model: PreTrainedModel | PeftModel,
    loaded: LoadedModel,
    records: Sequence[PromptRecord],
    reward: RewardFunction,
    config: Config,
    checkpoints: Path,
    callbacks: Sequence[TrainerCallback],
) -> GRPOTrainer:
    """Build the trainer of `model`: one epoch is the whole run, and every step has whole sets."""
    logging.getLogger("trl").setLevel(logging.ERROR)
    score_replies_alone()
    schedule = Schedule.of(model, config.policy)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)
        trainer = CardlessTrainer(
            model=model,
            reward_funcs=reward,
            rollout_func=draw_for_training(training_sampling(config)),
            args=grpo_arguments(config, checkpoints, loaded.model),
            train_dataset=train_rows(records, loaded.tokenizer, config),
            processing_class=loaded.tokenizer,
            callbacks=[ScheduleCallback(schedule), *callbacks],
            optimizers=(schedule.optimizer, schedule.scheduler),
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def score_replies_alone() -> None:
    """Have TRL compute the output layer at the tokens of replies alone on a CPU, too.

    Without Triton it does so at every token and then masks those of prompts, which have ten times
    as many, for the sake of devices that compile each new shape. Older TRL has not the name.
    """
    if hasattr(utils, "_use_triton"):
        utils._use_triton = lambda _device: True


def training_sampling(config: Config) -> Sampling:
    """How a step's completions are drawn: all at once, from the trainer's own random state."""
    grpo, generation = config.grpo, config.policy.generation
    return Sampling(
        generations=grpo.num_generations_per_prompt,
        max_new_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        batch_size=grpo.rollouts_per_step,
        seed=grpo.seed,
    )


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


def train_rows(
    records: Sequence[PromptRecord], tokenizer: PreTrainedTokenizerBase, config: Config
) -> Dataset:
    """One row per prompt and step, in the order of training; `index` points into `records`.

    Prompts are rendered, because TRL reads every row of a step again for each of its micro-batches
    and goes through all that is in it. `select` would look each row up once more.
    """
    grpo, steps = config.grpo, total_steps(len(records), config)
    order = plan(records, grpo.num_prompts_per_step, steps, grpo.seed)
    prompts = [render_prompt(tokenizer, record) for record in records]
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
    return with_adapter(prepared(loaded.model, config), config.policy.dtensor_cfg.lora_cfg)


def prepared(model: PreTrainedModel, config: Config) -> PreTrainedModel:
    """A base in 4 bits with all else in float32, as its training wants it; others as they are."""
    if not config.equipoise.load_in_4bit:
        return model
    checkpointing = config.policy.dtensor_cfg.activation_checkpointing
    ready: PreTrainedModel = prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=checkpointing
    )
    return ready


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
    monitor: FailureMonitor,
    record_step: Callable[[Row], None],
    keep: Callable[[Sequence[Rollout], Sequence[Score]], None],
) -> RewardFunction:
    """Make the function that `GRPOTrainer` calls once per step with whole sets.

    The dataset's column `index` says which record a completion belongs to. A score of None stays
    None: TRL leaves it out of the baseline and gives it advantage 0. `log_metric` hands the
    environment's metrics to TRL's trackers.
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
            Rollout(record.id, record.set_id, record.split, prompt, completion, record.metadata)
            for record, prompt, completion in zip(
                (records[i] for i in index), prompts, completions, strict=True
            )
        ]
        scores = score_within_budget(environment, rollouts)
        monitor.add([score.error for score in scores])
        row = step_row(environment, rollouts, scores)
        record_step(row)
        for name, value in row.items():
            if name.startswith("env/") and math.isfinite(value):
                log_metric(name, value)
        keep(rollouts, scores)
        return [item.value for item in scores]

    score.__name__ = environment.name
    return score
