"""Supervised training on replies, through TRL."""

import logging
import math
import tempfile
from collections.abc import Callable, Sequence

from datasets import Dataset, disable_progress_bars
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from data_prep.warm_start import Example
from environments.base import Message
from equipoise.config.schema import Config
from equipoise.engines.local.callbacks import ProgressCallback
from equipoise.engines.local.precision import in_half
from equipoise.errors import EquipoiseError


def imitate(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    config: Config,
    batch_size: int,
    learning_rate: float,
    progress: Callable[[int], None],
) -> dict[int, float]:
    """Train `model` in place on the replies alone, each once, in an order of the seed.

    `progress` takes the steps done. Returns the loss of each step by its number. Raises
    `EquipoiseError` for an example that the sequence length does not hold.
    """
    _refuse_long(examples, tokenizer, config.policy.max_total_sequence_length)
    logging.getLogger("trl").setLevel(logging.ERROR)
    disable_progress_bars()
    set_seed(config.grpo.seed)
    with tempfile.TemporaryDirectory() as unused:
        trainer = SFTTrainer(
            model=model,
            args=_arguments(config, unused, model, batch_size, learning_rate, len(examples)),
            train_dataset=_rows(examples),
            processing_class=tokenizer,
            callbacks=[ProgressCallback(progress)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}


def _arguments(
    config: Config,
    output_dir: str,
    model: PreTrainedModel | PeftModel,
    batch_size: int,
    learning_rate: float,
    examples: int,
) -> SFTConfig:
    policy, on_cpu = config.policy, model.device.type == "cpu"
    micro = math.gcd(batch_size, policy.train_micro_batch_size)  # a whole batch in each step
    return SFTConfig(
        output_dir=output_dir,
        num_train_epochs=1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch_size // micro,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=examples // batch_size // 20,
        max_grad_norm=policy.max_grad_norm or 0.0,
        max_length=None,  # a reply without its end would teach to go on for ever
        completion_only_loss=True,
        seed=config.grpo.seed,
        bf16=in_half(config, model),
        gradient_checkpointing=policy.dtensor_cfg.activation_checkpointing,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _rows(examples: Sequence[Example]) -> Dataset:
    """TRL's conversational form, of which it learns the completion alone."""
    rows = [{"prompt": list(e.messages), "completion": [_reply(e)]} for e in examples]
    return Dataset.from_list(rows)


def _reply(example: Example) -> Message:
    return {"role": "assistant", "content": example.answer}


def _refuse_long(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, most: int
) -> None:
    chats = [[*e.messages, _reply(e)] for e in examples]
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    longest = max(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    if longest > most:
        raise EquipoiseError(
            f"a prompt with its reply has {longest} tokens, "
            f"and policy.max_total_sequence_length is {most}",
            f"Set policy.max_total_sequence_length={longest} or more.",
        )
