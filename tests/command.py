"""Our commands in this process, which has imported in seconds what each process would."""

import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from equipoise.__main__ import main

ROOT = Path(__file__).resolve().parents[1]


def command_line(name: str, *words: str) -> list[str]:
    """Return what starts a recipe or a verb in a process of its own, in the project's folder."""
    script = ROOT / "recipes" / f"{name}.py"
    ours = [str(script)] if script.exists() else ["-m", "equipoise", *name.split()]
    return [sys.executable, *ours, *words]


def run_command(name: str, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
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
