"""Contracts with NeMo-RL: what their tests need, and the least that a rehearsal trains."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from equipoise.files.nemo_rl import PATH_VARIABLE

ROOT = Path(__file__).resolve().parents[2]

needs_checkout = pytest.mark.skipif(
    PATH_VARIABLE not in os.environ, reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL"
)


def needs_extra(*packages):
    """Skip where the extra rehearse, with these packages of it, is not installed."""
    missing = [name for name in ("ray", "hydra", "torchdata", *packages) if not find_spec(name)]
    return pytest.mark.skipif(bool(missing), reason=f"the extra rehearse is needed: {missing}")


#: Words of its command: what it evaluates is small, too.
SMALL = (
    "--num-samples=160",
    "equipoise.local_model.steps=150",
    "equipoise.evaluation.bootstrap_draws=200",
    "equipoise.evaluation.permutations=100",
    "env.fairness.reference_generations=2",
    "equipoise.max_failure_rate=1.0",
)


def run_ranks(ranks, words, groups=1):
    """Run all ranks of a worker, which form `groups` in turn. Raises with the output of one."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.socket()) for _ in range(groups)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        ports = [str(server.getsockname()[1]) for server in servers]
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
    group["PORTS"] = ",".join(ports)
    started = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    try:
        for process in started:
            output = process.communicate(timeout=1500)[0]
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in started:
            process.kill()


class Both(dict):
    """Read by key, as v0.7.0 reads settings, and by attribute, as main does."""

    __getattr__ = dict.__getitem__
