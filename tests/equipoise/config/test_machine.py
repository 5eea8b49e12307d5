"""What is refused before NeMo-RL's Python takes over, each with what to do."""

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest

from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.machine import Machine, machine_warnings, refusals, refuse_machine
from equipoise.errors import EquipoiseError
from equipoise.installation.overlay import NEEDED
from equipoise.installation.probe import PythonInfo, Versions

LOCKED = Versions("3.13.13", "2.55.1")
SEEN = PythonInfo("3.13.13", dict.fromkeys(NEEDED, "1") | {"ray": "2.55.1"}, gpus=8, cluster=None)
HERE = Machine(
    root=Path(gettempdir()) / "no-such-nemo-rl",
    python=Path("/opt/nemo_rl_venv/bin/python"),
    python_info=SEEN,
    workers=frozenset([LOCKED]),
    environment={"TORCH_CUDA_ARCH_LIST": "9.0", "HF_HOME": "/shared"},
)


@pytest.fixture
def large(load):
    """Four nodes of eight GPUs, on Megatron."""
    return load("--config", str(CONFIG_FOLDER / "large.yaml")).config


@pytest.fixture
def small(load):
    """One GPU."""
    return load("--config", str(CONFIG_FOLDER / "small.yaml"), "--engine", "nemo_rl").config


def seeing(**changes) -> Machine:
    return replace(HERE, python_info=replace(SEEN, **changes))


def said(config, machine) -> str:
    return "\n".join(f"{refusal.message} {refusal.remedy}" for refusal in refusals(config, machine))


def test_one_machine_with_its_gpus(small):
    refuse_machine(small, HERE)
    assert "1 GPU, and this machine has 0" in said(small, seeing(gpus=0))


def test_a_running_cluster_counts_instead_of_this_machine(small, large):
    """As on a head node without GPUs."""
    assert not said(small, seeing(gpus=0, cluster=[0, 8]))
    assert not said(large, seeing(gpus=0, cluster=[0, 8, 8, 8, 8]))


@pytest.mark.parametrize("cluster", [[], [8, 8, 8], [8, 8, 8, 4, 4]])
def test_a_cluster_that_is_too_small_says_what_it_has(large, cluster):
    message = said(large, seeing(cluster=cluster))
    assert "4 nodes of 8 GPUs" in message
    assert ", ".join(map(str, cluster)) in message


def test_several_nodes_need_a_cluster_that_runs(large):
    message = said(large, HERE)
    assert "no Ray cluster is running here" in message
    assert "grpo.sbatch" in message


def test_a_cluster_that_cannot_be_joined_says_why(large):
    assert "started with: Ray: 2.60.0" in said(large, seeing(problem="started with: Ray: 2.60.0"))


@pytest.mark.parametrize(
    ("other", "level", "refused"),
    [
        (LOCKED, "patch", False),
        (Versions("3.13.12", "2.55.1"), "patch", True),
        (Versions("3.13.12", "2.55.1"), "minor", False),
        (Versions("3.12.13", "2.55.1"), "minor", True),
        (Versions("3.13.13", "2.60.0"), "minor", True),
    ],
)
def test_workers_with_another_python_or_ray(small, other, level, refused):
    environment = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": level}
    machine = replace(HERE, workers=frozenset([other]), environment=environment)
    message = said(small, machine)
    assert (str(LOCKED) in message and str(other) in message) == refused


def test_packages_that_our_code_imports(small):
    versions = {**SEEN.versions, "rich": None, "ray": None}
    assert "has no rich, ray" in said(small, seeing(versions=versions))


def test_workers_environments_must_be_in_reach_and_writable(small, tmp_path):
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


def test_megatron_needs_its_variables(large, small):
    bare = replace(seeing(cluster=[8] * 4), environment={})
    message = said(large, bare)
    assert "export TORCH_CUDA_ARCH_LIST=" in message
    assert "Set NRL_MEGATRON_CHECKPOINT_DIR to a folder that all nodes see" in message
    assert not said(small, replace(HERE, environment={}))


def test_everything_is_said_at_once(large):
    with pytest.raises(EquipoiseError) as caught:
        refuse_machine(large, replace(HERE, environment={}))
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("  ") for line in lines[1::2])


def test_a_model_that_every_node_downloads_is_warned_of(large, small):
    assert "HF_HOME" in next(machine_warnings(large, {}))
    assert not list(machine_warnings(large, HERE.environment))
    assert not list(machine_warnings(small, {}))
