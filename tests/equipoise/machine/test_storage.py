"""Folders, disks, shared memory and ports: small, full, closed and taken ones."""

import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.packaged_models import SMOLLM2_BYTES, smollm2_folder
from equipoise.machine import storage
from equipoise.machine.storage import (
    cache_folders,
    caches,
    enough,
    ports,
    ray_ports,
    refusal,
    room_for,
    run_directory,
    shared_memory,
    shared_memory_for,
    taken,
)
from tests.equipoise.machine.conftest import LARGE, MEDIUM, SMALL
from tests.refusals import refusal as refused

GB = 10**9


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory) -> Path:
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
    (result,) = caches(replace(nemo_rl, environment={"NEMO_RL_VENV_DIR": str(full_disk / "venvs")}))
    assert result.status == "failure"
    assert result.remedy == "Choose another folder with NEMO_RL_VENV_DIR."
    assert enough({full_disk: GB}, storage.free_bytes).status == "failure"


def test_a_folder_that_is_a_file(tmp_path, case):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "below")
    (tmp_path / "runs").touch()
    with refused("run.unusable-folder"):
        list(run_directory(case("fairness")))


def test_nothing_is_left_behind_by_looking(tmp_path, case):
    (result,) = caches(case("fairness"))
    assert result.status == "ok"
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken(tmp_path, case):
    (tmp_path / "runs" / "fairness" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "fairness" / "mine" / "x").touch()
    with refused("run.existing-folder"):
        list(run_directory(case("fairness", "--run-name", "mine")))
    (result,) = run_directory(case("fairness", "--run-name", "other"))
    assert result.status == "ok"


def test_the_folders_of_nemo_rl_are_looked_at_where_they_are_set(case):
    config = case("fairness", *LARGE).config
    folders = cache_folders(config, "nemo_rl", {"NRL_MEGATRON_CHECKPOINT_DIR": "/x/mcore"})
    assert folders["NRL_MEGATRON_CHECKPOINT_DIR"] == Path("/x/mcore")
    assert "HF_HOME" in folders
    assert list(cache_folders(case("fairness").config, "local", {})) == ["equipoise.cache_dir"]


@pytest.mark.parametrize(("free", "status"), [(250, "failure"), (400, "warning"), (900, "ok")])
def test_a_run_of_a_known_model_needs_room_for_checkpoints_and_download(
    case, free, status, tmp_path
):
    """Large keeps three checkpoints of 351 million trained parameters, downloads 141 GB, and
    Megatron's form of them takes as much again.
    """
    config = case("fairness", *LARGE).config
    folders = cache_folders(config, "nemo_rl", {"HF_HOME": str(tmp_path)})
    result = room_for(config, folders, lambda _: free * GB)
    assert (result.status, "about 304" in result.says) == (status, True)


def test_megatrons_form_of_a_model_is_made_once_and_not_of_another_start(case, tmp_path):
    config = case("fairness", *LARGE).config

    def needed(config, *made):
        folders = cache_folders(config, "nemo_rl", {"NRL_MEGATRON_CHECKPOINT_DIR": str(tmp_path)})
        for name in made:
            (tmp_path / name / "iter_0000000").mkdir(parents=True)
        result = room_for(config, folders, lambda _: 900 * GB)
        return float(re.search(r"about ([\d.]+) GB", result.says)[1])

    policy = config.policy.model_copy(update={"pretrained_checkpoint": "another start"})
    own = config.model_copy(update={"policy": policy})
    form = pytest.approx(141.1, abs=0.2)
    assert needed(config) - needed(own) == form
    assert needed(config) - needed(config, config.policy.model_name) == form
    medium = case("fairness", *MEDIUM).config
    assert "NRL_MEGATRON_CHECKPOINT_DIR" not in cache_folders(medium, "nemo_rl", {})


def test_a_packaged_model_needs_room_in_the_cache_once_and_none_of_the_hubs(case):
    config = case("fairness", "--model-name", "smollm2").config
    folders = cache_folders(config, "local", {})
    assert list(folders) == ["equipoise.cache_dir"]
    before = room_for(config, folders, lambda _: 900 * GB)
    smollm2_folder(folders["equipoise.cache_dir"]).mkdir(parents=True)
    after = room_for(config, folders, lambda _: 900 * GB)
    needs = [float(re.search(r"about ([\d.]+) GB", r.says)[1]) for r in (before, after)]
    assert needs[0] - needs[1] == pytest.approx(SMOLLM2_BYTES / GB, abs=0.11)


def test_folders_of_one_disk_share_its_room(tmp_path):
    needs = {tmp_path / "a": 6 * GB, tmp_path / "b": 6 * GB}
    result = enough(needs, lambda _: 10 * GB)
    assert result.status == "failure"
    assert "10.0 GB free, about 12.0 GB needed" in result.says


@pytest.mark.parametrize(
    ("size", "status"), [(64 * 2**20, "failure"), (8 * GB, "warning"), (64 * GB, "ok")]
)
def test_shared_memory_of_a_container(size, status, case):
    """Docker gives 64 MB; Ray's object store wants 0.3 of the memory."""
    assert shared_memory_for(size, memory=100 * GB).status == status
    (local,) = shared_memory(case("fairness"))
    assert local.status == "ok"


def test_a_port_that_is_taken(case):
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert taken([port]) == [port]
        busy = ray_ports({"PORT": str(port)})
        assert busy.status == "failure"
        assert f"{port} (PORT)" in busy.says
    assert taken([port]) == []
    (one_node,) = ports(case("fairness", *SMALL, "--engine=nemo_rl"))
    (running,) = ports(case("fairness", *LARGE, environment={"RAY_ADDRESS": "x:1"}))
    assert (one_node.status, running.status) == ("ok", "not checked")
