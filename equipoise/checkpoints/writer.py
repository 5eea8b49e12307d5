"""What a conversion writes: safetensors block by block, its record, and a model card.

The library writes a file of tensors that are all in memory. The format is a header in JSON, its
length before it, and the bytes of the tensors after it (huggingface.co/docs/safetensors).

conversion.json says where a model comes from and what was checked of it. The card evaluates
nothing; that of the source or of the base is not copied, for its claims are of other weights.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from equipoise.checkpoints.hugging_face import DTYPES, INDEX
from equipoise.checkpoints.sources import ADAPTERS, Source
from equipoise.checkpoints.tensors import (
    LazyTensor,
    Tensors,
    in_blocks,
    in_bytes,
    refuse,
    total_bytes,
)
from equipoise.files.console import is_visible
from equipoise.files.disk import write_json, write_text

_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)
_FOLDERS = re.compile(r"/\S*/")
_LONGEST = 300


def write_record(source: Source, folder: Path, **more: Any) -> None:
    about = {"path": str(source.path.resolve()), "kind": source.kind, "base": source.base}
    write_json(folder / "conversion.json", {"schema": 2, "source": about, **more})


def write_card(
    source: Source, folder: Path, base: str | None, checked: str, *, merged: bool = True
) -> None:
    """Write the card into the folder. `merged` is false of an adapter that stays one."""
    is_adapter = source.form in ADAPTERS
    on_hub = base if base and _HUB_NAME.fullmatch(base) and not Path(base).is_dir() else None
    relation = "finetune" if merged else "adapter"
    metadata = ModelCardData(
        base_model=on_hub,
        base_model_relation=relation if on_hub and is_adapter else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["equipoise"],
    )
    text = f"""---
{metadata.to_yaml()}
---

# Converted from {_code(source.path.name)}

> **Converted, not evaluated here.** Nothing below says how well this model answers.

- **Source:** {_code(source.kind)}
- **Base:** {_code(on_hub or Path(base).name) if base else "not known"}
- **Checked:** {_code(_FOLDERS.sub("", checked))}

The terms of the base model hold for this one too; this card states no licence.
"""
    write_text(folder / "README.md", text)


def _code(text: str) -> str:
    """Text of others as code on one line, in which Markdown and HTML mean nothing."""
    line = " ".join("".join(c for c in text if is_visible(c)).split())
    return f"`{line.replace('`', chr(39))[:_LONGEST]}`"


# --- Safetensors ----------------------------------------------------------------------------------


#: Larger models are cut into files of about this size, as Hugging Face does.
SHARD_BYTES = 5 * 10**9
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_ALIGNMENT = 8

Progress = Callable[[int], None]


def write_model(folder: Path, tensors: Tensors, progress: Progress) -> None:
    """Write all tensors. `progress` is told how many bytes were written."""
    shards = list(_shards(tensors))
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(folder / name, shard, progress)
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        metadata = {"total_size": total_bytes(tensors)}
        index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)


def _shards(tensors: Tensors) -> Iterator[dict[str, LazyTensor]]:
    shard: dict[str, LazyTensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def write_file(path: Path, tensors: Tensors, progress: Progress) -> None:
    with path.open("xb", buffering=0) as file:
        file.write(_header(tensors))
        for name, tensor in tensors.items():
            for block in in_blocks(name, tensor):
                data = in_bytes(block).numpy().data
                written = 0
                while written < len(data):  # the system writes 2 GiB at once, at most
                    written += file.write(data[written:])
                progress(len(data))


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        if tensor.dtype not in _KINDS:
            refuse(
                "writer.unknown-dtype",
                f"{name} has numbers of a kind that no model here has: {tensor.dtype}",
            )
        entries[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
