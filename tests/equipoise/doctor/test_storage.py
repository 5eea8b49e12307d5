"""Folders, disks, shared memory and ports: small, full, closed and taken ones."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from data_prep.packaged_models import SMOLLM2_BYTES, smollm2_folder
from equipoise.doctor import storage
from equipoise.doctor.storage import (
    cache_folders,
    caches,
    disk,
    enough,
    ports,
    refusal,
    run_directory,
    shared_memory,
    taken,
)
from equipoise.errors import UsageError

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


def test_a_disk_that_is_full_refuses_what_may_be_written(full_disk):
    assert "No space left" in refusal(full_disk)
    (result,) = caches({"HF_HOME": full_disk / "hub"})
    assert result.status == "failure"
    assert result.remedy == "Choose another folder with HF_HOME."
    assert enough({full_disk: GB}, storage.free_bytes).status == "failure"


def test_a_folder_that_is_a_file(tmp_path, load):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "below")
    loaded = load("fairness")
    (tmp_path / "runs").touch()
    with pytest.raises(UsageError, match="cannot be used"):
        list(run_directory(loaded.config))


def test_nothing_is_left_behind_by_looking(tmp_path, load):
    (result,) = caches({"equipoise.cache_dir": tmp_path / "cache" / "below"})
    assert result.status == "ok"
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken(tmp_path, load):
    (tmp_path / "runs" / "fairness" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "fairness" / "mine" / "x").touch()
    with pytest.raises(UsageError, match="exists already"):
        list(run_directory(load("fairness", "--run-name", "mine").config))
    (result,) = run_directory(load("fairness", "--run-name", "other").config)
    assert result.status == "ok"


def test_the_folders_of_nemo_rl_are_looked_at_where_they_are_set(load):
    config = load("fairness", "--config", "nemo_configs/large.yaml").config
    folders = cache_folders(config, "nemo_rl", {"NRL_MEGATRON_CHECKPOINT_DIR": "/x/mcore"})
    assert folders["NRL_MEGATRON_CHECKPOINT_DIR"] == Path("/x/mcore")
    assert "HF_HOME" in folders
    assert list(cache_folders(load("fairness").config, "local", {})) == ["equipoise.cache_dir"]


@pytest.mark.parametrize(("free", "status"), [(250, "failure"), (400, "warning"), (900, "ok")])
def test_a_run_of_a_known_model_needs_room_for_checkpoints_and_download(
    load, free, status, tmp_path
):
    """Large keeps three checkpoints of 351 million trained parameters, downloads 141 GB, and
    Megatron's form of them takes as much again.
    """
    config = load("fairness", "--config", "nemo_configs/large.yaml").config
    folders = cache_folders(config, "nemo_rl", {"HF_HOME": str(tmp_path)})
    results = list(disk(config, folders, lambda _: free * GB))
    assert {result.status for result in results} == {status}
    assert "about 304" in results[0].says


def test_megatrons_form_of_a_model_is_made_once_and_not_of_another_start(load, tmp_path):
    config = load("fairness", "--config", "nemo_configs/large.yaml").config

    def needed(config, *made):
        folders = cache_folders(config, "nemo_rl", {"NRL_MEGATRON_CHECKPOINT_DIR": str(tmp_path)})
        for name in made:
            (tmp_path / name / "iter_0000000").mkdir(parents=True)
        (result,) = disk(config, folders, lambda _: 900 * GB)
        return float(re.search(r"about ([\d.]+) GB", result.says)[1])

    policy = config.policy.model_copy(update={"pretrained_checkpoint": "another start"})
    own = config.model_copy(update={"policy": policy})
    form = pytest.approx(141.1, abs=0.2)
    assert needed(config) - needed(own) == form
    assert needed(config) - needed(config, config.policy.model_name) == form
    medium = load("fairness", "--config", "nemo_configs/medium.yaml").config
    assert "NRL_MEGATRON_CHECKPOINT_DIR" not in cache_folders(medium, "nemo_rl", {})


def test_a_packaged_model_needs_room_in_the_cache_once_and_none_of_the_hubs(load):
    config = load("fairness", "--model-name", "smollm2").config
    folders = cache_folders(config, "local", {})
    assert list(folders) == ["equipoise.cache_dir"]
    (before,) = disk(config, folders, lambda _: 900 * GB)
    smollm2_folder(folders["equipoise.cache_dir"]).mkdir(parents=True)
    (after,) = disk(config, folders, lambda _: 900 * GB)
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
def test_shared_memory_of_a_container(size, status):
    """Docker gives 64 MB; Ray's object store wants 0.3 of the memory."""
    result = shared_memory("nemo_rl", size, memory=100 * GB)
    assert result.status == status
    assert ("--shm-size" in result.remedy) == (status != "ok")
    assert shared_memory("local", size, memory=100 * GB).status == "ok"


def test_a_port_that_is_taken():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert taken([port]) == [port]
        busy = ports("nemo_rl", 4, {"PORT": str(port)})
        assert busy.status == "failure"
        assert f"{port} (PORT)" in busy.says
    assert taken([port]) == []
    assert ports("nemo_rl", 1, {}).status == "ok"
    assert ports("nemo_rl", 4, {"RAY_ADDRESS": "x:1"}).status == "not checked"
