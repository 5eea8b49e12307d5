"""Packing in parts, and unpacking only what is whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.pack import MANIFEST, NOT_NEEDED, OF_THE_MACHINE, WHOLE, pack, unpack

PART_BYTES = 1_000


def write_content(folder: Path) -> None:
    (folder / "packages").mkdir(parents=True)
    noise = [str(hash((i, 7)) % 10_000_019) for i in range(1_000)]  # it has to be several parts
    (folder / "packages" / "module.py").write_text(" ".join(noise))
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write_content(tmp_path / "content")
    pack(tmp_path / "content", tmp_path / "parts", PART_BYTES)
    return tmp_path / "parts"


def test_what_was_packed_comes_out_by_python_alone(parts: Path, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in parts.glob("part-*")]
    assert len(sizes) > 2 and max(sizes) == PART_BYTES
    command = [sys.executable, "-I", "-S", str(parts / "pack.py"), "unpack", str(parts)]
    for says in ("unpacked", "was there"):
        done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True)
        assert done.returncode == 0 and says in done.stdout, done.stderr
    for name in ("packages/module.py", "run.sh"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "content" / name).read_bytes()
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o111


def test_equal_content_makes_equal_parts_and_a_smaller_one_leaves_none(
    parts: Path, tmp_path: Path
) -> None:
    sums = (parts / MANIFEST).read_text()
    for path in (tmp_path / "content").rglob("*"):
        path.touch()
    pack(tmp_path / "content", parts, PART_BYTES)
    assert (parts / MANIFEST).read_text() == sums
    (tmp_path / "content" / "packages" / "module.py").unlink()
    pack(tmp_path / "content", parts, PART_BYTES)
    assert [path.name for path in parts.glob("part-*")] == list(
        json.loads((parts / MANIFEST).read_text())
    )


@pytest.mark.parametrize("damage", ["a bit", "missing"])
def test_a_damaged_part_is_named_and_nothing_is_unpacked(
    damage: str, parts: Path, tmp_path: Path
) -> None:
    part = parts / "part-001"
    whole = part.read_bytes()
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match="missing or damaged: part-001; copy them again"):
        unpack(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    part.write_bytes(whole)
    assert unpack(parts, tmp_path / "out")
    (tmp_path / "out" / WHOLE).unlink()  # as where unpacking was interrupted
    (tmp_path / "out" / "run.sh").write_text("hal")
    assert unpack(parts, tmp_path / "out")
    assert (tmp_path / "out" / "run.sh").read_text() == "true\n"


def test_torch_and_what_belongs_to_it_stay_behind() -> None:
    behind = ("torch==2.11.0", "nvidia-cublas==13.1", "cuda-bindings==13", "triton==3.6")
    kernels = ("flashinfer-cubin==0.6.8.post1", "flashinfer-python==0.6.8.post1", "tilelang==0.1.9")
    taken = ("torchdata==0.11.0", "nvidia-ml-py==13.1", "torchao==0.18.0", "numpy==2.5")
    assert all(OF_THE_MACHINE.match(line) for line in behind)
    assert all(NOT_NEEDED.match(line) for line in kernels)
    assert not any(p.match(line) for line in taken for p in (OF_THE_MACHINE, NOT_NEEDED))
