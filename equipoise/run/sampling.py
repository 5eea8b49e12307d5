"""Completions of the local model, sampled reproducibly in batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import (
    BatchEncoding,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer

from environments.base import PromptRecord, Rollout
from equipoise.files.template import render

Progress = Callable[[int], None]
#: Tokens of prompts, tokens of completions.
CountTokens = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer; `identity` says what both are, see `identity_of`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: str

    def render(self, record: PromptRecord) -> str:
        """Write a prompt in the model's chat template, ready for the reply."""
        return render(self.tokenizer, record.messages)


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


def sample(
    loaded: LoadedModel,
    records: Sequence[PromptRecord],
    sampling: Sampling,
    progress: Progress,
    count: CountTokens,
) -> list[Rollout]:
    """Draw `sampling.generations` completions of every record; siblings are adjacent.

    The caller's random state is left as it was, so that sampling never changes a training run.
    """
    devices = [loaded.model.device] if loaded.model.device.type == "cuda" else []
    was_training = loaded.model.training
    loaded.model.eval()
    prompts_at_once = max(1, sampling.batch_size // sampling.generations)
    rollouts: list[Rollout] = []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(sampling.seed)
        for start in range(0, len(records), prompts_at_once):
            batch = records[start : start + prompts_at_once]
            rollouts += _sample_batch(loaded, batch, sampling, count)
            progress(len(rollouts))
    loaded.model.train(was_training)
    return rollouts


def _sample_batch(
    loaded: LoadedModel, records: Sequence[PromptRecord], sampling: Sampling, count: CountTokens
) -> list[Rollout]:
    tokenizer, n = loaded.tokenizer, sampling.generations
    prompts = [loaded.render(record) for record in records]
    inputs, new_tokens = complete(loaded.model, tokenizer, prompts, sampling)
    texts = tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    written = until_end(new_tokens, tokenizer.eos_token_id)
    count(n * int(inputs["attention_mask"].sum()), int(written.sum()))
    return [
        Rollout(r.id, r.set_id, r.split, prompt, text, r.metadata)
        for i, (r, prompt) in enumerate(zip(records, prompts, strict=True))
        for text in texts[i * n : (i + 1) * n]
    ]


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    sampling: Sampling,
) -> tuple[BatchEncoding, torch.Tensor]:
    """Return the tokens of the B prompts and those of their completions [B x generations, T]."""
    n = sampling.generations
    inputs = tokenizer(
        list(prompts),
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=False,
        return_token_type_ids=False,
    ).to(model.device)
    output = model.generate(
        input_ids=inputs["input_ids"].repeat_interleave(n, dim=0),
        attention_mask=inputs["attention_mask"].repeat_interleave(n, dim=0),
        past_key_values=_shared_prefix(model, tokenizer, inputs, n),
        generation_config=_greedy(tokenizer, sampling.max_new_tokens),
        logits_processor=_processors(sampling),
    )
    return inputs, output[:, inputs["input_ids"].shape[1] :]


def until_end(completions: torch.Tensor, end: int) -> torch.Tensor:
    """Return a mask [B, T] of the tokens up to each completion's first `end`; padding follows."""
    ends = completions == end
    return ends.cumsum(dim=1) - ends.int() == 0


class InverseTransformSampling(LogitsProcessor):
    """Draw every row's token by one uniform number and make it the likeliest.

    `torch.multinomial`, which transformers samples with, draws a random number for each word of the
    vocabulary: on a CPU that took two fifths of the time of sampling.
    """

    def __call__(self, _tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Set the token drawn to infinity in the scores [B, V], and return them."""
        cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
        # Above 0 and at most the total: a word without probability adds nothing to the sum, so it
        # is never the first to reach the point.
        point = (1 - torch.rand(len(scores), 1, device=scores.device)) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, point)
        return scores.scatter_(1, tokens, torch.inf)  # `generate` hands over a copy


def _shared_prefix(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, torch.Tensor],
    generations: int,
) -> DynamicCache | None:
    """Compute each prompt's keys and values once for all its completions.

    The last token is left to the sampling itself. None where the model keeps something else, as a
    recurrent one does, which then reads the prompt for each completion.
    """
    settings = _greedy(tokenizer, max_new_tokens=1, return_dict_in_generate=True)
    prefix = {name: tensor[:, :-1] for name, tensor in inputs.items()}
    cache = model.generate(**prefix, generation_config=settings).get("past_key_values")
    if not isinstance(cache, DynamicCache):
        return None
    if not all(isinstance(layer, DynamicLayer) for layer in cache.layers):
        return None
    cache.batch_repeat_interleave(generations)
    return cache


def _processors(sampling: Sampling) -> LogitsProcessorList:
    """Make of scores what leaves one token possible; for greedy sampling nothing."""
    processors = LogitsProcessorList()
    if sampling.temperature == 0:
        return processors
    if sampling.temperature != 1:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    processors.append(InverseTransformSampling())
    return processors


def _greedy(
    tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, **more: bool
) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **more,
    )
