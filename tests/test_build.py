"""The wheel: what is in it, that it works, and that NeMo-RL's environment never gets it."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.environment import is_nemo_rls

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def nemo_rls(tmp_path) -> Path:
    """An environment as uv makes it for a project named nemo-rl, with one thing in it."""
    environment = tmp_path / "environment"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = ["uv", "venv", "--offline", "--python", python, "--prompt", "nemo-rl", environment]
    subprocess.run(command, check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "theirs-1.0.dist-info").mkdir()
    return environment


def files(environment: Path) -> dict[str, int]:
    """But the file by which uv locks the folder."""
    paths = [path for path in environment.rglob("*") if path.name != ".lock"]
    return {str(path): path.lstat().st_mtime_ns for path in paths if not path.is_dir()}


@pytest.mark.parametrize("command", [("sync",), ("sync", "--no-editable"), ("build", "--wheel")])
def test_uv_stops_before_it_changes_anything(command, nemo_rls, tmp_path):
    before = files(nemo_rls)
    done = subprocess.run(
        ["uv", *command, "--offline", "--project", ROOT, *out(command, tmp_path)],
        cwd=ROOT,
        env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(nemo_rls)},
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    said = " ".join(done.stderr.split())  # uv breaks lines at a width
    assert f"{nemo_rls} is the environment of NeMo-RL" in said
    assert "UV_PROJECT_ENVIRONMENT=/tmp/equipoise-venv uv run" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(nemo_rls) == before


def out(command: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    return ("--out-dir", str(folder / "dist")) if command[0] == "build" else ()


def test_which_environments_are_nemo_rls(nemo_rls, tmp_path):
    assert is_nemo_rls(nemo_rls)
    assert is_nemo_rls(Path("/opt/nemo_rl_venv"))
    assert not is_nemo_rls(Path(sys.prefix))
    assert not is_nemo_rls(tmp_path / "not there yet")
    packages = tmp_path / "other" / "lib" / "python3.13" / "site-packages"
    (packages / "nemo_rl-0.7.0.dist-info").mkdir(parents=True)
    assert is_nemo_rls(tmp_path / "other")


def build_wheel(project: Path, folder: Path) -> Path:
    command = ["uv", "build", "--wheel", "--offline", "--quiet", "--out-dir", folder]
    subprocess.run(command, cwd=project, check=True)
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, environment: Path) -> None:
    """Without the checkout; the packages that it needs are those of this environment."""
    subprocess.run(["uv", "venv", "--offline", "--python", sys.executable, environment], check=True)
    command = ["uv", "pip", "install", "--offline", "--no-deps", "--python", environment, wheel]
    subprocess.run(command, check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "needed.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("dist"))


def test_a_wheel_has_its_licence_its_types_and_its_configurations(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for end in ("/LICENSE", "/THIRD_PARTY.md", "nemo_configs/local.yaml"):
        assert any(name.endswith(end) for name in names), end
    for package in ("environments", "data_prep", "equipoise"):
        assert f"{package}/py.typed" in names
    assert {f"environments/dharma/{name}.yaml" for name in ("lexicon", "rubric")} <= {*names}
    assert "data_prep/dharma/topics.yaml" in names


def test_what_is_installed_trains_outside_of_a_checkout(wheel, tmp_path):
    environment, folder = tmp_path / "environment", tmp_path / "mine"
    install(wheel, environment)
    folder.mkdir()
    command = [environment / "bin" / "equipoise", "train", "fairness", "--no-wandb"]
    words = ["--config=nemo_configs/smoke.yaml", "--run-name=smoke", "equipoise.cache_dir=cache"]
    done = subprocess.run([*command, *words], cwd=folder, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "results" / "fairness" / "smoke"
    assert (run / "report.html").is_file()
    said = (run / "provenance.json").read_text()
    assert str(ROOT) not in said.replace(str(sys.executable), "")


SCORES = """
import json, sys
import psutil
from environments.base import Rollout
from environments.pubmedqa import PubMedQAEnvironment

environment = PubMedQAEnvironment(PubMedQAEnvironment.Settings())
finding = "Pain fell in the treated group (P = .01)."
metadata = {"gold": "yes", "context": f"RESULTS: {finding}", "question": "Does it reduce pain?"}
reply = f'<reasoning>"{finding}"</reasoning><answer>yes</answer>'
(score,) = environment.score([Rollout("q1", "q1", "test", "the prompt", reply, metadata)])
heavy = sorted({"torch", "transformers", "equipoise", "data_prep"} & {*sys.modules})
memory = psutil.Process().memory_info().rss / 1e6  # ru_maxrss may be that of who started it
print(json.dumps([score.value, memory, heavy]))
"""


def test_the_rewards_alone_score_without_torch(tmp_path):
    built = build_wheel(ROOT / "environments", tmp_path / "dist")
    install(built, tmp_path / "environment")
    command = [tmp_path / "environment" / "bin" / "python", "-c", SCORES]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    score, megabytes, heavy = json.loads(done.stdout)
    assert score == 3.8
    assert megabytes < 100
    assert not heavy
    names = zipfile.ZipFile(built).namelist()
    assert "environments/dharma/lexicon.yaml" in names
    assert {"environments/LICENSE", "environments/THIRD_PARTY.md", "environments/py.typed"} <= {
        *names
    }
    assert not [name for name in names if name.endswith("pyproject.toml")]


def test_the_rewards_alone_are_of_the_projects_version_and_packages(tmp_path):
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    alone = tomllib.loads((ROOT / "environments" / "pyproject.toml").read_text())["project"]
    assert set(alone["dependencies"]) < set(whole["dependencies"])
    assert alone["requires-python"] == whole["requires-python"]
    assert f"-{whole['version']}-" in build_wheel(ROOT / "environments", tmp_path).name
