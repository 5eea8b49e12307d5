"""Plans compared with the machine that they are for: this one, a job of Slurm's, one elsewhere."""

import json
from pathlib import Path

import pytest

from equipoise.doctor import checks, compare_plan, examine, machine
from equipoise.doctor.checks import Job
from equipoise.doctor.machine import folders, nemo_rl
from equipoise.doctor.task import model
from tests.equipoise.doctor.conftest import LARGE
from tests.refusals import refusal

LLAMA = ("--model-name=meta-llama/Llama-3.1-70B-Instruct", "--engine=local", "--lora-rank=16")


@pytest.fixture
def compare(case, monkeypatch):
    """A function that returns the lines about a plan for a machine of 25 GB without a GPU."""
    monkeypatch.setattr(machine, "ram_bytes", lambda: 25 * 10**9)
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)

    def said(*words, **fields):
        told = []
        plan = case("fairness", *words, **{"purpose": "plan", "online": False} | fields)
        compare_plan(plan, told.append, told.append)
        return told

    return said


def test_the_task_s_own_model_fits_and_all_is_compared(compare):
    assert compare() == []


def test_a_scale_of_a_cluster_can_be_planned_anywhere_and_says_what_was_not_compared(compare):
    told = "\n".join(compare(*LARGE))
    for what in ("NeMo-RL", "GPUs", "memory", "folders", "model"):
        assert f"not compared: {what}: " in told
    assert "whether it is gated is not known" in told


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--device=cuda",), "torch finds no GPU"),
        (LLAMA, "this machine has 25 GB"),
        (LARGE, "nemo-rl.sif"),
    ],
)
def test_what_could_not_work_here_ends_the_plan(words, reason, compare, monkeypatch):
    with refusal("start.failed-check", reason):
        compare(*words, environment=job_of(Path("/"), "/no/nemo-rl.sif"))


def job_of(folder, container="nvcr.io/nvidia/nemo-rl:v0.7.0", **more):
    names = {"EQUIPOISE_SHARED": str(folder / "shared"), "EQUIPOISE_OUTPUT": str(folder / "out")}
    return {"EQUIPOISE_CONTAINER": container, **names, **more}


def test_the_doctor_of_a_login_node_can_pass(case, tmp_path, monkeypatch):
    """It has no NeMo-RL, no GPU and little memory; the job's image and folders are what counts."""
    monkeypatch.setattr(machine, "ram_bytes", lambda: 10**9)
    image = tmp_path / "nemo-rl.sqsh"
    image.touch()
    login = case("fairness", *LARGE, environment=job_of(tmp_path, str(image)), online=False)
    results = examine(login)
    assert not [result for result in results if result.status == "failure"]
    says = " ".join(result.says for result in results if result.check.name == "folders")
    assert str(tmp_path / "out") in says or str(tmp_path) in says


def test_without_an_image_a_login_node_needs_a_checkout(case, tmp_path, monkeypatch):
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)
    login = case("fairness", *LARGE, environment={"EQUIPOISE_SHARED": str(tmp_path)})
    assert login.place == "job"
    # Inside a job the machine is this one.
    assert case("fairness", *LARGE, environment={"SLURM_JOB_ID": "7"}).place == "here"
    assert case("fairness", *LARGE, environment={}, purpose="start").place == "here"
    with refusal("nemo-rl.no-installation"):
        list(nemo_rl(login))


def test_a_model_that_the_container_does_not_see(case, tmp_path, monkeypatch):
    """It is told of before the job, and not of a folder that is mounted."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    words = (*LARGE, f"policy.model_name={folder}")
    shared = {"EQUIPOISE_SHARED": "shared", "EQUIPOISE_CONTAINER": "image"}
    first, *_ = model(case("fairness", *words, environment=shared))
    assert (first.status, first.remedy) == ("failure", "Add its folder to EQUIPOISE_MOUNTS.")
    mounts = shared | {"EQUIPOISE_MOUNTS": f"/data,{tmp_path / 'models'}"}
    first, *_ = model(case("fairness", *words, environment=mounts))
    assert "does not see" not in first.says


def test_the_folders_of_a_job_are_those_of_its_variables(case, tmp_path):
    job = Job.of(job_of(tmp_path, HF_HOME="/big/hf"))
    assert job.hub.as_posix() == "/big/hf/hub"
    assert job.environment["NRL_MEGATRON_CHECKPOINT_DIR"] == str(tmp_path / "shared" / "megatron")
    assert job.sees(tmp_path / "out" / "x")
    assert not job.sees(tmp_path / "elsewhere")
    (tmp_path / "shared").touch()
    environment = job_of(tmp_path)
    first, *_ = folders(case("fairness", *LARGE, environment=environment))
    assert first.status == "failure"
