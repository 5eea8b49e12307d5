"""GPUs and memory."""

import subprocess
from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from equipoise.commands.doctor import machine
from equipoise.commands.doctor.machine import (
    folders,
    host_memory,
    local_gpus,
    local_memory,
    nemo_rl_memory,
    written_folders,
)
from equipoise.files import nemo_rl
from equipoise.files.nemo_rl import broken_conversion, conversion_of, converting, is_converted
from tests.equipoise.commands.doctor.conftest import LARGE, MEDIUM, SMALL
from tests.refusals import refusal

H100 = 85 * 10**9


@pytest.fixture
def with_gpus(monkeypatch):
    """Let torch see GPUs of these bytes."""

    def have(*gpus):
        monkeypatch.setattr(machine, "count_gpus", lambda: len(gpus))
        monkeypatch.setattr(machine, "gpu_memory", lambda: list(gpus))

    return have


def status(case):
    (finding,) = local_gpus(case)
    return finding.status


def test_a_gpu_that_is_asked_for_and_missing(case, with_gpus):
    with_gpus()
    assert status(case("fairness", "--device", "cuda")) == "failure"
    assert status(case("fairness")) == "ok"


def test_a_gpu_that_torch_does_not_see(case, with_gpus, monkeypatch):
    """As with a torch without CUDA, or for a newer one than the driver's."""
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")
    with_gpus()
    assert status(case("fairness")) == "warning"
    with_gpus(H100)
    assert status(case("fairness")) == "ok"


def test_a_model_that_the_gpu_of_the_local_engine_cannot_hold(case, with_gpus):
    words = (*SMALL, "--model-name", "Qwen/Qwen2.5-14B-Instruct", "--engine", "local")
    with_gpus(H100)
    assert local_memory(case("fairness", *words)).status == "ok"
    with_gpus(24 * 10**9)
    with refusal("gpu.small-memory", "24 GB"):
        local_memory(case("fairness", *words))


def test_the_memory_model_is_compared_with_the_gpus_that_are_there(case, with_gpus):
    """Medium is planned for 80 GB; on 16 GB it cannot run, whatever the configuration says."""
    config = case("fairness", *MEDIUM).config
    for gpus, expected in (((H100,), "ok"), ((H100, 16 * 10**9), "failure"), ((), "not checked")):
        with_gpus(*gpus)
        assert {result.status for result in nemo_rl_memory(config)} == {expected}


@pytest.mark.parametrize(("has", "status"), [(400, "failure"), (500, "warning"), (1000, "ok")])
def test_a_host_holds_reference_swapped_weights_and_a_vllm_that_sleeps(case, has, status):
    """Large: 8 GPUs with 17.7 GB of each."""
    (result,) = host_memory(case("fairness", *LARGE).config, has * 10**9)
    assert result.status == status
    assert "holds 425 GB at least" in result.says
    unknown = case("fairness", *LARGE, "--model-name=x/y").config
    assert list(host_memory(unknown, has)) == []


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
    assert "No space left" in machine.refusal(full_disk)
    nemo_rl = case("fairness", *SMALL, "--engine=nemo_rl")
    venvs = {"NEMO_RL_VENV_DIR": str(full_disk / "venvs"), "SLURM_JOB_ID": "1"}
    result = next(folders(replace(nemo_rl, environment=venvs)))
    assert result.status == "failure"
    assert result.remedy == "Choose another folder with NEMO_RL_VENV_DIR."


def test_nothing_is_left_behind_by_looking_and_a_folder_that_is_a_file_is_refused(tmp_path, case):
    assert [finding.status for finding in folders(case("fairness"))] == ["ok"]
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert machine.refusal(tmp_path / "file" / "below")


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


MODEL = "meta-llama/Llama-3.3-70B-Instruct"


def convert(folder):
    """Write what Megatron-Bridge writes, as empty files."""
    (folder / "iter_0000000").mkdir(parents=True, exist_ok=True)
    for name in ("iter_0000000/.metadata", "iter_0000000/run_config.yaml", "latest_train_state.pt"):
        (folder / name).touch()


@pytest.fixture
def environment(tmp_path):
    return {"NRL_MEGATRON_CHECKPOINT_DIR": str(tmp_path / "megatron"), "SLURM_JOB_ID": "1"}


def test_an_empty_iteration_is_broken_off_and_named(environment, case):
    folder = conversion_of(MODEL, environment)
    assert broken_conversion(folder) is None
    (folder / "iter_0000000").mkdir(parents=True)
    assert not is_converted(folder)
    large = case("fairness", *LARGE, environment=environment)
    told = [finding for finding in folders(large) if "broken off" in finding.says]
    assert [f"rm -r {folder}" in finding.remedy for finding in told] == [True]
    start = converting(MODEL, environment, pytest.fail)
    with refusal("megatron.broken-conversion", str(folder)), start:
        pytest.fail("it goes on")
    convert(folder)
    assert is_converted(folder)
    with converting(MODEL, environment, pytest.fail):
        pass


def test_a_second_run_waits_until_the_first_has_converted(environment, monkeypatch):
    monkeypatch.setattr(nemo_rl, "_INTERVAL", 0.02)
    folder = conversion_of(MODEL, environment)
    told, waits, seen, end = [], Event(), [], Event()

    def second():
        def say(text):
            told.append(text)
            waits.set()

        with converting(MODEL, environment, say):
            seen.append(is_converted(folder))
        end.set()

    with converting(MODEL, environment, pytest.fail):
        Thread(target=second, daemon=True).start()
        assert waits.wait(20)
        assert not seen
        convert(folder)
        assert end.wait(20), "the first run still trains, and the second goes on"
    assert seen == [True]
    assert str(folder) in told[0]


def test_megatrons_backend_alone_converts(case):
    assert [case("rag", *s).config.policy.converts for s in (LARGE, MEDIUM)] == [True, False]
