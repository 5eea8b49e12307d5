"""Every line and branch of containers/nemo_rl.sh, among stubs of NeMo-RL's Python and uv."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from equipoise.commands.doctor.command import DoctorOptions
from equipoise.commands.main import BESIDE
from equipoise.config.words import read_options
from tests.containers.stubs import TRACE
from tests.containers.test_slurm_scripts import never_run

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "containers" / "nemo_rl.sh"
PINS = dict(re.findall(r"([a-z0-9_]+)==([0-9.]+)", SCRIPT.read_text()))
#: Says what it lacks; whatever else it is to run, it shows.
PYTHON = """#!/bin/sh
case "$1" in
    -I) cat "$STUBS/answer" ;;
    *) echo "process $$"; echo "words $*"; env; exit 7 ;;
esac
"""
#: Makes a package; another process is faster where the file `rival` is there.
UV = """#!/bin/sh
echo "$*" >>"$STUBS/calls"
while [ "$1" != --target ]; do shift; done
[ ! -e "$STUBS/rival" ] || mkdir -p "${2%.*}/first"
mkdir "$2/package"
exit $(cat "$STUBS/code")
"""


class Script:
    """The script with a NeMo-RL in a folder, beside the stubs."""

    def __init__(self, folder):
        self.folder, self.root, self.overlay = folder, folder / "rl", folder / "overlay"
        (self.root / "nemo_rl").mkdir(parents=True)
        self.python = self.root / ".venv" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        (self.python.parents[1] / "pyvenv.cfg").touch()
        for path, text in {self.python: PYTHON, folder / "uv": UV}.items():
            path.write_text(text)
            path.chmod(0o755)
        for name, text in {
            "answer": "cp313 tyro==1.0.17\n",
            "code": "0",
            "trace.sh": TRACE,
        }.items():
            (folder / name).write_text(text)
        self.traces = ""

    def __call__(self, *words, **variables):
        """Return its exit code, what it said, and the variables of the program."""
        environment = {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "STUBS": str(self.folder),
            "BASH_ENV": str(self.folder / "trace.sh"),
            "NEMO_RL_PATH": str(self.root),
            "EQUIPOISE_OVERLAY_DIR": str(self.overlay),
        }
        process = subprocess.Popen(
            ["bash", SCRIPT, *words],
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output, _ = process.communicate(timeout=60)
        self.traces += (self.folder / "trace").read_text()
        assert f"process {process.pid}" in output or process.returncode != 7
        program = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        return process.returncode, output, program

    def installations(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


def test_the_words_run_in_nemo_rls_python_with_ours_beside_and_the_users_variables(script):
    """As the same process, so that signals reach it and its exit code the shell."""
    uv_run = {"VIRTUAL_ENV": "/ours", "UV_PROJECT_ENVIRONMENT": "/ours", "UV": "uv"}
    path = f"/ours/bin:{script.folder}:/usr/bin:/bin"
    code, output, program = script("a", "b c", PATH=path, PYTHONPATH="/mine", KEY="k", **uv_run)
    assert (code, "words a b c" in output) == (7, True)
    folder, *others = program["PYTHONPATH"].split(":")
    assert Path(folder).parent == script.overlay and (Path(folder) / "package").is_dir()
    assert others == [str(ROOT), str(script.root), "/mine"]
    assert program["PATH"] == f"{script.python.parent}:{script.folder}:/usr/bin:/bin"
    assert program["UV_PROJECT_ENVIRONMENT"] == str(script.python.parents[1])
    assert not {"VIRTUAL_ENV", "UV"} & {*program}
    assert (program["RAY_ENABLE_UV_RUN_RUNTIME_ENV"], program["KEY"]) == ("0", "k")
    assert program["NEMO_RL_PYTHON"] == str(script.python)
    # Started again by the recipe that it has started.
    again = script("a", PYTHONPATH=program["PYTHONPATH"])[2]
    assert again["PYTHONPATH"] == program["PYTHONPATH"]
    assert len(script.installations()) == 1, "a folder is filled once"


def test_without_words_it_installs_alone_and_another_python_has_another_folder(script):
    assert script()[0] == 0
    (script.folder / "answer").write_text("cp312 tyro==1.0.17\n")
    assert script()[0] == 0
    first, second = script.overlay.iterdir()
    assert {path.name.partition("-")[0] for path in (first, second)} == {"cp312", "cp313"}
    (script.folder / "answer").write_text("cp314\n")
    assert script()[0] == 0
    assert len(script.installations()) == 2, "nothing is lacking"


def test_a_folder_is_whole_or_not_there_and_the_first_of_two_stays(script):
    (script.folder / "code").write_text("1")
    code, output, _ = script("a")
    assert code == 1 and "tyro==1.0.17 cannot be installed" in output
    assert not list(script.overlay.iterdir())
    (script.folder / "code").write_text("0")
    (script.folder / "rival").touch()
    assert script("a")[0] == 7
    (folder,) = script.overlay.iterdir()
    assert [path.name for path in folder.iterdir()] == ["first"]


def test_what_is_missing_is_said_with_what_to_do(script):
    refused = {
        "there is no NeMo-RL at": {"NEMO_RL_PATH": str(script.folder)},
        "there is no Python at /none": {"NEMO_RL_PYTHON": "/none"},
        "nothing can be written to": {"EQUIPOISE_OVERLAY_DIR": str(script.folder / "answer")},
        "cannot run NeMo-RL": {"NEMO_RL_PYTHON": "/bin/false"},
    }
    for text, variables in refused.items():
        code, output, _ = script("a", **variables)
        assert code == 1 and text in output, output
    script.python.unlink()
    assert "there is no Python at /opt/nemo_rl_venv" in script("a")[1]


def test_every_line_and_branch_has_run(tmp_path):
    traces = ""
    for number, test in enumerate(
        (
            test_the_words_run_in_nemo_rls_python_with_ours_beside_and_the_users_variables,
            test_without_words_it_installs_alone_and_another_python_has_another_folder,
            test_a_folder_is_whole_or_not_there_and_the_first_of_two_stays,
            test_what_is_missing_is_said_with_what_to_do,
        )
    ):
        script = Script(tmp_path / str(number))
        test(script)
        traces += script.traces
    assert not never_run(traces, SCRIPT)


@pytest.mark.deep
def test_real_pythons_say_what_they_have(script):
    bare = script("-c", "1", NEMO_RL_PYTHON=sys._base_executable)
    assert bare[0] == 1 and "it has no pydantic, ray, torch" in bare[1]
    pytest.importorskip("ray", reason="the extra rehearse is needed")
    code, output, _ = script("-c", "import equipoise, tyro", NEMO_RL_PYTHON=sys.executable)
    assert code == 0, output
    assert not script.overlay.exists(), "this Python lacks nothing"


def test_every_dependency_has_its_place():
    """One that NeMo-RL's lock lacks stands beside; contract/test_launch.py compares the lock."""
    assert set(PINS) == set(BESIDE)
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    assert all(bounds[name].contains(pins[name]) for name in pins.keys() & bounds.keys())
    # They are installed without what they need themselves.
    needed = [Requirement(text) for name in pins for text in metadata.requires(name) or ()]
    names = {canonicalize_name(r.name): r for r in needed if not r.marker or r.marker.evaluate()}
    lacking = names.keys() - bounds.keys()
    assert all(pins.get(name, "0") in names[name].specifier for name in lacking), lacking
    assert len(SCRIPT.read_text().splitlines()) <= 60
    assert os.access(SCRIPT, os.X_OK)


def test_the_images_smoke_test_has_words_that_the_doctor_knows():
    text = (ROOT / "containers" / "Dockerfile").read_text()
    words = re.findall(r"python -m equipoise doctor (.*) \\\n", text)
    assert [read_options(DoctorOptions, line.split(), "doctor").offline for line in words] == [True]
