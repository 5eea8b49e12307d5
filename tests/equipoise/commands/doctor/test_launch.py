"""From a recipe to NeMo-RL's Python, by containers/nemo_rl.sh, with a stand-in for it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from equipoise.files import nemo_rl as launch
from equipoise.files.errors import EquipoiseError
from equipoise.files.nemo_rl import complete_packages, hand_over
from tests.nemo_rl_checkout import write_checkout
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[4]
#: Lacks nothing; whatever it is to run, it shows.
STAND_IN = """#!/bin/sh
case "$1" in
    -I) echo cp313 ;;
    *) echo "process $$"; echo "words $*"; echo "path $PYTHONPATH"; exit 7 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    write_checkout(root)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN)
    python.chmod(0o755)
    monkeypatch.setenv("NEMO_RL_PATH", str(root))
    return root


@pytest.fixture
def start(checkout, tmp_path):
    def start(*words, through=(), command=("recipes/grpo_fairness.py",), **changed):
        return subprocess.Popen(
            [*through, sys.executable, *command, *words, f"--output-dir={tmp_path}"],
            cwd=ROOT,
            env=os.environ | {"HOME": str(tmp_path)} | changed,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def test_a_recipe_goes_on_in_nemo_rls_python_as_the_same_process(start, tmp_path):
    """So a signal reaches the training, and its exit code the shell."""
    words = ("--config=nemo_configs/small.yaml", "--engine=nemo_rl", "--seed=3")
    process = start(*words)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 7, errors
    assert f"process {process.pid}" in output
    assert " ".join(["words recipes/grpo_fairness.py", *words]) in output
    assert f"path {ROOT}:{tmp_path}/checkout" in output
    runs = tmp_path / "fairness"
    assert not runs.exists() or not list(runs.iterdir()), "the run directory is the other process's"


def test_so_does_the_doctor_of_a_run_on_nemo_rl(start):
    doctor = ("-m", "equipoise", "doctor", "fairness")
    process = start("--config=nemo_configs/small.yaml", "--engine=nemo_rl", command=doctor)
    assert " ".join(["words", *doctor]) in process.communicate(timeout=120)[0]
    assert process.returncode == 7


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="apt-get install bubblewrap")
def test_a_recipe_starts_where_nothing_but_the_shared_folder_can_be_written_to(start, tmp_path):
    """As in an image that Apptainer has started: its root, and the home in it, are read-only."""
    shared, runs = tmp_path / "shared", tmp_path / "fairness"
    for folder in (shared, runs):
        folder.mkdir()
    process = start(
        *("--config=nemo_configs/small.yaml", "--engine=nemo_rl"),
        f"equipoise.cache_dir={shared}",
        through=(
            *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *("--bind", shared, shared, "--bind", runs, runs, "--chdir", ROOT),
        ),
    )
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 7, errors
    assert "Traceback" not in errors


@pytest.mark.deep
def test_a_dry_run_needs_no_python_of_nemo_rls(start):
    """It starts nothing: a checkout without an environment will do."""
    process = start("--config=nemo_configs/large.yaml", "--dry-run", NEMO_RL_PYTHON="/none")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "32" in next(line for line in output.splitlines() if "GPUs that train" in line)


@pytest.fixture
def started(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execvpe", lambda *words: calls.append(words))
    return calls


def test_a_python_that_lacks_our_packages_starts_again_if_it_is_nemo_rls(
    checkout, started, monkeypatch
):
    with refusal("launch.missing-packages", "regopy", "`uv run`"):
        complete_packages(["regopy"])
    monkeypatch.setenv("NEMO_RL_PYTHON", sys.executable)
    with pytest.raises(EquipoiseError):  # only because the stand-in returns
        complete_packages(["regopy"])
    ((_, command, environment),) = started
    assert command == ["bash", str(launch.SCRIPT), *sys.orig_argv[1:]]
    assert environment["NEMO_RL_PATH"] == str(checkout)
    assert launch.LAUNCHED not in environment


def test_without_a_checkout_of_ours_it_is_refused(checkout, started, monkeypatch):
    hand_over(checkout)
    assert started[0][2][launch.LAUNCHED] == "1"
    monkeypatch.setattr(launch, "SCRIPT", checkout / "absent.sh")
    with refusal("launch.no-checkout"):
        hand_over(checkout)


#: What a user of NeMo-RL's container starts with its Python.
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("*.py"))


@pytest.mark.deep
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_python_that_has_no_equipoise_starts_a_recipe(recipe, tmp_path):
    """As NeMo-RL's does: it has the libraries, and the recipe's own folder alone on its path."""
    # Without `site` the editable installation of this environment is not followed.
    bare = [sys.executable, "-S"]
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}

    def started(*words):
        return subprocess.run(
            [*bare, *words], cwd=tmp_path, env=environment, text=True, capture_output=True
        )

    assert "No module named 'equipoise'" in started("-c", "import equipoise").stderr
    help_of = started(str(ROOT / "recipes" / recipe), "--help")
    assert help_of.returncode == 0, help_of.stderr
    assert help_of.stdout.startswith((f"usage: {recipe} ", f"usage: uv run recipes/{recipe} "))
