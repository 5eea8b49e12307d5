"""The wheel: what is in it, that it works, and that NeMo-RL's environment never gets it."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[1]


def test_a_build_for_the_environment_of_nemo_rls_image_is_refused(tmp_path):
    """By which `uv run` and `uv sync` end, too, before they change anything."""
    done = subprocess.run(
        ["uv", "build", "--wheel", "--offline", "--out-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"UV_PROJECT_ENVIRONMENT": "/opt/nemo_rl_venv"},
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    assert "/opt/nemo_rl_venv is the environment of NeMo-RL" in done.stderr
    assert "Traceback" not in done.stderr


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
