"""Sampling completions with transformers, reproducibly, in batches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from environments.base import PromptRecord, Rollout
from equipoise.models.causal import LoadedModel
from equipoise.train.stages.parts import KeptParts, Part

Progress = Callable[[int], None]
#: Tokens of prompts, tokens of completions.
CountTokens = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn; temperature 0 is greedy. `batch_size` counts completions."""

    generations: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    batch_size: int
    seed: int


def render_prompt(tokenizer: PreTrainedTokenizerBase, record: PromptRecord) -> str:
    """The record's messages in the model's chat template, ready for the completion."""
    text = tokenizer.apply_chat_template(
        [dict(message) for message in record.messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    return str(text)


def sample(
    loaded: LoadedModel,
    records: Sequence[PromptRecord],
    sampling: Sampling,
    progress: Progress,
    count: CountTokens,
    parts: KeptParts | None = None,
) -> list[Rollout]:
    """Draw `sampling.generations` completions of every record; siblings are adjacent.

    The caller's random state is left as it was, so that sampling never changes a training run. A
    batch that is in `parts` is taken from there, with the random state after it; any other is put
    there. The result is the same to the bit.
    """
    devices = [loaded.model.device] if loaded.model.device.type == "cuda" else []
    was_training = loaded.model.training
    loaded.model.eval()
    prompts_at_once = max(1, sampling.batch_size // sampling.generations)
    rollouts: list[Rollout] = []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(sampling.seed)
        for number, start in enumerate(range(0, len(records), prompts_at_once)):
            part = parts.read(number) if parts else None
            if part:
                _set_random_state(loaded.model.device, part.random_state)
            else:
                batch = records[start : start + prompts_at_once]
                part = _sample_batch(loaded, batch, sampling)
                count(part.prompt_tokens, part.completion_tokens)
                if parts:
                    parts.keep(number, part)
            rollouts += part.rollouts
            progress(len(rollouts))
    loaded.model.train(was_training)
    return rollouts


def _random_state(device: torch.device) -> str:
    """Return the state that the next completion is drawn from."""
    generator = torch.cuda if device.type == "cuda" else torch
    return bytes(generator.get_rng_state().tolist()).hex()


def _set_random_state(device: torch.device, state: str) -> None:
    generator = torch.cuda if device.type == "cuda" else torch
    generator.set_rng_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8))


def _sample_batch(loaded: LoadedModel, records: Sequence[PromptRecord], sampling: Sampling) -> Part:
    started = time.perf_counter()
    tokenizer = loaded.tokenizer
    prompts = [render_prompt(tokenizer, record) for record in records]
    inputs = tokenizer(
        prompts,
        return_tensors="pt",
        padding=True,
        add_special_tokens=False,
        return_token_type_ids=False,
    ).to(loaded.model.device)
    output = loaded.model.generate(**inputs, generation_config=_config(tokenizer, sampling))
    new_tokens = output[:, inputs["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    n = sampling.generations
    return Part(
        rollouts=[
            Rollout(r.id, r.set_id, r.split, prompt, text, r.metadata)
            for i, (r, prompt) in enumerate(zip(records, prompts, strict=True))
            for text in texts[i * n : (i + 1) * n]
        ],
        prompt_tokens=n * int(inputs["attention_mask"].sum()),
        completion_tokens=count_tokens(new_tokens, tokenizer.eos_token_id),
        seconds=time.perf_counter() - started,
        random_state=_random_state(loaded.model.device),
    )


def count_tokens(completions: torch.Tensor, end: int) -> int:
    """Tokens of all completions [B, T], each to its first `end`, which counts; padding follows."""
    ends = completions == end
    return int((ends.cumsum(dim=1) - ends.int() == 0).sum())


def _config(tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> GenerationConfig:
    greedy = sampling.temperature == 0
    return GenerationConfig(
        do_sample=not greedy,
        temperature=None if greedy else sampling.temperature,
        top_p=None if greedy else sampling.top_p,
        top_k=None if greedy else sampling.top_k or 0,
        max_new_tokens=sampling.max_new_tokens,
        num_return_sequences=sampling.generations,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
