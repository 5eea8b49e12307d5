"""A Hugging Face model in this process as the `ChatModel` of judges, planners and generators."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from transformers import GenerationConfig

from environments.base import Failure, FailureKind, Message
from environments.chat import Budget, ChatReply, ChatRequest, Valid
from environments.chat.accounting import Accounts, Usage
from environments.chat.client import Missing, ReplyCache, ask_through_cache
from equipoise.files.hub import model_identity
from equipoise.files.template import control_tokens, render
from equipoise.run.model import load_model

#: Temperature of the second try after an invalid greedy answer; greedy decoding would repeat it.
_SECOND_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class _Answer:
    """A completion; `complete` unless it was cut off at the largest number of tokens."""

    text: str
    tokens: int
    complete: bool


class HuggingFaceChatModel:
    """Answers greedily and in batches; the second try at an invalid answer is sampled.

    The random stream of a second try is seeded by `seed` and the request, so it does not depend on
    other requests. The schema of a request is not enforced. An answer may have `max_new_tokens`, at
    most half of the model's context; a prompt that does not fit into the rest fails. Raises
    `EquipoiseError` when the model cannot be loaded.
    """

    def __init__(
        self,
        name: str,
        *,
        cache_dir: Path | None = None,
        max_new_tokens: int = 512,
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        self._name = name
        on_gpu = torch.cuda.is_available()
        self._model, self._tokenizer = model, tokenizer = load_model(
            name,
            name,
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            device=torch.device("cuda" if on_gpu else "cpu"),
        )
        self._model_identity = model_identity(name)
        # Some models have several tokens that end an answer.
        eos: Any = model.generation_config.eos_token_id
        ends = (*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id)
        self._ends = sorted({int(token) for token in ends if token is not None})
        self._control_tokens = control_tokens(tokenizer)
        config = model.config.get_text_config()
        positions = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self._max_new_tokens = min(max_new_tokens, positions // 2)
        self._room = positions - self._max_new_tokens  # for a prompt, in tokens
        self._cache = ReplyCache(cache_dir) if cache_dir else None
        self._batch_size = batch_size
        self._seed = seed
        self._accounts = Accounts(name, Budget())
        self._lock = Lock()  # all threads share torch's random state

    @property
    def identity(self) -> str:
        """The model's content and what decides an answer besides it."""
        model = self._model_identity, str(self._model.dtype), self._max_new_tokens
        return json.dumps([*model, _SECOND_TEMPERATURE, self._seed])

    def ask(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        with self._accounts.waiting():
            replies = ask_through_cache(
                requests, identity=self.identity, cache=self._cache, ask_missing=self._ask
            )
        self._accounts.add("cache_hits", sum(reply.cached for reply in replies))
        return replies

    def counters(self) -> dict[str, float]:
        return self._accounts.counters()

    def _ask(self, missing: Missing) -> dict[bytes, ChatReply]:
        prompts = {key: self._render(r.messages) for key, r in missing.items()}
        lengths = {
            key: len(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])
            for key, prompt in prompts.items()
        }
        self._accounts.add("calls", len(prompts))
        answers: dict[bytes, _Answer] = {}
        with self._lock:
            # Prompts of similar lengths together; those that do not fit have no answer.
            fitting = [key for key in prompts if lengths[key] <= self._room]
            fitting.sort(key=lengths.__getitem__)
            for start in range(0, len(fitting), self._batch_size):
                keys = fitting[start : start + self._batch_size]
                tokens = sum(lengths[key] for key in keys)
                batch = self._generate([prompts[key] for key in keys], tokens)
                answers |= zip(keys, batch, strict=True)
            for key in [key for key in answers if _problem(answers[key], missing[key].valid)]:
                self._accounts.add("invalid_answers")
                seed = (int.from_bytes(key[:8], "big") + self._seed) % 2**63
                answers[key] = self._generate([prompts[key]], lengths[key], seed)[0]
        return {
            key: self._reply(key, answers.get(key), lengths[key], request.valid)
            for key, request in missing.items()
        }

    def _render(self, messages: Sequence[Message]) -> str:
        plain = [_plain(message, self._control_tokens) for message in messages]
        return render(self._tokenizer, plain)

    def _generate(
        self, prompts: Sequence[str], prompt_tokens: int, seed: int | None = None
    ) -> list[_Answer]:
        """Complete each prompt once: greedily without a seed, else by sampling."""
        model, tokenizer = self._model, self._tokenizer
        inputs = tokenizer(
            list(prompts),
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
            return_token_type_ids=False,
        ).to(model.device)
        sampled = seed is not None
        config = GenerationConfig(
            do_sample=sampled,
            temperature=_SECOND_TEMPERATURE if sampled else None,
            top_k=0 if sampled else None,
            max_new_tokens=self._max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=self._ends,
        )
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed or 0)
            output = model.generate(**inputs, generation_config=config)
        answers = []
        for tokens in output[:, inputs["input_ids"].shape[1] :].tolist():
            end = next((n for n, token in enumerate(tokens) if token in self._ends), None)
            text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
            answers.append(_Answer(str(text), len(tokens[:end]), complete=end is not None))
        self._accounts.add("attempts", len(prompts))
        self._accounts.spend(Usage(prompt_tokens, sum(answer.tokens for answer in answers)))
        return answers

    def _reply(self, key: bytes, answer: _Answer | None, length: int, valid: Valid) -> ChatReply:
        if answer is None:
            return self._failed("rejected", f"a prompt of {length} tokens, more than {self._room}")
        if problem := _problem(answer, valid):
            self._accounts.add("invalid_answers")
            return self._failed("invalid_reply", f"{problem} (asked 2 times)")
        if self._cache:
            self._cache.put(key, answer.text)
        return ChatReply(answer.text)

    def _failed(self, kind: FailureKind, message: str) -> ChatReply:
        self._accounts.add_failure(kind)
        return ChatReply(None, Failure(kind, f"{self._name}: {message}"))


def _problem(answer: _Answer, valid: Valid) -> str:
    """Say why a completion is not an answer; empty when it is one."""
    if not answer.complete:
        return "the answer was cut off at its largest number of tokens"
    return "" if valid(answer.text) else "the answer is not valid"


def _plain(message: Message, control_tokens: Sequence[str]) -> Message:
    """The message without halves of characters, which no tokenizer takes, and control tokens.

    `quote` knows the marks of all families; what else this tokenizer has is taken apart here.
    """
    content = message["content"].encode("utf-8", "replace").decode()
    for token in control_tokens:
        content = content.replace(token, f"{token[0]} {token[1:]}")
    return {"role": message["role"], "content": content}
