"""Our commands in this process, which has imported in seconds what each process would."""

import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from equipoise.__main__ import main

ROOT = Path(__file__).resolve().parents[1]


def with_our_code(**variables):
    """The environment of a process that imports this checkout, with one thread."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables


def finished(command, code=0, **options):
    """Run a command to its end and return its output; the test fails at another exit code."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def command_line(name, *words):
    """Return what starts a recipe or a verb in a process of its own, in the project's folder."""
    script = ROOT / "recipes" / f"{name}.py"
    ours = [str(script)] if script.exists() else ["-m", "equipoise", *name.split()]
    return [sys.executable, *ours, *words]


def run_command(name, *words, cwd=ROOT):
    """Run `recipes/NAME.py` where there is one, else the verb NAME, in the folder `cwd`."""
    script, out, errors = ROOT / "recipes" / f"{name}.py", StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", [str(script) if script.exists() else "equipoise", *words])
        with redirect_stdout(out), redirect_stderr(errors):
            if script.exists():
                runpy.run_path(str(script), run_name="__main__")
            else:
                main([*name.split(), *words])
    code = int(ended.value.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())
