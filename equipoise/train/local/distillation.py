"""Training on the frozen model's distributions over replies to other prompts."""

import copy
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from environments.base import DealtReply, Message
from equipoise.config.schema import Config
from equipoise.errors import EquipoiseError
from equipoise.models.causal import in_half
from equipoise.models.template import render
from equipoise.train.local.callbacks import ProgressCallback


def distil(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    replies: Sequence[DealtReply],
    config: Config,
    batch_size: int,
    learning_rate: float,
    progress: Callable[[int], None],
) -> dict[int, float]:
    """Train `model` in place on each reply once, in an order of the seed.

    At each token of a reply it learns the distribution that the model had, before any training,
    behind the prompt to which the reply was written. To imitate the token that was drawn would have
    the same mean, and learn the noise of the drawing as well.

    `progress` takes the steps done. Returns the loss of each step by its number, the cross entropy
    of a token. Raises `EquipoiseError` for a reply that the sequence length does not hold.
    """
    lessons = _lessons(replies, tokenizer, config.policy.max_total_sequence_length)
    set_seed(config.grpo.seed)
    with tempfile.TemporaryDirectory() as unused:
        trainer = _Distillation(
            temperature=config.policy.generation.temperature,
            model=model,
            args=_arguments(config, unused, model, batch_size, learning_rate, len(replies)),
            train_dataset=lessons,
            data_collator=_collate,
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
    replies: int,
) -> TrainingArguments:
    """One pass, the rate down to zero after a twentieth of the steps."""
    policy, on_cpu = config.policy, model.device.type == "cpu"
    micro = math.gcd(batch_size, policy.train_micro_batch_size)  # a whole batch in each step
    return TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch_size // micro,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=replies // batch_size // 20,
        max_grad_norm=policy.max_grad_norm or 0.0,
        remove_unused_columns=False,
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


@dataclass(frozen=True, slots=True)
class _Lesson:
    """Tokens of the prompt that is shown, and of the one that was answered, both with the reply."""

    shown: NDArray[np.int32]
    answered: NDArray[np.int32]
    reply_length: int


class _Distillation(Trainer):  # type: ignore[misc]  # transformers is not typed
    """Cross entropy with the frozen model's distributions in place of that with tokens."""

    def __init__(self, *, temperature: float, model: Any, **how: Any) -> None:
        super().__init__(model=model, **how)
        self.model_accepts_loss_kwargs = False  # the loss is a mean; Trainer averages over batches
        self._temperature = temperature
        self._copy = None if isinstance(model, PeftModel) else copy.deepcopy(model).eval()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return the mean over the tokens of replies, in nats."""
        replies = inputs["replies"]
        # The model as it was before training: a copy, or itself without its adapter.
        frozen, unadapted = self._copy, nullcontext()
        if frozen is None:
            frozen, unadapted = model, self.accelerator.unwrap_model(model).disable_adapter()
        with torch.no_grad(), unadapted:
            target = self._logits(frozen, inputs, "answered", replies).softmax(-1)
        return cross_entropy(self._logits(model, inputs, "shown", replies), target)

    def _logits(self, model: Any, inputs: dict[str, Tensor], side: str, replies: Tensor) -> Tensor:
        """[tokens of replies, words], of the temperature with which replies are drawn."""
        attention = inputs[f"{side}_attention"]
        logits: Tensor = model(
            input_ids=inputs[side],
            attention_mask=attention,
            position_ids=(attention.cumsum(-1) - 1).clamp(min=0),
            logits_to_keep=replies.shape[1] + 1,  # rows end together, and a token says the next
            use_cache=False,
        ).logits
        return logits[:, :-1][replies].float() / self._temperature


def _collate(lessons: Sequence[_Lesson]) -> dict[str, Tensor]:
    """Rows that end together; `replies` [rows, last tokens] is true at those of the reply."""
    longest = max(lesson.reply_length for lesson in lessons)
    lengths = torch.tensor([lesson.reply_length for lesson in lessons])
    batch = {"replies": torch.arange(longest, 0, -1)[None] <= lengths[:, None]}
    for name in ("shown", "answered"):
        rows = [torch.from_numpy(getattr(lesson, name)).long() for lesson in lessons]
        width = max(len(row) for row in rows)
        batch[name] = torch.zeros(len(rows), width, dtype=torch.long)
        batch[f"{name}_attention"] = torch.zeros(len(rows), width, dtype=torch.long)
        for number, row in enumerate(rows):
            batch[name][number, width - len(row) :] = row
            batch[f"{name}_attention"][number, width - len(row) :] = 1
    return batch


def _lessons(
    replies: Sequence[DealtReply], tokenizer: PreTrainedTokenizerBase, limit: int
) -> list[_Lesson]:
    """Raises `EquipoiseError` for one of more than `limit` tokens."""
    records = {r.id: r for reply in replies for r in (reply.record, reply.source)}
    prompts = _chat_tokens(tokenizer, [record.messages for record in records.values()], ready=True)
    tokens_of = dict(zip(records, prompts, strict=True))
    written = list(dict.fromkeys((reply.source.id, reply.completion) for reply in replies))
    chats = _chat_tokens(
        tokenizer,
        [
            [*records[name].messages, Message(role="assistant", content=text)]
            for name, text in written
        ],
    )
    ends = {
        key: np.array(chat, dtype=np.int32)[_prefix(tokens_of[key[0]], chat) :]
        for key, chat in zip(written, chats, strict=True)
    }
    lessons = []
    for reply in replies:
        end = ends[reply.source.id, reply.completion]
        shown, answered = (
            np.concatenate([np.array(tokens_of[record.id], dtype=np.int32), end])
            for record in (reply.record, reply.source)
        )
        lessons.append(_Lesson(shown, answered, len(end)))
    longest = max(max(len(x.shown), len(x.answered)) for x in lessons)
    if longest > limit:
        raise EquipoiseError(
            "first-stage.short-sequences",
            f"a prompt with its reply has {longest} tokens, "
            f"and policy.max_total_sequence_length is {limit}",
            f"Set policy.max_total_sequence_length={longest} or more.",
        )
    return lessons


def _prefix(prompt_tokens: Sequence[int], tokens: Sequence[int]) -> int:
    """Count the first tokens that a chat shares with its prompt: its reply begins behind them."""
    shared = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(prompt_tokens, tokens, strict=False)
    )
    return sum(1 for _ in shared)


def _chat_tokens(
    tokenizer: PreTrainedTokenizerBase, chats: Iterable[Sequence[Message]], *, ready: bool = False
) -> list[list[int]]:
    """Tokenize all chats, each a list of tokens; `ready` opens the turn of the reply."""
    texts = [render(tokenizer, chat, add_generation_prompt=ready) for chat in chats]
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return ids
