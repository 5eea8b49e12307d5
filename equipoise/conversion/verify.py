"""Whether what was written is what was read, and whether it is a model."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from equipoise.conversion.hugging_face import model_tensors, open_file
from equipoise.conversion.lora import Adapter, is_adapter
from equipoise.conversion.tensors import Tensors, refuse
from equipoise.conversion.writer import content

#: Prompts of these shapes go through a model that fits into memory.
_PROMPTS, _LENGTH = 2, 16
#: A float32 merge differs by rounding alone; the others in their numbers' last bit.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was checked.

    `loads` is None for a model that this machine's memory is too small for. `logits` is the largest
    difference from those of base and adapter as PEFT computes them, as a share of the largest
    logit; None where there is nothing to compare with.
    """

    tensors: int
    bytes: int
    loads: bool | None
    logits: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.tensors:,} tensors, {self.bytes / 1e9:.2f} GB, every byte read back"]
        if self.loads is None:
            parts.append("too large for this machine's memory to be loaded")
        else:
            parts.append("loads and answers")
        if self.logits is not None:
            parts.append(f"logits within {self.logits:.1g} of base and adapter")
        return "; ".join(parts)


def verify(
    folder: Path,
    tensors: Tensors,
    hashes: Mapping[str, str],
    base: Path | None,
    source: Path,
    adapter: Adapter | None,
) -> Verdict:
    """Read everything back. Raises `ConversionError` for a byte or a logit that is not as it was.

    `hashes` are the SHA-256 of what was written of each tensor.
    """
    open_file.cache_clear()
    written = model_tensors(folder)
    if written.keys() != tensors.keys():
        refuse(f"{folder}: what was written are not the tensors that were read")
    for name, tensor in written.items():
        if hashlib.sha256(content(tensor.read())).hexdigest() != hashes[name]:
            refuse(f"{folder}: {name} is not what was written", "Is the disk or its memory faulty?")
    size = sum(tensor.nbytes for tensor in written.values())
    open_file.cache_clear()
    if 3 * size > psutil.virtual_memory().available:
        return Verdict(len(written), size, None, None)
    logits = _logits(AutoModelForCausalLM.from_pretrained(folder))
    if not math.isfinite(float(logits.float().sum())):
        refuse(f"{folder}: the model's logits are not finite")
    known = adapter is not None and is_adapter(source)
    return Verdict(len(written), size, True, _difference(logits, base, source) if known else None)


def _difference(merged: torch.Tensor, base: Path | None, adapter: Path) -> float:
    model = AutoModelForCausalLM.from_pretrained(base)
    wanted = _logits(PeftModel.from_pretrained(model, adapter))
    difference = float((merged.float() - wanted.float()).abs().max() / wanted.float().abs().max())
    if difference > _TOLERANCE.get(merged.dtype, 0.0):
        refuse(
            f"the merged model is not its base with {adapter}: logits differ by {difference:.2g}"
        )
    return difference


def _logits(model: Any) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(_PROMPTS * _LENGTH).reshape(_PROMPTS, _LENGTH) * 7 % vocabulary
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(ids).logits
    return logits
