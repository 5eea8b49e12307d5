"""A tiny model for machines without a GPU: byte-level BPE, small Llama, warm-started by imitation.

It exists to show and test the pipeline and says nothing of any clinical model.
"""

import hashlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from data_prep.contract import Example, WarmStart
from equipoise.files.disk import write_folder

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


class _Row(TypedDict):
    """One example as token ids; `labels` is -100 where nothing is to be learnt."""

    input_ids: list[int]
    attention_mask: list[int]
    labels: list[int]


Ids = NDArray[np.int32]

# The tokenizer's own record of a text takes far more memory than its ids.
_ENCODED_AT_ONCE = 1000
#: Up to which phrases are added to a smaller vocabulary.
_MOST_TOKENS = 2048


def warm_start(examples: Sequence[Example], settings: WarmStart, cache: Path) -> Path:
    """The folder of the trained model; an equal one in `cache` is taken as it is.

    The folder's name is the hash of the examples, the settings and this module. Of several
    processes one builds and the others wait. An interrupted build leaves nothing under that name.
    """
    folder = cache / f"tiny-{_content_hash(examples, settings)}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            write_folder(folder, partial(_build, examples, settings))
    return folder


def _build(examples: Sequence[Example], settings: WarmStart, folder: Path) -> None:
    with _undisturbed():
        tokenizer = train_tokenizer(examples, settings)
        imitate(examples, tokenizer, settings).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Print nothing, and leave the caller's logging and random state (on the CPU) as they were.

    Otherwise a run would draw other numbers when its model comes from the cache.
    """
    states = random.getstate(), np.random.get_state()
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def train_tokenizer(examples: Sequence[Example], settings: WarmStart) -> PreTrainedTokenizerFast:
    """Byte-level BPE, any text can be encoded.

    With `phrases` merges may span words, and a recurring phrase is one token. Text is then cut
    after a colon, a full stop and a comma, but not between a value and the next key of a JSON
    object: the two are one token, which nearly halves an answer. Without, GPT-2's cut between
    words holds, and a word is the same token in a sentence that was never seen. The pieces of the
    settings' `form` are cut out before either.
    """
    bpe = Tokenizer(models.BPE())
    phrase_ends = pre_tokenizers.Split(Regex(r'[.:] |, (?!")'), behavior="merged_with_previous")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([phrase_ends] if settings.phrases else []),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not settings.phrases),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for e in examples for text in (e.messages[-1]["content"], e.answer)]
    texts = list(dict.fromkeys(texts))
    bpe.train_from_iterator(texts, trainer)
    if settings.phrases:
        bpe = _with_phrases(bpe, texts)
    bpe.add_tokens([AddedToken(piece, normalized=False) for piece in settings.form])
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


def _with_phrases(bpe: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Make every recurring phrase one token, without those that merging would need on the way.

    They double the vocabulary, and the output layer is a third of a small model's compute.
    """
    cut = bpe.pre_tokenizer.pre_tokenize_str
    phrases = Counter(phrase for text in texts for phrase, _ in cut(text))
    state = json.loads(bpe.to_str())
    vocabulary = state["model"]["vocab"]
    for phrase, count in phrases.most_common(_MOST_TOKENS):
        if count > 1 and len(vocabulary) < _MOST_TOKENS:
            vocabulary.setdefault(phrase, len(vocabulary))
    state["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(state))


def imitate(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, settings: WarmStart
) -> LlamaForCausalLM:
    """Supervised fine-tuning on the answers alone, from random weights."""
    set_seed(settings.seed)
    model = LlamaForCausalLM(_llama_config(tokenizer, settings))
    with tempfile.TemporaryDirectory() as unused:
        trainer = Trainer(
            model=model,
            args=_training_arguments(settings, unused),
            train_dataset=_tokenized(examples, tokenizer),
            data_collator=_AnswersAlone(tokenizer),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model.eval()


class _AnswersAlone(DataCollatorForSeq2Seq):  # type: ignore[misc]
    """Has the model compute its output layer at the answers, which end each row, and one before."""

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        batch = super().__call__(features, return_tensors)
        learnt = (batch["labels"] != -100).any(dim=0)
        batch["logits_to_keep"] = int(learnt.sum()) + 1
        batch["labels"] = batch["labels"][:, -batch["logits_to_keep"] :]
        return batch


def _training_arguments(settings: WarmStart, output_dir: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=output_dir,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        adam_beta2=0.98,  # steadier than 0.999 at a learning rate this high
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


def _llama_config(tokenizer: PreTrainedTokenizerFast, settings: WarmStart) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=3 * settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        initializer_range=settings.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


@dataclass(frozen=True, slots=True)
class _Rows(Sequence[_Row]):
    """The ids of prompts and answers. As lists the largest task's take 280 MB, as arrays 60."""

    prompts: Sequence[Ids]
    answers: Sequence[Ids]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: Any) -> Any:
        prompt, answer = self.prompts[index].tolist(), self.answers[index].tolist()
        return _Row(
            input_ids=prompt + answer,
            attention_mask=[1] * len(prompt + answer),
            labels=[-100] * len(prompt) + answer,
        )


def _tokenized(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> _Rows:
    prompts = [
        tokenizer.apply_chat_template(list(e.messages), tokenize=False, add_generation_prompt=True)
        for e in examples
    ]
    answers = [e.answer + END for e in examples]
    return _Rows(_encode(prompts, tokenizer), _encode(answers, tokenizer))


def _encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[Ids]:
    """The ids of each text; one that recurs is encoded once."""
    unique = list(dict.fromkeys(texts))
    ids: dict[str, Ids] = {}
    for start in range(0, len(unique), _ENCODED_AT_ONCE):
        part = unique[start : start + _ENCODED_AT_ONCE]
        encoded = tokenizer(part, add_special_tokens=False)["input_ids"]
        ids.update(zip(part, (np.array(row, np.int32) for row in encoded), strict=True))
    return [ids[text] for text in texts]


def _content_hash(examples: Sequence[Example], settings: WarmStart) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    size = settings.model_dump(include=set(WarmStart.model_fields))
    digest.update(json.dumps(size, sort_keys=True).encode())
    for example in examples:
        digest.update(json.dumps([example.messages, example.answer]).encode())
    return digest.hexdigest()[:16]
