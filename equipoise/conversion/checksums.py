"""Checksums that a source brings, against the bytes that it has now.

torch writes its files as archives, each entry with a CRC-32, which `torch.load` does not look at. A
folder that was converted here has the SHA-256 of its files in conversion.json.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from data_prep.files import hash_file, read_json
from equipoise.conversion.dcp import is_dcp, places_of_tensors
from equipoise.conversion.mapped import part_of
from equipoise.conversion.tensors import COPY_AGAIN, refuse

#: Beside a model's weights: where they come from, and what they were found to be.
RECORD = "conversion.json"


def check_sums(source: Path) -> bool:
    """Whether the source has checksums, all of which are right.

    Raises `ConversionError` for bytes that are not those that were written.
    """
    archives = list(_archives(source))
    for name, path, start, length in archives:
        _check_archive(name, path, start, length)
    recorded = _recorded(source)
    for path, wanted in recorded.items():
        if hash_file(path) != wanted:
            refuse(f"{path} is not what {RECORD} says was written", COPY_AGAIN)
    return bool(archives or recorded)


def _archives(source: Path) -> Iterator[tuple[str, Path, int, int]]:
    """What is in them, their file, and their bytes there."""
    if is_dcp(source) and any(source.glob("*.distcp")):  # beside shards it says nothing of these
        yield from places_of_tensors(source)
    for path in sorted(source.glob("pytorch_model*.bin")):
        yield "it", path, 0, path.stat().st_size


def _check_archive(name: str, path: Path, start: int, length: int) -> None:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(part_of(file, start, length)) as archive:
                packed = any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist())
                damaged = packed or archive.testzip()
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError) as error:
            refuse(f"{path}: {name} is no archive of torch's: {error}", COPY_AGAIN)
    if packed:
        refuse(f"{path}: {name} is compressed, which torch does not do")
    if damaged:
        refuse(f"{path}: {name} has another checksum than when it was written", COPY_AGAIN)


def _recorded(source: Path) -> dict[Path, str]:
    """The files of a folder that was converted here, and their hashes; a removed one is no harm."""
    record = source / RECORD
    if not record.is_file():
        return {}
    files = read_json(record).get("files")
    named = files.items() if isinstance(files, dict) else ()
    return {
        source / name: str(wanted)
        for name, wanted in named
        if name == Path(name).name and (source / name).is_file() and name.endswith(".safetensors")
    }
