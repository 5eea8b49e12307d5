"""The record of a conversion: conversion.json, and README.md, the model card.

conversion.json says where a model comes from, what was checked of it, and its files' checksums. The
card says what is known of it, which is no evaluation; that of the source or of the base is not
copied, for its claims are of other weights or of another folder.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from data_prep.files import write_json, write_text
from data_prep.hub import is_folder_name
from equipoise.checkpoints.files import json_mapping
from equipoise.checkpoints.sources import ADAPTERS, Source
from equipoise.checkpoints.writer import checksum
from equipoise.terminal.foreign_text import is_visible

RECORD, CARD = "conversion.json", "README.md"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_FOLDERS = re.compile(r"/\S*/")
_LONGEST = 300


def write_record(
    source: Source, folder: Path, checked: Mapping[str, Any], sums: Mapping[str, str], **more: Any
) -> None:
    """Write it into the folder. `sums` has checksums of files, by their names, that are known."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    record = {
        "schema": 1,
        "source": {
            "path": str(source.path.resolve()),
            "kind": source.kind,
            "base": source.base,
            "unsealed": source.unsealed,
        },
        **more,
        "checked": checked,
        "files": {name: sums.get(name) or checksum(folder / name) for name in names},
    }
    write_json(folder / RECORD, record)


def recorded_weights(folder: Path) -> dict[Path, str]:
    """Files of weights and their checksums; a file that was removed since is no harm."""
    record = folder / RECORD
    if not record.is_file():
        return {}
    files = json_mapping(record).get("files")
    named = files.items() if isinstance(files, dict) else ()
    return {
        folder / name: str(digest)
        for name, digest in named
        if name == Path(name).name and (folder / name).is_file() and name.endswith(".safetensors")
    }


def write_card(
    source: Source, folder: Path, base: str | None, checked: str, *, merged: bool = True
) -> None:
    """Write the card into the folder. `merged` is false of an adapter that stays one."""
    adapter = source.form in ADAPTERS
    stays_adapter = adapter and not merged
    relation = "adapter" if stays_adapter else "finetune" if adapter else None
    on_hub = base if base and _HUB_NAME.fullmatch(base) and not is_folder_name(base) else None
    metadata = ModelCardData(
        base_model=on_hub,
        base_model_relation=relation if on_hub else None,
        library_name="peft" if stays_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["equipoise"],
    )
    facts = {
        "Source": f"{_code(_short(source.path))}, {_code(source.kind)}",
        "Base": _code(on_hub or Path(base).name) if base else "not known",
        "Made by": _made_by(adapter=adapter, stays_adapter=stays_adapter),
        # What was not checked may name a file of this machine.
        "Checked": _code(_FOLDERS.sub("", checked)),
        "Seals": "the source has none for " + _code(", ".join(source.unsealed))
        if source.unsealed
        else "",
        "Record": f"{_code(RECORD)}, with the checksum of every file"
        if (folder / RECORD).is_file()
        else "",
        "Source's own card": f"{_code(CARD)} there; it describes the source and was not copied"
        if (source.path / CARD).is_file()
        else "",
    }
    lines = [f"- **{name}:** {fact}" for name, fact in facts.items() if fact]
    text = [
        f"---\n{metadata.to_yaml()}\n---\n",
        f"# Converted from {_code(source.path.name)}\n",
        "> **Converted, not evaluated here.** Nothing below says how well this model answers.\n",
        *lines,
        "\nThe terms of the base model hold for this one too; this card states no licence.",
    ]
    write_text(folder / CARD, "\n".join(text) + "\n")


def _made_by(*, adapter: bool, stays_adapter: bool) -> str:
    if stays_adapter:
        return "keeping the LoRA adapter one, in PEFT's form"
    return "merging the LoRA adapter into its base" if adapter else "writing the same weights anew"


def _short(path: Path) -> str:
    """A path below the working directory, or else the name: a card is read on other machines."""
    full_path = path.resolve()
    return str(
        full_path.relative_to(Path.cwd())
        if full_path.is_relative_to(Path.cwd())
        else full_path.name
    )


def _code(text: str) -> str:
    """Text of others as code on one line, in which Markdown and HTML mean nothing."""
    line = " ".join("".join(c for c in text if is_visible(c)).split())
    return f"`{line.replace('`', chr(39))[:_LONGEST]}`"
