"""conversion.json: where a model comes from, what was checked of it, and its files' checksums."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.files import write_json
from equipoise.checkpoints.settings import json_mapping
from equipoise.checkpoints.sources import Source
from equipoise.checkpoints.writer import checksum

RECORD = "conversion.json"


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
