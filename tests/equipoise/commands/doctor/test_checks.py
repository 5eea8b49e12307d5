"""Every check has a result, whatever fails or is needed by several."""

import json
import re
from pathlib import Path

import pytest

from equipoise.commands.doctor import CHECKS, checks, compare_plan, examine, machine, refuse_unfit
from equipoise.commands.doctor.checks import (
    Case,
    Check,
    Job,
    failure,
    ok,
    results_of,
    unchecked,
    warning,
)
from equipoise.commands.doctor.machine import folders, nemo_rl
from equipoise.commands.doctor.task import model
from equipoise.files.errors import EquipoiseError
from tests.equipoise.commands.doctor.conftest import LARGE, SMALL
from tests.refusals import refusal


def check(name, run):
    return Check(name, "Buy one.", run)


def test_what_a_check_says_before_it_fails_counts():
    def look(_):
        yield ok("a screen")
        raise EquipoiseError("gpu.none", "no such GPU", "Sell it.")

    results = results_of((check("GPUs", look), check("disk", lambda _: [ok("")])), Case())
    assert [(r.check.name, r.status, r.remedy) for r in results] == [
        ("GPUs", "ok", ""),
        ("GPUs", "failure", "Sell it."),
        ("disk", "ok", ""),
    ]


def test_a_bug_is_no_result():
    def look(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        results_of([check("Python", look)], Case())


def test_the_usual_remedy_is_told_where_something_is_wrong():
    findings = [failure(""), warning("", "Sell it."), ok(""), unchecked("")]
    results = results_of([check("Python", lambda _: findings)], Case())
    assert [result.remedy for result in results] == ["Buy one.", "Sell it.", "", ""]


LLAMA = ("--model-name", "meta-llama/Llama-3.3-70B-Instruct", "--device=cpu", "--engine=local")


@pytest.fixture
def start(case):
    """Ask what a start asks."""
    return lambda *words: refuse_unfit(case("fairness", *words, purpose="start"), pytest.fail)


@pytest.mark.parametrize("words", [(), SMALL, (*SMALL, "--model-name=un/known")])
def test_the_local_engine_starts_here(words, start):
    start(*words, "--engine=local")


def test_missing_nemo_rl_is_refused_with_what_it_needs_and_the_command_that_needs_none(start):
    with refusal("nemo-rl.no-installation", "nodes of 8 GPUs", "NEMO_RL_PATH") as caught:
        start(*LARGE)
    command = re.search("`uv run (.*)`", caught.value.remedy)
    assert command
    recipe, *instead = command[1].split()
    assert Path(recipe).is_file()
    start(*instead)


def test_a_model_that_the_machine_cannot_hold_is_refused_and_one_that_fits_is_not(
    monkeypatch, start
):
    monkeypatch.setattr(machine, "ram_bytes", lambda: 16 * 10**9)
    with refusal("gpu.small-memory", "16 GB"):
        start(*LLAMA)
    for name in ("Qwen/Qwen2.5-0.5B-Instruct", "un/known"):
        start("--model-name", name, "--device=cpu", "--engine=local")


def test_a_start_asks_neither_the_network_nor_the_driver():
    names = {check.name for check in CHECKS if check.starts}
    assert names == {"NeMo-RL", "GPUs", "memory"}


LOCAL_LLAMA = ("--model-name=meta-llama/Llama-3.1-70B-Instruct", "--engine=local", "--lora-rank=16")


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
        (LOCAL_LLAMA, "this machine has 25 GB"),
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
    first = next(model(case("fairness", *words, environment=mounts)))
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
