"""Checks in NeMo-RL's Python refuse a start, and each refusal names the remedy."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.installation import Installation
from equipoise.doctor import machine as nemo_rl
from equipoise.doctor import refuse_unfit
from equipoise.files.errors import EquipoiseError
from tests.equipoise.doctor.conftest import LARGE, SMALL
from tests.refusals import refusal

VARIABLES = {"TORCH_CUDA_ARCH_LIST": "9.0", "HF_HOME": "/shared"}


@pytest.fixture
def large(case):
    """Four nodes of eight GPUs, on Megatron."""
    return case("fairness", *LARGE, purpose="start")


@pytest.fixture
def small(case):
    """One GPU."""
    return case("fairness", *SMALL, "--engine", "nemo_rl", purpose="start")


@pytest.fixture
def said(monkeypatch, tmp_path):
    """Everything that a start is refused for on a machine; empty where it is not."""

    def refused(case, gpus=8, nodes=None, environment=VARIABLES):
        monkeypatch.setattr(nemo_rl, "find_installation", lambda: Installation(tmp_path))
        monkeypatch.setattr(nemo_rl, "find_python", lambda _: Path(sys.executable))
        monkeypatch.setattr(nemo_rl, "count_gpus", lambda: gpus)
        monkeypatch.setattr(nemo_rl, "cluster", lambda _: nodes)
        monkeypatch.setattr(Installation, "version", "0.7.0")
        try:
            refuse_unfit(replace(case, environment=environment, _facts={}), lambda _: None)
        except EquipoiseError as error:
            return f"{error.message}\n  {error.remedy}".strip()
        return ""

    return refused


def test_one_machine_with_its_gpus(small, said):
    assert not said(small)
    assert "1 GPU, and this machine has 0" in said(small, gpus=0)


def test_a_version_that_was_not_tried_is_one_line_and_goes_on(monkeypatch):
    monkeypatch.setattr(Installation, "version", "99.0.0+abcdef0")
    (finding,) = nemo_rl.untried(Installation(Path("/none")))
    assert (finding.status, "not tried with NeMo-RL 99.0.0" in finding.says) == ("warning", True)


def test_a_running_cluster_counts_instead_of_this_machine(small, large, said):
    """As on a head node without GPUs."""
    assert not said(small, gpus=0, nodes=[0, 8])
    assert not said(large, gpus=0, nodes=[0, 8, 8, 8, 8])


@pytest.mark.parametrize("nodes", [[], [8, 8, 8], [8, 8, 8, 4, 4]])
def test_a_cluster_that_is_too_small_says_what_it_has(large, nodes, said):
    message = said(large, nodes=nodes)
    assert "4 nodes of 8 GPUs" in message
    assert ", ".join(map(str, nodes)) in message


def test_workers_environments_must_be_in_reach_and_writable(small, tmp_path, said):
    """As uv links them, with its cache below the home of a root that the user is not."""
    vllm = tmp_path / "worker" / "lib" / "python3.13" / "site-packages" / "vllm"
    vllm.mkdir(parents=True)
    cached = tmp_path / "cached.py"
    (vllm / "__init__.py").symlink_to(cached)
    variables = {"NEMO_RL_VENV_DIR": str(tmp_path)}
    message = said(small, environment=variables)
    assert f"{vllm / '__init__.py'} cannot be written to" in message
    assert "--fakeroot --writable-tmpfs" in message
    cached.touch()
    assert not said(small, environment=variables)


def test_megatron_needs_its_variables_and_everything_is_said_at_once(large, small, said):
    message = said(large, nodes=[8] * 4, environment={})
    assert "TORCH_CUDA_ARCH_LIST" in message and "NRL_MEGATRON_CHECKPOINT_DIR" in message
    assert not said(small, environment={})
    lines = said(large, environment={}).splitlines()
    assert len(lines) == 6
    assert "no Ray cluster is running here" in message + "".join(lines)
    assert all(line.startswith("  ") for line in lines[1::2])


@pytest.mark.usefixtures("only_ray")
class TestARay:
    @pytest.fixture(autouse=True)
    def services(self, monkeypatch):
        services = pytest.importorskip("ray._private.services", reason="needs the extra rehearse")
        # Ray prefers a cluster that it finds among the machine's processes, whosever it is.
        monkeypatch.setattr(services, "find_gcs_addresses", cache(set))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def test_none_runs(self, case, tmp_path, monkeypatch):
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        assert nemo_rl.cluster(case("fairness")) is None

    def test_one_that_is_gone_is_said_at_once(self, case, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with refusal("nemo-rl.no-ray", "127.0.0.1:9", "RAY_ADDRESS"):
            nemo_rl.cluster(case("fairness"))

    def test_the_address_that_a_killed_one_leaves_is_named(self, case, monkeypatch, tmp_path):
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
        with refusal("nemo-rl.no-ray", f"{tmp_path}/ray/ray_current_cluster"):
            nemo_rl.cluster(case("fairness"))

    @pytest.mark.deep
    def test_the_gpus_of_one_that_runs(self, case, monkeypatch):
        import ray

        here = ray.init("local", num_cpus=1, num_gpus=3, log_to_driver=False)
        try:
            monkeypatch.setenv("RAY_ADDRESS", here.address_info["gcs_address"])
            assert nemo_rl.cluster(case("fairness")) == [3]
        finally:
            ray.shutdown()

    def test_one_that_lets_nobody_in_is_not_joined(self, case, monkeypatch, tmp_path):
        """As of another user, who has a token; NeMo-RL starts its own beside it."""
        (tmp_path / "ray.py").write_text("def init(**_): raise ConnectionError")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(nemo_rl, "refuse_silence", lambda *_: None)
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        assert nemo_rl.cluster(case("fairness")) is None

    def test_one_that_cannot_be_joined_says_why(self, case, monkeypatch):
        monkeypatch.setattr(nemo_rl, "refuse_silence", lambda *_: None)
        monkeypatch.setattr(nemo_rl, "_NODES", "raise SystemExit('started with Ray 2.60.0')")
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with refusal("nemo-rl.no-ray", "started with Ray 2.60.0"):
            nemo_rl.cluster(case("fairness"))
