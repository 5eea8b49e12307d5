r"""The launch, in an environment with the packages that NeMo-RL locks for its driver.

    python tests/contract/locked_environment.py <checkout> <folder>
    NEMO_RL_PATH=<checkout> NEMO_RL_PYTHON=<folder>/bin/python \
        uv run pytest tests/contract/test_launch.py

What stands beside NeMo-RL's packages comes from the package index or uv's cache.
"""

import hashlib
import json
import os
import shutil
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from equipoise.config import load_config
from equipoise.config.compose import tasks
from equipoise.config.words import parse_flags
from equipoise.files.nemo_rl import PATH_VARIABLE, PYTHON_VARIABLE, SCRIPT
from equipoise.run.task import make_prompts, prepare_task
from equipoise.train.nemo_rl.scoring import metadata_of
from tests.command import ROOT, finished
from tests.containers.test_nemo_rl_script import PINS
from tests.contract.rehearsal import needs_checkout

LOCAL_ENGINE_ALONE = {"peft", "trl"}
UV = shutil.which("uv")

needs_python = pytest.mark.skipif(
    PYTHON_VARIABLE not in os.environ,
    reason=f"{PYTHON_VARIABLE} names no Python made by tests/contract/locked_environment.py",
)
needs_uv = pytest.mark.skipif(UV is None, reason="uv is not on PATH")


def locked_environment():
    path = Path(__file__).with_name("locked_environment.py")
    spec = spec_from_file_location("locked_environment", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_cannot_come_from_the_index_is_named():
    lines = ["ray==2.55.1 ; marker", "torch==2.11.0+cu130", "queue @ git+https://host/queue@1"]
    requirements, differences = locked_environment().wanted(lines)
    assert requirements == ["ray==2.55.1 ; marker", "torch==2.11.0"]
    assert [line.split(": ")[0] for line in differences] == [
        "torch==2.11.0+cu130",
        "queue @ git+https://host/queue@1",
    ]


@needs_checkout
@needs_uv
def test_the_lock_has_versions_that_our_code_is_written_for():
    lines = locked_environment().exported(Path(os.environ[PATH_VARIABLE]))
    requirements = [line.partition(" ;")[0] for line in lines if " @ " not in line]
    locked = dict(requirement.split("==") for requirement in requirements)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = []
    for text in project["dependencies"]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        version = locked.get(name) or PINS.get(name)
        if name not in LOCAL_ENGINE_ALONE and not requirement.specifier.contains(version or "0"):
            wrong.append(f"{text}: {version}")
    assert not wrong


def state(environment):
    """Every file of an environment, but what Python compiles of it."""
    digest = hashlib.sha256()
    for path in sorted(environment.rglob("*")):
        if "__pycache__" not in path.parts and not path.is_dir():
            status = path.lstat()
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@needs_checkout
@needs_python
@needs_uv
class TestNemoRlsPython:
    """The words that it gets ask for a dry run or a look inside."""

    @pytest.fixture(scope="class", autouse=True)
    def unchanged(self):
        environment = Path(os.environ[PYTHON_VARIABLE]).parents[1]
        before = state(environment)
        yield
        assert state(environment) == before

    @pytest.fixture(scope="class")
    def variables(self, tmp_path_factory):
        return os.environ | {
            "UV_CACHE_DIR": finished(["uv", "cache", "dir"]).strip(),
            "HOME": str(tmp_path_factory.mktemp("home")),
            "HF_HUB_OFFLINE": "1",
            # As after `uv run`, of which nothing may reach NeMo-RL.
            "VIRTUAL_ENV": sys.prefix,
            "UV_PROJECT_ENVIRONMENT": sys.prefix,
        }

    @pytest.fixture(scope="class")
    def run(self, variables):
        """Words to NeMo-RL's Python, as every start of ours gives them."""
        return lambda *words, cwd=ROOT: finished(
            ["bash", SCRIPT, *words], env=variables, cwd=cwd, timeout=500
        )

    @pytest.fixture(scope="class")
    def words(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("runs")
        return (
            "--config=nemo_configs/local.yaml",
            "--engine=nemo_rl",
            f"--output-dir={folder}",
            f"equipoise.cache_dir={folder / 'cache'}",
        )

    @pytest.mark.parametrize("task", tasks())
    def test_every_recipe_goes_on_in_it(self, task, run, words):
        output = run(f"recipes/grpo_{task}.py", *words, "--dry-run")
        assert f"task {task}, engine nemo_rl" in output
        assert "generations in all" in output

    def test_nothing_but_the_named_packages_is_in_its_way(self, run):
        """A package that is added must not be in NeMo-RL's environment, or it would win."""
        script = "import os, sysconfig; print(*os.environ['PYTHONPATH'].split(':'), sep='\\n')"
        packages, ours, root = run("-c", script).split()
        assert (ours, root) == (str(ROOT), os.environ[PATH_VARIABLE])
        beside = {path.name.partition("-")[0] for path in Path(packages).glob("*.dist-info")}
        assert beside == {*PINS}
        python = Path(os.environ[PYTHON_VARIABLE])
        installed = next(python.parents[1].glob("lib/python3*/site-packages"))
        assert not {path.name for path in installed.iterdir()} & {
            path.name for path in Path(packages).iterdir()
        } - {"bin"}

    def test_the_whole_way_to_the_report_imports_there(self, run):
        modules = ["equipoise.train.nemo_rl.engine", "equipoise.commands.stages"]
        script = (
            "from equipoise.train.nemo_rl.process import before_nemo_rl; before_nemo_rl()\n"
            + "\n".join(f"import {name}" for name in modules)
            + "\nimport sys, regopy; print('trl' in sys.modules, 'peft' in sys.modules)"
            + "\nprint(sys.executable)"
        )
        lines = run("-c", script).splitlines()
        assert lines[-2:] == ["False False", os.environ[PYTHON_VARIABLE]]

    def test_ray_builds_the_actor_in_a_worker_and_it_scores(self, run, words, tmp_path):
        given = tmp_path / "batches.json"
        given.write_text(json.dumps({task: batch(task, words) for task in SCORED}))
        answers = json.loads(run("-c", ACTORS, str(given), cwd=tmp_path).splitlines()[-1])
        for task in SCORED:
            assert len(answers[task]["rewards"]) == 4
            assert len(set(answers[task]["rewards"])) > 1, "the replies are of two kinds"
        assert "/.cache/equipoise/nemo_rl/" in answers["regopy"]
        assert answers["pid"] != answers["driver"]

    def test_a_start_with_it_works_too(self, variables, words):
        """`python recipes/...` in NeMo-RL's container, where nothing of ours is installed."""
        python = os.environ[PYTHON_VARIABLE]
        command = [python, "recipes/grpo_dharma.py", *words, "--dry-run"]
        assert "task dharma, engine nemo_rl" in finished(command, env=variables, cwd=ROOT)


def batch(task, words):
    """The environment and its settings, and what NeMo-RL's rollouts hand to `step`."""
    loaded = load_config(task, parse_flags("x", words))
    prepare_task(loaded, print)
    records = make_prompts(loaded)[:2]
    pairs = [(record, reply) for record in records for reply in ("", REPLIES[task])]
    return {
        "class": loaded.config.equipoise.environment,
        "settings": loaded.env_settings.model_dump(mode="json"),
        "messages": [
            [dict(record.messages[-1]), {"role": "assistant", "content": reply}]
            for record, reply in pairs
        ],
        "metadata": [metadata_of(record) | {"tokens": 1} for record, _ in pairs],
    }


#: Replies that keep the task's format; an empty one breaks it.
REPLIES = {
    "dharma": "Rest, drink enough water, and see a doctor if it lasts longer than three days.",
    "rag": "Query 1: colour of the stone\nQuery 2: hardness of a mineral\nQuery 3: where it lies",
    "pubmedqa": "<reasoning>Fever fell (P = .01).</reasoning>\n<answer>yes</answer>",
}
SCORED = tuple(REPLIES)

#: NeMo-RL's own way to an actor, and from it to a reward.
ACTORS = """
import json, os, sys
from equipoise.train.nemo_rl.process import before_nemo_rl
before_nemo_rl()
import ray
from equipoise.train.nemo_rl.actor import EnvironmentActor

ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
answers = {"driver": os.getpid()}
for task, batch in json.load(open(sys.argv[1])).items():
    words = (batch["class"], batch["settings"], "cache", "no-reference", 2, 0, 0)
    actor = EnvironmentActor.options(num_cpus=0).remote(*words)
    result = ray.get(actor.step.remote(batch["messages"], batch["metadata"]))
    answers[task] = {"rewards": result.rewards.tolist()}

@ray.remote(num_cpus=0)
def look():
    import regopy
    return regopy.__file__, os.getpid()

runtime = {"py_executable": sys.executable, "env_vars": dict(os.environ)}
answers["regopy"], answers["pid"] = ray.get(look.options(runtime_env=runtime).remote())
print(json.dumps(answers))
"""
