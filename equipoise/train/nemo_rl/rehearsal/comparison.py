"""Whether training, generation and the exported model are one policy.

A rehearsal keeps its last rollouts with the log-probabilities of their tokens as the generation and
as the training workers give them; the model in final_checkpoint/ gives them once more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from equipoise.config.schema import GenerationConfig
from equipoise.files.errors import EquipoiseError
from equipoise.run.job import Job

#: In nats: what two float32 implementations of one model may differ by, and much more.
TOLERANCE = 1e-3
_FILE = "last_rollouts.safetensors"
_TRAINING = "training"
_REMEDY = (
    "Usually LoRA changes the head of a model whose head is its embeddings, as the tiny one's is: "
    "generation and merging leave that change out. Take exclude_modules=[lm_head] and "
    "match_all_linear=false in policy.dtensor_cfg.lora_cfg. Else see in nemo_rl.log which weights "
    "were sent and saved, and when."
)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Sequences with what several sides say of them; R rows, padded on the right to S tokens."""

    ids: Tensor  # [R, S]
    prompts: Tensor  # [R], tokens of the prompt
    lengths: Tensor  # [R], tokens of prompt and completion
    logprobs: dict[str, Tensor]  # a side -> [R, S], of each token given those before it

    @property
    def completions(self) -> Tensor:
        """Which tokens were sampled, [R, S]."""
        positions = torch.arange(self.ids.shape[1])[None]
        return (positions >= self.prompts[:, None]) & (positions < self.lengths[:, None])


@dataclass(frozen=True, slots=True)
class Difference:
    """A largest difference between training and another side, in nats, and where it is."""

    side: str
    nats: float
    rollout: int
    token: int


def rollouts_file(run: Path) -> Path:
    return run / _FILE


def write_rollouts(path: Path, rollouts: Rollouts) -> None:
    """One safetensors file."""
    sides = {f"logprobs/{side}": values for side, values in rollouts.logprobs.items()}
    parts = {"ids": rollouts.ids, "prompts": rollouts.prompts, "lengths": rollouts.lengths}
    save_file({name: tensor.contiguous() for name, tensor in (parts | sides).items()}, path)


def read_rollouts(path: Path) -> Rollouts:
    """Read the file. Raises `EquipoiseError` if there is none."""
    if not path.exists():
        raise EquipoiseError(
            "rehearsal.no-rollouts",
            f"the rehearsal has no {path.name}: it ended before its policies could be compared",
            "Rehearse again under another --run-name.",
        )
    tensors = load_file(path)
    sides = {
        name.removeprefix("logprobs/"): tensor
        for name, tensor in tensors.items()
        if name.startswith("logprobs/")
    }
    return Rollouts(tensors["ids"], tensors["prompts"], tensors["lengths"], sides)


def compare_policies(job: Job, *, exact: bool) -> None:
    """Say how far the sides are apart.

    Raises `EquipoiseError` where they are not one policy, if they compute in float32 (`exact`).
    """
    rollouts = read_rollouts(rollouts_file(job.run.root))
    folder = job.run.final_checkpoint
    if folder.exists():
        for side, model in exported_models(folder, job.model_name):
            rollouts.logprobs[side] = logprobs_of(model, rollouts, job.config.policy.generation)
    else:  # as of an adapter that learnt nothing
        job.reporter.warn(f"nothing was exported, so no {folder.name}/ is compared")
    differences = differences_from_training(rollouts)
    figures = {difference.side: difference.nats for difference in differences}
    job.run.ledger.update({"logprobs_differ_by": figures})
    sides = ", ".join(f"{side} {nats:.1e}" for side, nats in figures.items())
    tokens = int(rollouts.completions.sum())
    job.reporter.say(f"logprobs of {tokens:,} tokens differ from the training side's by: {sides}")
    if exact:  # in bfloat16, what rounding makes was never measured
        refuse_difference(differences)


def exported_models(folder: Path, base: str) -> Iterator[tuple[str, PreTrainedModel | PeftModel]]:
    """Yield the model of final_checkpoint/; an adapter beside `base`, and then merged into it."""
    if not (folder / "adapter_config.json").exists():
        yield folder.name, _load(str(folder))
        return
    adapted = PeftModel.from_pretrained(_load(base), folder)
    yield folder.name, adapted
    yield f"{folder.name} merged", adapted.merge_and_unload()


def _load(name: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.float32, trust_remote_code=False
    )
    return model


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel | PeftModel, rollouts: Rollouts, sampling: GenerationConfig
) -> Tensor:
    """Of each token given those before it, [R, S], as it was sampled; 0 for the first."""
    ids = rollouts.ids
    mask = torch.arange(ids.shape[1])[None] < rollouts.lengths[:, None]
    logits = model.eval()(input_ids=ids, attention_mask=mask.long()).logits[:, :-1].float()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    scores = warpers(None, logits.flatten(0, 1)).view_as(logits)
    chosen = torch.log_softmax(scores, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(chosen, (1, 0))


def differences_from_training(rollouts: Rollouts) -> list[Difference]:
    """Return the largest difference of every other side."""
    training = rollouts.logprobs[_TRAINING]
    largest = []
    for side, values in rollouts.logprobs.items():
        if side != _TRAINING:
            apart = (values - training).abs() * rollouts.completions
            rollout, token = divmod(int(apart.argmax()), apart.shape[1])
            largest.append(Difference(side, float(apart[rollout, token]), rollout, token))
    return largest


def refuse_difference(differences: list[Difference]) -> None:
    """Raise `EquipoiseError` where the largest one is more than rounding."""
    worst = max(differences, key=lambda difference: difference.nats)
    if not worst.nats <= TOLERANCE:
        raise EquipoiseError(
            "rehearsal.other-logprobs",
            f"what is trained is not what is sampled or exported: logprobs of {worst.side} differ "
            f"from the training side's by up to {worst.nats:.2g} nats (rollout {worst.rollout}, "
            f"token {worst.token}), where rounding makes no {TOLERANCE:g}",
            _REMEDY,
        )
