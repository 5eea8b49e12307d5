"""Whether what was written is what was read, and whether it is a model."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM

from equipoise.conversion.hugging_face import model_tensors
from equipoise.conversion.lora import Adapter, Pair
from equipoise.conversion.tensors import Tensors, refuse, size
from equipoise.conversion.writer import content

#: Prompts of these shapes go through a model that fits into memory.
_PROMPTS, _LENGTH = 2, 16
#: A float32 merge differs by rounding alone; the others in their numbers' last bit.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was checked.

    `loads` is None for a model that this machine's memory is too small for. `logits` is the largest
    difference from those of the base with the adapter beside it, as a share of the largest logit;
    None where there is nothing to compare with.
    """

    tensors: int
    bytes: int
    loads: bool | None
    logits: float | None

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.tensors:,} tensors, {size(self.bytes)}, every byte read back"]
        if self.loads is None:
            parts.append("too large for this machine's memory to be loaded")
        else:
            parts.append("loads and answers")
        if self.logits is not None:
            parts.append(f"logits within {self.logits:.1g} of base and adapter")
        return "; ".join(parts)


def verify_bytes(written: Tensors, hashes: Mapping[str, str], place: Path) -> None:
    """Read everything back. Raises `ConversionError` for a byte that is not as it was.

    `hashes` are the SHA-256 of what was written of each tensor.
    """
    if written.keys() != hashes.keys():
        refuse(f"{place}: what was written are not the tensors that were read")
    for name, tensor in written.items():
        if hashlib.sha256(content(tensor.read())).hexdigest() != hashes[name]:
            refuse(f"{place}: {name} is not what was written", "Is the disk or its memory faulty?")


def verify_model(
    folder: Path, hashes: Mapping[str, str], base: Path | None, adapter: Adapter | None
) -> Verdict:
    """Read everything back, and let the model answer where it fits into memory.

    Raises `ConversionError` for a byte or a logit that is not as it must be.
    """
    written = model_tensors(folder)
    verify_bytes(written, hashes, folder)
    held = sum(tensor.nbytes for tensor in written.values())
    if 3 * held > psutil.virtual_memory().available:
        return Verdict(len(written), held, None, None)
    logits = _logits(AutoModelForCausalLM.from_pretrained(folder))
    if not bool(logits.isfinite().all()):
        refuse(f"{folder}: the model's logits are not finite")
    difference = _difference(logits, base, adapter) if base and adapter else None
    return Verdict(len(written), held, True, difference)


def _difference(merged: torch.Tensor, base: Path, adapter: Adapter) -> float:
    """How far the merged model is from its base with the adapter beside its linear maps."""
    model = AutoModelForCausalLM.from_pretrained(base)
    modules = dict(model.named_modules())
    for name, tensor in adapter.replaced.items():
        model.get_parameter(name).data.copy_(tensor.read())
    for name, pair in adapter.pairs.items():
        modules[name.removesuffix(".weight")].register_forward_hook(partial(_beside, pair))
    wanted = _logits(model)
    difference = float((merged.float() - wanted.float()).abs().max() / wanted.float().abs().max())
    if difference > _TOLERANCE.get(merged.dtype, 0.0):
        refuse(
            f"the merged model is not its base with the adapter: logits are {difference:.2g} off"
        )
    return difference


def _beside(
    pair: Pair, _: object, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    """The output of a linear map with its adapter's added."""
    a, b = (factor.read().to(output.dtype) for factor in (pair.a, pair.b))
    return output + pair.scale * (inputs[0] @ a.T @ b.T)


def _logits(model: Any) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(_PROMPTS * _LENGTH).reshape(_PROMPTS, _LENGTH) * 7 % vocabulary
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(ids).logits
    return logits
