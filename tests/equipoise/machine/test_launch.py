"""The way to NeMo-RL's Python: its variables, what stands beside its packages, what it is asked."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.environment import LAUNCHED
from equipoise.config.nemo_rl.installation import Installation
from equipoise.errors import EquipoiseError
from equipoise.machine import launch, overlay
from equipoise.machine.launch import complete_packages, launch_environment
from equipoise.machine.python import Machine, look
from equipoise.terminal.console import Reporter
from tests.nemo_rl_checkout import write_checkout
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path("/opt/nemo_rl_venv/bin/python")
LOCAL_ENGINE_ALONE = {"peft", "trl"}
OURS = {"data_prep", "environments", "equipoise"}


def test_the_variables_of_nemo_rls_process_are_those_of_its_python_and_the_users(tmp_path):
    (tmp_path / "pyvenv.cfg").touch()
    before = {
        "PATH": os.pathsep.join([f"{sys.prefix}/bin", "/usr/bin"]),
        "PYTHONPATH": "/mine",
        **dict.fromkeys(("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"), sys.prefix),
        "UV_RUN_RECURSION_DEPTH": "1",
        "UV_LINK_MODE": "copy",
        "WANDB_API_KEY": "secret",
    }
    python, folders = tmp_path / "bin" / "python", [Path("/a"), Path("/b")]
    environment = launch_environment(Path("/opt/nemo-rl"), python, folders, before)
    assert environment["PATH"].split(os.pathsep) == [f"{tmp_path}/bin", "/usr/bin"]
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/a", "/b", "/opt/nemo-rl", "/mine"]
    # Nothing names our environment, and Ray starts no worker by uv.
    assert not [name for name, value in environment.items() if sys.prefix in value]
    assert "UV_RUN_RECURSION_DEPTH" not in environment
    assert environment["UV_PROJECT_ENVIRONMENT"] == str(tmp_path)
    assert environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
    # What the user set stays.
    assert (environment["UV_LINK_MODE"], environment["WANDB_API_KEY"]) == ("copy", "secret")


#: Answers the probe as a machine with one GPU; whatever else it is to run, it shows.
STAND_IN = """#!/bin/sh
case "$1" in
    *script.py) echo '{answer}' ;;
    *) echo "process $$"; echo "words $*"; echo "path $PYTHONPATH"; exit 7 ;;
esac
"""


class TestARecipe:
    """From the command line to the process that takes over."""

    @pytest.fixture
    def python(self, tmp_path):
        versions = dict.fromkeys((*overlay.NEEDED, *overlay.BESIDE, "ray"), "1")
        cluster = {"gpus": None, "problem": None}
        answer = {"python": "3.13.13", "versions": versions, "gpus": 1, "cluster": cluster}
        path = tmp_path / "environment" / "bin" / "python"
        path.parent.mkdir(parents=True)
        path.write_text(STAND_IN.replace("{answer}", json.dumps(answer)))
        path.chmod(0o755)
        return path

    @pytest.fixture
    def start(self, python, tmp_path):
        root = tmp_path / "checkout"
        write_checkout(root)
        variables = {"NEMO_RL_PATH": str(root), "NEMO_RL_PYTHON": str(python)}

        def start(*words: str, through=(), **changed: str):
            recipe = (sys.executable, "recipes/grpo_fairness.py")
            return subprocess.Popen(
                [*through, *recipe, *words, f"--output-dir={tmp_path}"],
                cwd=ROOT,
                env=os.environ | variables | {"HOME": str(tmp_path)} | changed,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

        return start

    def test_goes_on_in_nemo_rls_python_as_the_same_process(self, start, tmp_path):
        """So a signal reaches the training, and its exit code the shell."""
        words = ("--config=nemo_configs/small.yaml", "--engine=nemo_rl", "--seed=3")
        process = start(*words)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 7, errors
        assert f"process {process.pid}" in output
        given = " ".join(["words recipes/grpo_fairness.py", *words])
        assert given in output
        (path,) = [line for line in output.splitlines() if line.startswith("path ")]
        ours, root = path.removeprefix("path ").split(os.pathsep)[:2]
        assert (Path(ours) / "environments" / "base.py").is_file()
        assert root == str(tmp_path / "checkout")
        runs = list((tmp_path / "fairness").iterdir())
        assert runs == [], "the run directory is the other process's"

    @pytest.mark.skipif(shutil.which("bwrap") is None, reason="apt-get install bubblewrap")
    @pytest.mark.parametrize(("writable", "code"), [(True, 7), (False, 1)])
    def test_starts_where_nothing_but_the_shared_folder_can_be_written_to(
        self, writable, code, start, tmp_path
    ):
        """As in an image that Apptainer has started: its root, and the home in it, are read-only.

        Apptainer's --writable-tmpfs is the one folder of workers that is a tmpfs here.
        """
        workers, shared = tmp_path / "workers", tmp_path / "shared"
        for folder in (workers, shared, tmp_path / "fairness"):
            folder.mkdir()
        process = start(
            *("--config=nemo_configs/small.yaml", "--engine=nemo_rl"),
            f"equipoise.cache_dir={shared}",
            through=(
                *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
                *("--bind", shared, shared, "--bind", tmp_path / "fairness", tmp_path / "fairness"),
                *(("--tmpfs", workers) if writable else ()),
                *("--setenv", "EQUIPOISE_OVERLAY_DIR", shared),
                *("--setenv", "NEMO_RL_VENV_DIR", workers, "--chdir", ROOT),
            ),
        )
        output, errors = process.communicate(timeout=300)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        if writable:
            (path,) = [line for line in output.splitlines() if line.startswith("path ")]
            assert path.removeprefix("path ").startswith(f"{shared}/code-")
        else:
            assert f"{workers} cannot be written to" in errors
            assert "--writable-tmpfs" in errors

    @pytest.mark.deep
    def test_a_dry_run_needs_no_python_of_nemo_rls(self, start):
        """It starts nothing: a checkout without an environment will do."""
        process = start("--config=nemo_configs/large.yaml", "--dry-run", NEMO_RL_PYTHON="")
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert "32" in next(line for line in output.splitlines() if "GPUs that train" in line)

    def test_is_refused_before_that(self, start):
        process = start("--config=nemo_configs/large.yaml")
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 1
        assert "no Ray cluster is running here" in errors
        assert "Traceback" not in errors


class TestOverlay:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv(overlay.FOLDER_VARIABLE, raising=False)

    def test_our_packages_alone_are_in_their_folder_where_the_variable_says(
        self, tmp_path, monkeypatch
    ):
        """The home folder of an image is read-only, or another's."""
        monkeypatch.setenv(overlay.FOLDER_VARIABLE, str(tmp_path / "shared"))
        folder = overlay.link_ours()
        assert folder.parent == tmp_path / "shared"
        assert not (tmp_path / ".cache").exists()
        assert {path.name for path in folder.iterdir()} == OURS
        assert (folder / "equipoise").resolve() == ROOT / "equipoise"
        assert overlay.make_overlay(PYTHON, "3.13.13", [], print) == [folder]

    def test_every_dependency_has_its_place(self):
        """A new one is in NeMo-RL's lock, stands beside it, or is the local engine's."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        names = {text.partition(">=")[0] for text in project["dependencies"]}
        assert names == {*overlay.NEEDED, *overlay.BESIDE} | LOCAL_ENGINE_ALONE

    def test_a_folder_is_filled_once_and_whole(self, tmp_path):
        def fail(folder: Path) -> None:
            (folder / "half").touch()
            raise EquipoiseError("x.offline", "no network", "")

        target = tmp_path / "packages"
        with refusal("x.offline"):
            overlay._made_once(target, fail)
        assert not target.exists()
        overlay._made_once(target, lambda folder: (folder / "whole").touch())
        assert [path.name for path in overlay._made_once(target, fail).iterdir()] == ["whole"]
        other = tmp_path / "other"

        def beaten(folder: Path) -> None:
            other.mkdir()
            (other / "first").touch()

        assert (overlay._made_once(other, beaten) / "first").exists(), "the first of two wins"

    def test_without_an_index_the_remedy_is_said(self, monkeypatch):
        monkeypatch.setenv("UV_OFFLINE", "1")
        monkeypatch.setenv("UV_NO_CACHE", "1")
        monkeypatch.setattr(overlay, "BESIDE", {"no-such-package-of-ours": "1.0"})
        with refusal("overlay.failed-installation", overlay.FOLDER_VARIABLE):
            overlay.make_overlay(Path(sys.executable), "3.13.13", [*overlay.BESIDE], print)


@pytest.mark.usefixtures("only_ray")
class TestPrepare:
    @pytest.fixture
    def machine(self, monkeypatch, tmp_path):
        """This Python in place of NeMo-RL's."""
        seen = look(Path(sys.executable), tuple(overlay.BESIDE))
        machine = Machine(tmp_path, Path(sys.executable), seen, dict(os.environ))
        monkeypatch.setattr(launch, "look_at_machine", lambda *_: machine)
        monkeypatch.setattr(launch, "find_installation", lambda: Installation(tmp_path))
        return machine

    @pytest.mark.deep
    def test_a_module_that_ray_could_not_import_ends_it(self, machine, monkeypatch):
        monkeypatch.setattr(launch, "_IN_ITS_PROCESSES", ("equipoise.errors", "no_such_module"))
        with refusal("launch.no-import", "No module named 'no_such_module'", machine.root):
            launch.prepare(Reporter())

    @pytest.mark.deep
    def test_what_it_sees_is_said_and_a_dry_run_makes_nothing(self, machine, monkeypatch, capsys):
        monkeypatch.setattr(launch, "_IN_ITS_PROCESSES", ("equipoise.errors",))
        launch.prepare(Reporter())
        said = capsys.readouterr().out
        assert f"beside it: {overlay.link_ours()}" in said
        assert metadata.version("isal") in said
        monkeypatch.setattr(launch, "make_overlay", None)
        monkeypatch.setattr(launch, "_IN_ITS_PROCESSES", ("no_such_module",))
        launch.prepare(Reporter(), dry_run=True)
        assert "to install beside it: nothing" in capsys.readouterr().out


class TestAPythonWithoutOurPackages:
    @pytest.fixture(autouse=True)
    def bare(self, monkeypatch):
        monkeypatch.setattr(launch, "installed_version", lambda name: name != "regopy" or None)

    def test_any_is_told_to_use_uv_run(self, monkeypatch):
        monkeypatch.setattr(launch, "_is_nemo_rls", lambda python: False)
        with refusal("launch.missing-packages", "regopy", "`uv run`"):
            complete_packages(Reporter())

    def test_nemo_rls_starts_again_with_them(self, monkeypatch, tmp_path):
        started = []
        monkeypatch.setattr(launch, "_is_nemo_rls", lambda python: True)
        monkeypatch.setattr(launch, "make_overlay", lambda *_: [tmp_path])
        monkeypatch.setattr(os, "execve", lambda *words: started.append(words))
        complete_packages(Reporter())
        ((python, arguments, environment),) = started
        assert [str(python), *sys.orig_argv[1:]] == [sys.executable, *arguments[1:]]
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
        assert LAUNCHED not in environment


#: What a user of NeMo-RL's container starts with its Python.
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("*.py"))


@pytest.mark.deep
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_python_that_has_no_equipoise_starts_a_recipe(recipe, tmp_path):
    """As NeMo-RL's does: it has the libraries, and the recipe's own folder alone on its path."""
    # Without `site` the editable installation of this environment is not followed.
    bare = [sys.executable, "-S"]
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}

    def started(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*bare, *words], cwd=tmp_path, env=environment, text=True, capture_output=True
        )

    assert "No module named 'equipoise'" in started("-c", "import equipoise").stderr
    help_of = started(str(ROOT / "recipes" / recipe), "--help")
    assert help_of.returncode == 0, help_of.stderr
    assert help_of.stdout.startswith((f"usage: {recipe} ", f"usage: uv run recipes/{recipe} "))
