"""Adapters that are more than W + scale * B A, merged by PEFT itself in memory."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict

from equipoise.checkpoints.hugging_face import model_tensors
from equipoise.checkpoints.lora import (
    CONFIG,
    NOTHING,
    adapter_config,
    adapter_tensors,
    cast,
    limited,
)
from equipoise.checkpoints.tensors import LazyTensor, Tensors, refuse, size, total_bytes
from equipoise.checkpoints.verify import (
    difference,
    free_memory,
    load_whole,
    logits_of,
    names_of,
    tensors_of_model,
)
from equipoise.models.pretrained import SETTINGS_ERRORS

#: For the modules of all layers, each looked for in all patterns.
_PATTERN_SECONDS = 60


def merge_by_peft(
    folder: Path, base: Path, destination: Path
) -> tuple[dict[str, LazyTensor], torch.Tensor]:
    """Merge an adapter in float32; return the tensors, and the logits of base and adapter before.

    The tensors lie in `destination`, and are read in the base's number formats.
    """
    originals = tensors_of_model(model_tensors(base), base)
    numbers = sum(tensor.nbytes // tensor.dtype.itemsize for tensor in originals.values())
    # A base in float32, and what loading and merging hold beside it.
    needed = 8 * numbers + 2 * total_bytes(adapter_tensors(folder))
    if needed > (free := free_memory()):
        refuse(
            "lora.large-base",
            f"{folder} is merged by PEFT, which takes {size(needed)} of memory; {size(free)} are "
            "free",
            "Merge it on a larger machine. A plain LoRA is merged in little memory.",
        )
    config = _checked_config(folder, base, originals)
    model = load_whole(base, torch.float32)
    try:
        with warnings.catch_warnings():  # of tied layers, which the logits decide about
            warnings.simplefilter("ignore")
            adapted = PeftModel.from_pretrained(model, str(folder), config=config)
            expected = logits_of(adapted)
            merged = adapted.merge_and_unload(safe_merge=True)
    except SETTINGS_ERRORS as error:
        _refuse_by_peft(folder, error)
    difference(
        logits_of(merged),
        expected,
        "Tied embeddings need ensure_weight_tying=True in training; of other adapters that depend "
        "on the input there is no merged model.",
    )
    merged.save_pretrained(destination)
    tensors = model_tensors(destination)
    if all(
        name in originals and torch.equal(tensor.read(), originals[name].read().float())
        for name, tensor in tensors.items()
    ):
        refuse("lora.noop-merge", *NOTHING)
    return {n: cast(t, originals[n].dtype) if n in originals else t for n, t in tensors.items()}, (
        expected
    )


def _checked_config(folder: Path, base: Path, originals: Tensors) -> PeftConfig:
    """Build the adapter without numbers, and compare its tensors with the file's.

    PEFT only warns of keys and tensors that it does not know or does not find.
    """
    settings = adapter_config(folder)
    model = names_of(base, originals).model
    try:
        config = PeftConfig.from_pretrained(str(folder))
        fields = {field.name for field in dataclasses.fields(config)}
        if extras := sorted(settings.keys() - fields):
            refuse(
                "lora.unknown-setting",
                f"{folder / CONFIG} has {extras[0]}, which PEFT {peft.__version__} does not know",
            )
        if settings.get("megatron_config"):  # its layers' module is imported by name
            refuse("lora.foreign-code", f"{folder / CONFIG}: megatron_config names code")
        with limited(folder, _PATTERN_SECONDS), torch.device("meta"):
            adapted = get_peft_model(model, config)
            has = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except SETTINGS_ERRORS as error:
        _refuse_by_peft(folder, error)
    if not hasattr(adapted.base_model, "merge_and_unload"):
        refuse(
            "lora.unmergeable",
            f"{folder / CONFIG}: {settings.get('peft_type')} is not a change of weights, so there "
            "is no merged model",
            "Keep it an adapter: `equipoise convert SOURCE DEST --adapter`.",
        )
    tensors = adapter_tensors(folder)
    for name, form in has.items():
        if name not in tensors or tensors[name].shape != tuple(form.shape):
            shape = tensors[name].shape if name in tensors else "missing"
            refuse(
                "lora.other-tensor",
                f"{folder}: {name} is {shape}, and {CONFIG} makes it {tuple(form.shape)}",
            )
    # PEFT saves the embeddings below an adapter of them, too.
    extra = [name for name in tensors if name not in has and ".base_layer." not in name]
    if extra:
        refuse("lora.extra-tensor", f"{folder} holds {extra[0]}, of which {CONFIG} says nothing")
    return config


def _refuse_by_peft(folder: Path, error: BaseException) -> Any:
    reason = " ".join(str(error).split())[:300]
    refuse("lora.refused-by-peft", f"{folder}: PEFT does not merge it: {reason}")
