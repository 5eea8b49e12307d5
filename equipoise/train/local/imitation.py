"""Supervised training on replies, through TRL."""

import itertools
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from datasets import Dataset, disable_progress_bars
from numpy.typing import NDArray
from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

from data_prep.warm_start import Example
from environments.base import Message
from equipoise.config.schema import Config
from equipoise.errors import EquipoiseError
from equipoise.models.causal import in_half
from equipoise.models.template import render
from equipoise.train.local.callbacks import ProgressCallback
from equipoise.train.local.trainer import score_replies_alone


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
    rows = _rows(examples, tokenizer, config.policy.max_total_sequence_length)
    logging.getLogger("trl").setLevel(logging.ERROR)
    score_replies_alone()
    disable_progress_bars()
    set_seed(config.grpo.seed)
    with tempfile.TemporaryDirectory() as unused:
        trainer = SFTTrainer(
            model=model,
            args=sft_arguments(config, unused, model, batch_size, learning_rate, len(examples)),
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[ProgressCallback(progress)],
        )
        return train_losses(trainer)


def train_losses(trainer: Trainer) -> dict[int, float]:
    """Train, and return the loss of each step by its number."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}


def sft_arguments(
    config: Config,
    output_dir: str,
    model: PreTrainedModel | PeftModel,
    batch_size: int,
    learning_rate: float,
    examples: int,
) -> SFTConfig:
    """TRL's arguments: one pass, the rate down to zero after a twentieth of the steps."""
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


def _rows(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, limit: int) -> Dataset:
    """Tokens, with a mask of the reply's, as TRL would make them, each distinct example once.

    Passes show the same again, and TRL's own preparation of every row took half a gigabyte. Raises
    `EquipoiseError` for an example of more than `limit` tokens.
    """
    distinct = {_key(example): example for example in examples}
    places = {key: index for index, key in enumerate(distinct)}
    prompts = {prompt: example.messages for (prompt, _), example in distinct.items()}
    prompt_tokens = dict(
        zip(
            prompts,
            chat_tokens(tokenizer, prompts.values(), ready=True),
            strict=True,
        )
    )
    chats = [
        [*example.messages, Message(role="assistant", content=example.answer)]
        for example in distinct.values()
    ]
    rows = [
        {
            "input_ids": np.array(tokens, dtype=np.int32),
            "completion_mask": reply_mask(prompt_tokens[prompt], tokens),
        }
        for (prompt, _), tokens in zip(distinct, chat_tokens(tokenizer, chats), strict=True)
    ]
    refuse_longer(max(len(row["input_ids"]) for row in rows), limit)
    return Dataset.from_list(rows).select([places[_key(example)] for example in examples])


def refuse_longer(longest: int, limit: int) -> None:
    """Raise `EquipoiseError` where a prompt with its reply has more than `limit` tokens."""
    if longest > limit:
        raise EquipoiseError(
            "first-stage.short-sequences",
            f"a prompt with its reply has {longest} tokens, "
            f"and policy.max_total_sequence_length is {limit}",
            f"Set policy.max_total_sequence_length={longest} or more.",
        )


def reply_mask(prompt_tokens: Sequence[int], tokens: Sequence[int]) -> NDArray[np.int32]:
    """1 at the tokens of the reply, which begins where its chat is no longer the prompt alone."""
    prefix = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(prompt_tokens, tokens, strict=False)
    )
    mask = np.ones(len(tokens), dtype=np.int32)
    mask[: sum(1 for _ in prefix)] = 0
    return mask


def chat_tokens(
    tokenizer: PreTrainedTokenizerBase, chats: Iterable[Sequence[Message]], *, ready: bool = False
) -> list[list[int]]:
    """Tokenize all chats, each a list of tokens; `ready` opens the turn of the reply."""
    texts = [render(tokenizer, chat, add_generation_prompt=ready) for chat in chats]
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids


def _key(example: Example) -> tuple[tuple[tuple[str, str], ...], str]:
    return tuple((m["role"], m["content"]) for m in example.messages), example.answer
