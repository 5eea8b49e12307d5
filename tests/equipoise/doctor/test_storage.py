"""Folders and disks: small, full and closed ones."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from equipoise.doctor import machine
from equipoise.doctor.machine import folders, refusal, written_folders
from tests.equipoise.doctor.conftest import LARGE, SMALL

JOB = {"EQUIPOISE_CONTAINER": "nvcr.io/nvidia/nemo-rl:v0.7.0"}
GB = 10**9


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory):
    """A real file system without a byte left."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs to mount a tmpfs: {mounted.stderr.strip()}; as root it can")
    with pytest.raises(OSError, match="No space"), (folder / "full").open("wb") as file:
        file.write(bytes(2**20))
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_refuses_what_may_be_written(full_disk, case):
    assert "No space left" in refusal(full_disk)
    nemo_rl = case("fairness", *SMALL, "--engine=nemo_rl")
    venvs = {"NEMO_RL_VENV_DIR": str(full_disk / "venvs"), "SLURM_JOB_ID": "1"}
    result = next(folders(replace(nemo_rl, environment=venvs)))
    assert result.status == "failure"
    assert result.remedy == "Choose another folder with NEMO_RL_VENV_DIR."


def test_nothing_is_left_behind_by_looking_and_a_folder_that_is_a_file_is_refused(tmp_path, case):
    assert [finding.status for finding in folders(case("fairness"))] == ["ok"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "below")


@pytest.mark.parametrize(("free", "status"), [(250, "warning"), (900, "ok")])
def test_a_run_of_a_known_model_needs_room_for_checkpoints_and_models(
    case, free, status, tmp_path, monkeypatch
):
    """Large keeps three checkpoints of 351 million trained parameters, downloads 141 GB, Megatron's
    form of them takes as much again.
    """
    large = case("fairness", *LARGE, environment={"EQUIPOISE_SHARED": str(tmp_path), **JOB})
    written = written_folders(large)
    assert written["HF_HOME"] == tmp_path / "huggingface" / "hub"
    assert written["NRL_MEGATRON_CHECKPOINT_DIR"] == tmp_path / "megatron"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free * GB))
    result = machine.room(large, tmp_path)
    assert (result.status, "about 304 GB" in result.says) == (status, True)


def test_the_disks_of_another_machine_are_not_compared(case):
    plan = case("fairness", *LARGE, purpose="plan")
    (result,) = folders(plan)
    assert (result.status, "about 304 GB" in result.says) == ("not checked", True)
