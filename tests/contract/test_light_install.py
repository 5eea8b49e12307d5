"""The install for a machine without a GPU, of docs/start.md, in a copy, and a run with it.

PyTorch's own index is not asked, for tests have no network: a folder with its build for CPUs stands
in for it, and the package index or uv's cache gives the rest.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "EQUIPOISE_CPU_TORCH"
WHEELS = os.environ.get(VARIABLE)
GB = 10**9

pytestmark = pytest.mark.skipif(
    WHEELS is None, reason=f"{VARIABLE} names no folder with a wheel of torch for CPUs"
)


def documented():
    """The lines of docs/start.md that choose the build for CPUs."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if "UV_TORCH_BACKEND=cpu" in block]
    return lines


def size_of(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def test_no_package_for_gpus_and_a_run_to_its_report(tmp_path):
    project, wheels = tmp_path / "project", Path(WHEELS)
    subprocess.run(["git", "clone", "--quiet", ROOT, project], check=True)
    (wheel,) = wheels.glob("torch-*+cpu-*.whl")
    constraint = tmp_path / "constraint.txt"
    constraint.write_text(f"torch=={wheel.name.split('-')[1]}\n")
    lines = documented().replace("UV_TORCH_BACKEND=cpu ", "")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    }
    environment |= {"UV_FIND_LINKS": str(wheels), "UV_CONSTRAINT": str(constraint)}
    run = "uv run recipes/grpo_fairness.py --config nemo_configs/local.yaml"
    smoke = f"{run} --config nemo_configs/smoke.yaml --run-name light"
    subprocess.run(["bash", "-ec", f"{lines}\n{smoke}"], cwd=project, env=environment, check=True)
    packages = {path.name.partition("-")[0] for path in project.glob(".venv/**/*.dist-info")}
    assert not [name for name in packages if name.startswith(("nvidia", "triton", "pytest"))]
    assert size_of(project / ".venv") < 2 * GB
    assert (project / "results" / "fairness" / "light" / "report.html").is_file()
