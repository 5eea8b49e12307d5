"""Megatron's torch_dist to safetensors, beside `cp` and Megatron-Bridge's own converter.

    pytest -n 0 -s tests/benchmarks/test_bench_conversion.py

1.34 GB in bfloat16, files in the cache, in turns; the best of several rounds is compared, for the
machine may have other work. Imports are not counted.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.checkpoints.hugging_face import write_model
from equipoise.checkpoints.megatron import to_hugging_face
from equipoise.checkpoints.sources import open_source
from equipoise.files.disk import read_json
from tests.contract.packages import MEGATRON, missing
from tests.equipoise.checkpoints.large import save_megatron, shape

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "tests" / "contract" / "megatron"
PACKAGES = MEGATRON.folder
ROUNDS = 7
BRIDGE_ROUNDS = 2
OF_CP, OF_BRIDGE = 0.5, 1.5
MEMORY = 512 * 10**6

_MEMORY_OF = r"""
import re, sys, threading, time
from pathlib import Path
from equipoise.checkpoints.convert import convert
from equipoise.checkpoints import verify
from equipoise.files.console import Reporter

def told(name):
    return int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def watch():
    while True:
        own.append(told("RssAnon"))
        time.sleep(0.002)

own, imports = [], told("VmHWM")
threading.Thread(target=watch, daemon=True).start()
verify.free_memory = lambda: 0  # what fits would be loaded
convert(Path(sys.argv[1]), Path(sys.argv[2]), base=sys.argv[3])
# Not ru_maxrss, which begins with the process that started this one.
print(max(own), imports, told("VmHWM"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The checkpoint; everything that is made of it goes with it."""
    folder = tmp_path_factory.mktemp("large")
    save_megatron(shape(12, 2048, 5632, 32_000), folder)
    yield folder
    shutil.rmtree(folder)


def convert_here(folder, destination):
    """Convert the weights of a checkpoint as the converter does."""
    tensors = to_hugging_face(
        open_source(folder / "iter_0000000").tensors, read_json(folder / "base" / "config.json")
    )
    destination.mkdir()
    write_model(destination, tensors, lambda _: None)


def copy(folder, destination):
    subprocess.run(["cp", "-r", folder / "iter_0000000", destination], check=True)


def seconds(action, destination):
    os.sync()
    started = time.perf_counter()
    action(destination)
    took = time.perf_counter() - started
    shutil.rmtree(destination, ignore_errors=True)
    return took


def test_half_as_fast_as_cp(folder):
    actions = {"cp": lambda to: copy(folder, to), "written": lambda to: convert_here(folder, to)}
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(ROUNDS):
        for name, action in actions.items():
            best[name] = min(best[name], seconds(action, folder / "made"))
    for name, took in best.items():
        print(f"{name}: {took:.2f} s, {best['cp'] / took:.2f} of the throughput of cp")
    assert best["cp"] / best["written"] > OF_CP


def test_memory(folder):
    """Files that are mapped take none: the system drops their pages when it needs room."""
    words = [sys.executable, "-c", _MEMORY_OF, folder / "iter_0000000", folder / "out"]
    done = subprocess.run([*words, folder / "base"], capture_output=True, text=True, check=True)
    own, imports, peak = map(int, done.stdout.splitlines()[-1].split())
    largest = max(t.nbytes for t in open_source(folder / "iter_0000000").tensors.values())
    print(
        f"own memory {own / 1e6:.0f} MB; with files that are mapped {peak / 1e6:.0f} MB, of which "
        f"imports {imports / 1e6:.0f} MB; largest tensor {largest / 1e6:.0f} MB"
    )
    assert own < 1.5 * largest + MEMORY
    assert peak - imports < 1.5 * largest + MEMORY
    if peak >= 1.5 * largest + MEMORY:
        pytest.xfail("with imports the goal is missed: torch and transformers take most of it")


@pytest.mark.skipif(not PACKAGES.exists(), reason=missing("megatron"))
def test_faster_than_megatron_bridge(folder):
    """Its own reading and writing; the model that they go through is made before."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    convert_here(folder, folder / "out" / "model")
    shutil.copy(folder / "base" / "config.json", folder / "out" / "model")
    ours, theirs = [], []
    for _ in range(BRIDGE_ROUNDS):
        made = folder / "bridge"
        words = [WORKERS / "export_worker.py", PACKAGES, folder / "out" / "model"]
        done = subprocess.run(
            [sys.executable, *words, folder / "iter_0000000", made],
            capture_output=True,
            text=True,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
        theirs.append(told["reading"] + told["writing"])
        shutil.rmtree(made)
        ours += [seconds(lambda to: convert_here(folder, to), folder / "made") for _ in range(3)]
    print(f"{min(ours):.2f} s, Megatron-Bridge {min(theirs):.2f} s and {told['peak'] / 1e6:.0f} MB")
    assert min(theirs) / min(ours) > OF_BRIDGE
