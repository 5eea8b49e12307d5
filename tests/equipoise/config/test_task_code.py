"""Code is imported, which runs it, only where it holds what the configuration says."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.secrets import without_keys
from equipoise.config.task_code import import_own_code
from equipoise.errors import UsageError
from tests.refusals import holds, refusal

LOCAL = CONFIG_FOLDER / "local.yaml"

ENVIRONMENT = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
{}
"""
CLASS = """
from environments.fairness import FairnessEnvironment
class Mine(FairnessEnvironment):
      pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module that leaves a trace when it runs; whether it has."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["own_code", "own_package", "own_package.inner"]

    def write(text: str, name: str = "own_code.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(ENVIRONMENT.format(text))
        return path.with_suffix(".ran").exists

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["this.X", "antigravity.fly", "json.JSONDecoder", "os.path.join"])
def test_a_module_of_python_itself_is_not_imported(name: str, problems, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    (line,) = problems(f"equipoise.environment={name}")
    assert "a module of Python itself" in line
    assert "this" not in sys.modules
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "text", ["", "Other = 1", "Mine: int", "def f():\n    Mine = 1", "# Mine", "import Mine.x as y"]
)
def test_a_file_without_the_class_is_not_run(text: str, module, problems) -> None:
    ran = module(text)
    (line,) = problems("equipoise.environment=own_code.Mine")
    assert holds(line, "task.failed-import | own_code | Mine") or "Mine: int" in text
    assert not ran() or "Mine: int" in text


@pytest.mark.parametrize(
    "text",
    [CLASS, CLASS.replace("\nclass", "\nif True:\n  class"), "def __getattr__(name): 0"],
)
def test_a_file_with_the_class_is_checked_by_running_it(text: str, module, problems) -> None:
    ran = module(text)
    problems("equipoise.environment=own_code.Mine")
    assert ran()


def test_a_package_is_not_run_for_a_class_that_it_lacks(module, problems) -> None:
    ran = [module("", "own_package/__init__.py"), module("", "own_package/inner.py")]
    (line,) = problems("equipoise.environment=own_package.inner.Mine")
    assert holds(line, "task.failed-import | own_package.inner | Mine")
    assert not any(trace() for trace in ran)
    module(CLASS, "own_package/inner.py")
    problems("equipoise.environment=own_package.inner.Mine")
    assert all(trace() for trace in ran)


def test_a_data_module_is_held_to_the_same(module, problems) -> None:
    ran = module("def build_prompts(settings): return []")
    (line,) = problems("equipoise.data.module=own_code")
    assert holds(line, "task.failed-import | own_code | PromptSettings")
    assert not ran()


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("def prepare(settings): pass", "prepare is no function of (settings, tools)"),
        ("LOCAL_MODEL_NOTICE = 'tiny'", "there is no LocalModelSettings, imitated_replies"),
    ],
)
def test_a_hook_that_could_not_be_called_is_a_problem(hook, said, module, problems) -> None:
    module(f"from data_prep.fairness import PromptSettings, build_prompts\n{hook}")
    (line,) = problems("equipoise.data.module=own_code")
    assert said in line


def test_code_that_cannot_be_parsed_is_a_problem(module, problems) -> None:
    module("class Mine(:")
    (line,) = problems("equipoise.environment=own_code.Mine")
    assert "cannot import own_code" in line


def test_code_of_ones_own_is_named(module, load, tmp_path: Path) -> None:
    assert load().own_code() == []
    module(CLASS)
    loaded = load("equipoise.environment=own_code.Mine")
    assert loaded.own_code() == [("own_code", str(tmp_path / "own_code.py"))]


class TestOfARunFolder:
    """It may be somebody else's: what it names is not run because it names it."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
        yield tmp_path
        for name in [name for name in sys.modules if name.split(".")[0] in ("hostile", "run")]:
            del sys.modules[name]

    @staticmethod
    def stored(folder: Path, **ours: str) -> Path:
        loaded = load_config("fairness", Options((LOCAL,)))
        tree = yaml.safe_load(loaded.to_yaml())
        tree["equipoise"] |= {k: v for k, v in ours.items() if k != "module"}
        tree["equipoise"]["data"] |= {k: v for k, v in ours.items() if k == "module"}
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        return folder / "config.yaml"

    @pytest.mark.parametrize("place", ["hostile", "run.hostile"])
    @pytest.mark.parametrize("key", ["environment", "module"])
    def test_its_code_is_not_run(self, folder: Path, place: str, key: str) -> None:
        (folder / "run").mkdir()
        path = folder / (place.replace(".", "/") + ".py")
        path.write_text(ENVIRONMENT.format(CLASS))
        name = f"{place}.Mine" if key == "environment" else place
        config = self.stored(folder / "run", **{key: name})
        with pytest.raises(UsageError) as refused:
            load_config("fairness", Options((config,), stored=True))
        assert f"--own-code {place.partition('.')[0]}" in str(refused.value)
        assert not path.with_suffix(".ran").exists()
        assert not set(sys.path) & {str(folder), ""}

    def test_what_the_user_names_is_theirs_unless_a_run_holds_it(self, folder: Path) -> None:
        (folder / "run").mkdir()
        (folder / "run" / "provenance.json").write_text("{}")
        (folder / "run" / "hostile.py").write_text(ENVIRONMENT.format(CLASS))
        with refusal("task.no-own-code", "run.hostile"):
            import_own_code("run.hostile")
        assert not (folder / "run" / "hostile.ran").exists()
        (folder / "hostile.py").write_text(CLASS)
        config = self.stored(folder / "run", environment="hostile.Mine")
        import_own_code("hostile")
        loaded = load_config("fairness", Options((config,), stored=True))
        assert loaded.environment_class.__module__ == "hostile"

    def test_its_names_of_keys_are_not_read(self) -> None:
        judge = {"endpoint": {"url": "http://h/v1", "api_key_env": "HOME", "model": "m"}}
        assert without_keys({"judges": [judge]}) == {
            "judges": [{"endpoint": {"url": "http://h/v1", "model": "m"}}]
        }
        word = f"env.dharma.judge={json.dumps(judge)}"
        for stored, key in ((False, "HOME"), (True, None)):
            loaded = load_config("dharma", Options((LOCAL,), assignments=(word,), stored=stored))
            assert loaded.env_settings.judge.endpoint.api_key_env == key
