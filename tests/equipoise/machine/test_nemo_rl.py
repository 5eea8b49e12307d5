"""What is refused before NeMo-RL's Python takes over, each with what to do."""

from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest

from equipoise.config.nemo_rl.installation import Installation
from equipoise.errors import EquipoiseError
from equipoise.machine import nemo_rl
from equipoise.machine.nemo_rl import as_locked, in_slurm, repeated_downloads, seen_by_nodes
from equipoise.machine.overlay import NEEDED
from equipoise.machine.python import (
    Machine,
    PythonInfo,
    Versions,
    changes,
    installed_in,
    locked_in,
    slurm_nodes,
)
from equipoise.machine.registry import refuse_unfit
from tests.equipoise.machine.conftest import LARGE, SMALL

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
def large(case):
    """Four nodes of eight GPUs, on Megatron."""
    return case("fairness", *LARGE, thorough=False)


@pytest.fixture
def small(case):
    """One GPU."""
    return case("fairness", *SMALL, "--engine", "nemo_rl", thorough=False)


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


def test_several_nodes_need_a_cluster_that_runs(large, said):
    message = said(large, HERE)
    assert "no Ray cluster is running here" in message
    assert "grpo.sbatch" in message


def test_a_cluster_that_cannot_be_joined_says_why(large, said):
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
def test_workers_with_another_python_or_ray(small, other, level, refused, said):
    environment = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": level}
    machine = replace(HERE, workers=frozenset([other]), environment=environment)
    message = said(small, machine)
    assert (str(LOCKED) in message and str(other) in message) == refused


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
    assert "export TORCH_CUDA_ARCH_LIST=" in message
    assert "Set NRL_MEGATRON_CHECKPOINT_DIR to a folder that all nodes see" in message
    assert not said(small, replace(HERE, environment={}))


def test_everything_is_said_at_once(large, said):
    lines = said(large, replace(HERE, environment={})).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("  ") for line in lines[1::2])


def test_a_model_that_every_node_downloads_is_warned_of(large, small):
    assert "HF_HOME" in next(repeated_downloads(large.config, {}))
    assert not list(repeated_downloads(large.config, HERE.environment))
    assert not list(repeated_downloads(small.config, {}))


def test_a_node_that_does_not_see_a_folder_is_named():
    result = seen_by_nodes({"n1": [], "n2": [Path("/home/me")]}, [Path("/home/me")])
    assert (result.status, result.says) == ("failure", "n2 does not see /home/me")
    assert seen_by_nodes({"n1": [], "n2": []}, [Path("/shared")]).status == "ok"


def test_outside_a_job_nobody_is_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_nodes({"SLURM_JOB_NUM_NODES": "2"}) == 0
    assert in_slurm({}, [tmp_path], 4).status == "not checked"
    assert in_slurm({}, [tmp_path], 1).status == "ok"


# NeMo-RL's environments against its lock.
LOCK = """
version = 1
[[package]]
name = "torch"
version = "2.11.0+cu129"
[[package]]
name = "torch"
version = "2.11.0"
[[package]]
name = "rich"
version = "13.9.4"
[[package]]
name = "nemo-rl"
source = { editable = "." }
"""


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "uv.lock").write_text(LOCK)
    return tmp_path


def environment(folder: Path, *distributions: str) -> Path:
    for name in distributions:
        (folder / "lib/python3.13/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    return folder


def test_versions_of_the_lock_are_in_order(root):
    own = environment(root / ".venv", "torch-2.11.0+cu128", "rich-13.9.4", "mine-1.0")
    assert locked_in(root)["torch"] == {"2.11.0", "2.11.0+cu129"}
    assert [result.status for result in as_locked(root, [own])] == ["ok"]


def test_equipoise_in_one_of_them_is_named_with_what_removes_it(root):
    """No build can refuse that: uv builds a wheel without saying for whom, and keeps it."""
    own = environment(root / ".venv", "torch-2.11.0", "equipoise-0.1.0")
    inside, others = as_locked(root, [own])
    assert inside.status == "warning"
    assert str(own) in inside.says
    assert f"uv pip uninstall --python {own} equipoise" in inside.remedy
    assert others.status == "ok"


def test_a_torch_that_somebody_replaced_ends_runs(root):
    """As `uv run` of another project does where its environment is named as theirs."""
    own = environment(root / ".venv", "torch-2.15.0", "rich-14.0.0")
    (result,) = as_locked(root, [own])
    assert result.status == "failure"
    assert "torch 2.15.0 (locked: 2.11.0 or 2.11.0+cu129)" in result.says
    assert result.says.index("torch") < result.says.index("rich")
    assert str(own) in result.says


def test_another_package_is_a_warning(root):
    worker = environment(root / "venvs" / "worker", "rich-14.0.0", "torch-2.11.0")
    assert [result.status for result in as_locked(root, [worker])] == ["warning"]


def test_without_a_lock_nobody_knows(tmp_path):
    assert [result.status for result in as_locked(tmp_path, [])] == ["not checked"]


def test_names_are_compared_as_the_index_does(tmp_path):
    own = environment(tmp_path, "Typing_Extensions-4.1")
    assert installed_in(own) == {"typing-extensions": "4.1"}
    (change,) = changes({"typing-extensions": "4.1"}, {"typing-extensions": {"4.2"}})
    assert not change.vital
