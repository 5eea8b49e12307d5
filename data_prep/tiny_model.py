"""A tiny model for machines without a GPU: byte-level BPE, small Llama, warm-started by imitation.

It exists to show and test the pipeline and says nothing of any clinical model.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from environments.base import Message

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

# The system message is left out: the model has learnt its format from the warm start, and a
# shorter prompt is less work on a CPU.
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}" + USER + "{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}" + ASSISTANT + "{{ m['content'] }}" + END + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyModelSettings:
    """Size and warm start of the tiny model."""

    vocab_size: int = 2048
    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    max_positions: int = 512
    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 5e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the answer that the warm start imitates."""

    messages: tuple[Message, ...]
    answer: str


def warm_start(examples: Sequence[Example], settings: TinyModelSettings, cache: Path) -> Path:
    """The folder of the trained model; an equal one in `cache` is taken as it is.

    The folder's name is the hash of the examples and the settings. It appears whole or not at all.
    """
    folder = cache / f"tiny-{_content_hash(examples, settings)}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        tokenizer = train_tokenizer(examples, settings)
        model = imitate(examples, tokenizer, settings, Path(scratch) / "trainer")
        model.save_pretrained(Path(scratch) / "model")
        tokenizer.save_pretrained(Path(scratch) / "model")
        if not folder.exists():
            shutil.move(Path(scratch) / "model", folder)
    return folder


def train_tokenizer(
    examples: Sequence[Example], settings: TinyModelSettings
) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges may span words, so that a recurring phrase is one token.

    Text is cut after a comma, colon or full stop and nowhere else; any text can be encoded.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[,.:] "), behavior="merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [e.messages[-1]["content"] for e in examples] + [e.answer for e in examples]
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=settings.max_positions,
    )


def imitate(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    settings: TinyModelSettings,
    scratch: Path,
) -> LlamaForCausalLM:
    """Supervised fine-tuning on the answers alone, from random weights."""
    set_seed(settings.seed)
    model = LlamaForCausalLM(_llama_config(tokenizer, settings))
    arguments = TrainingArguments(
        output_dir=str(scratch),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.steps // 20,
        seed=settings.seed,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=_tokenized(examples, tokenizer),
        data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
    ).train()
    return model.eval()


def _llama_config(tokenizer: PreTrainedTokenizerFast, settings: TinyModelSettings) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=3 * settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def _tokenized(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Dataset:
    prompts = [
        tokenizer.apply_chat_template(
            list(e.messages), tokenize=False, add_generation_prompt=True
        )
        for e in examples
    ]
    inputs = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    answers = tokenizer([e.answer + END for e in examples], add_special_tokens=False)["input_ids"]
    pairs = list(zip(inputs, answers, strict=True))
    return Dataset.from_dict(
        {
            "input_ids": [p + a for p, a in pairs],
            "attention_mask": [[1] * len(p + a) for p, a in pairs],
            "labels": [[-100] * len(p) + a for p, a in pairs],
        }
    )


def _content_hash(examples: Sequence[Example], settings: TinyModelSettings) -> str:
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    digest.update(CHAT_TEMPLATE.encode())
    for example in examples:
        digest.update(json.dumps([example.messages, example.answer]).encode())
    return digest.hexdigest()[:16]
