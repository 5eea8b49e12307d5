"""Supervised fine-tuning of a LoRA through TRL, merged into its base."""

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars
from transformers import PreTrainedTokenizerBase, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from data_prep.files import create_folder, write_json
from data_prep.warm_start import Example
from environments.base import Message
from equipoise.config import Config
from equipoise.config.schema import LoraConfig
from equipoise.engines.local.callbacks import ProgressCallback
from equipoise.engines.local.precision import in_half
from equipoise.engines.local.trainer import prepared, with_adapter
from equipoise.errors import EquipoiseError
from equipoise.models.causal import LoadedModel

RECORD = "cold_start.json"


@dataclass(frozen=True, slots=True)
class ColdStart:
    """What was trained: the merged model, and the loss of each step by its number."""

    model: LoadedModel
    losses: dict[int, float]


def imitate(
    loaded: LoadedModel,
    examples: Sequence[Example],
    config: Config,
    progress: Callable[[int], None],
) -> ColdStart:
    """Train on the replies alone, in an order of the seed; `progress` takes the steps done.

    Raises `EquipoiseError` for an example that the sequence length does not hold.
    """
    _refuse_long(examples, loaded.tokenizer, config.policy.max_total_sequence_length)
    logging.getLogger("trl").setLevel(logging.ERROR)
    disable_progress_bars()
    set_seed(config.grpo.seed)
    with tempfile.TemporaryDirectory() as unused:
        trainer = SFTTrainer(
            model=with_adapter(prepared(loaded.model, config), _lora(config)),
            args=_arguments(config, unused, loaded),
            train_dataset=_rows(examples),
            processing_class=loaded.tokenizer,
            callbacks=[ProgressCallback(progress)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    merged = trainer.model.merge_and_unload()
    losses = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    return ColdStart(LoadedModel(merged, loaded.tokenizer, loaded.identity), losses)


def _lora(config: Config) -> LoraConfig:
    """The run's, even where the run itself trains all weights."""
    return config.policy.dtensor_cfg.lora_cfg.model_copy(update={"enabled": True})


def _arguments(config: Config, output_dir: str, loaded: LoadedModel) -> SFTConfig:
    settings, policy = config.equipoise.cold_start, config.policy
    micro = math.gcd(
        settings.batch_size, policy.train_micro_batch_size
    )  # a whole batch in each step
    on_cpu = loaded.model.device.type == "cpu"
    return SFTConfig(
        output_dir=output_dir,
        num_train_epochs=1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch_size // micro,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.steps // 20,
        max_grad_norm=policy.max_grad_norm or 0.0,
        max_length=None,  # a reply without its end would teach to go on for ever
        completion_only_loss=True,
        seed=config.grpo.seed,
        bf16=in_half(config, loaded.model),
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


def save(
    trained: ColdStart, examples: Sequence[Example], config: Config, destination: Path
) -> None:
    """Write the model, its tokenizer and what it was made of into a new folder."""

    def fill(folder: Path) -> None:
        trained.model.model.save_pretrained(folder)
        trained.model.tokenizer.save_pretrained(folder)
        write_json(folder / RECORD, _record(trained, examples, config))

    create_folder(destination, fill)


def _record(trained: ColdStart, examples: Sequence[Example], config: Config) -> dict[str, Any]:
    shown = json.dumps([asdict(example) for example in examples]).encode()
    return {
        "schema": 1,
        "task": config.equipoise.task,
        "base": trained.model.identity,
        "examples": {"count": len(examples), "sha256": hashlib.sha256(shown).hexdigest()},
        "settings": config.equipoise.cold_start.model_dump(),
        "lora": _lora(config).model_dump(),
        "seed": config.grpo.seed,
        "loss": trained.losses,
    }
