"""What is refused before NeMo-RL's Python takes over, each with what to do."""

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest

from equipoise.config.nemo_rl.installation import Installation
from equipoise.errors import EquipoiseError
from equipoise.machine import nemo_rl
from equipoise.machine.overlay import NEEDED
from equipoise.machine.python import Machine, PythonInfo
from equipoise.machine.registry import refuse_unfit
from tests.equipoise.machine.conftest import LARGE, SMALL

SEEN = PythonInfo("3.13.13", dict.fromkeys(NEEDED, "1") | {"ray": "2.55.1"}, gpus=8, cluster=None)
HERE = Machine(
    root=Path(gettempdir()) / "no-such-nemo-rl",
    python=Path("/opt/nemo_rl_venv/bin/python"),
    python_info=SEEN,
    environment={"TORCH_CUDA_ARCH_LIST": "9.0", "HF_HOME": "/shared"},
)


@pytest.fixture
def large(case):
    """Four nodes of eight GPUs, on Megatron."""
    return case("fairness", *LARGE, purpose="start")


@pytest.fixture
def small(case):
    """One GPU."""
    return case("fairness", *SMALL, "--engine", "nemo_rl", purpose="start")


def seeing(**changes) -> Machine:
    return replace(HERE, python_info=replace(SEEN, **changes))


@pytest.fixture
def said(monkeypatch):
    """Everything that a start is refused for on a machine; empty where it is not."""

    def refused(case, machine) -> str:
        monkeypatch.setattr(nemo_rl, "find_installation", lambda _: Installation(machine.root))
        monkeypatch.setattr(nemo_rl, "look_at_machine", lambda *_: machine)
        monkeypatch.setattr(Installation, "version", "0.7.0")
        try:
            environment = {**machine.environment}
            refuse_unfit(replace(case, environment=environment, _facts={}), lambda _: None)
        except EquipoiseError as error:
            return f"{error.message}\n  {error.remedy}".strip()
        return ""

    return refused


def test_one_machine_with_its_gpus(small, said):
    assert not said(small, HERE)
    assert "1 GPU, and this machine has 0" in said(small, seeing(gpus=0))


def test_a_version_that_was_not_tried_is_one_line_and_goes_on(monkeypatch):
    monkeypatch.setattr(Installation, "version", "99.0.0+abcdef0")
    (finding,) = nemo_rl.untried(Installation(HERE.root))
    assert (finding.status, "not tried with NeMo-RL 99.0.0" in finding.says) == ("warning", True)


def test_a_running_cluster_counts_instead_of_this_machine(small, large, said):
    """As on a head node without GPUs."""
    assert not said(small, seeing(gpus=0, cluster=[0, 8]))
    assert not said(large, seeing(gpus=0, cluster=[0, 8, 8, 8, 8]))


@pytest.mark.parametrize("cluster", [[], [8, 8, 8], [8, 8, 8, 4, 4]])
def test_a_cluster_that_is_too_small_says_what_it_has(large, cluster, said):
    message = said(large, seeing(cluster=cluster))
    assert "4 nodes of 8 GPUs" in message
    assert ", ".join(map(str, cluster)) in message


def test_several_nodes_need_a_cluster_that_runs_and_can_be_joined(large, said):
    assert "no Ray cluster is running here" in said(large, HERE)
    assert "started with: Ray: 2.60.0" in said(large, seeing(problem="started with: Ray: 2.60.0"))


def test_packages_that_our_code_imports(small, said):
    versions = {**SEEN.versions, "rich": None, "ray": None}
    assert "has no rich, ray" in said(small, seeing(versions=versions))


def test_workers_environments_must_be_in_reach_and_writable(small, tmp_path, said):
    """As uv links them, with its cache below the home of a root that the user is not."""
    vllm = tmp_path / "worker" / "lib" / "python3.13" / "site-packages" / "vllm"
    vllm.mkdir(parents=True)
    cached = tmp_path / "cached.py"
    (vllm / "__init__.py").symlink_to(cached)
    machine = replace(HERE, environment={"NEMO_RL_VENV_DIR": str(tmp_path)})
    message = said(small, machine)
    assert f"{vllm / '__init__.py'} cannot be written to" in message
    assert "--fakeroot --writable-tmpfs" in message
    cached.touch()
    assert not said(small, machine)


def test_megatron_needs_its_variables(large, small, said):
    bare = replace(seeing(cluster=[8] * 4), environment={})
    message = said(large, bare)
    assert "TORCH_CUDA_ARCH_LIST" in message and "NRL_MEGATRON_CHECKPOINT_DIR" in message
    assert not said(small, replace(HERE, environment={}))
    # Everything is said at once.
    lines = said(large, replace(HERE, environment={})).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("  ") for line in lines[1::2])
