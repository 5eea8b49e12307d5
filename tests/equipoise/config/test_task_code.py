"""Code that a configuration names: imported, which runs it, and held to its contract."""

import json
import sys

import pytest
import yaml

from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.load import import_own_code, without_keys
from tests.refusals import holds, refusal

LOCAL = CONFIG_FOLDER / "local.yaml"
TRACE = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
CLASS = """
from environments.fairness import FairnessEnvironment
class Mine(FairnessEnvironment):
      pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that leaves a trace when it runs; whether it has."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text, name="own_code.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(TRACE + text)
        return path.with_suffix(".ran").exists

    yield write
    for name in ("own_code", "own_package", "own_package.inner"):
        sys.modules.pop(name, None)


def test_a_module_that_lacks_what_it_should_have_is_a_problem(module, problems):
    module("Other = 1")
    (line,) = problems("equipoise.environment=own_code.Mine")
    assert holds(line, "task.unfit-class | Mine | own_code")
    (line,) = problems("equipoise.data.module=own_code.Other")
    assert holds(line, "task.unfit-class | Other | own_code | DataModule")
    (line,) = problems("equipoise.data.module=own_code.below.Mine")
    assert holds(line, "task.failed-import | own_code.below")


def test_code_of_ones_own_is_named_and_what_cannot_be_parsed_is_a_problem(
    module, load, problems, tmp_path
):
    module("class Mine(:")
    (line,) = problems("equipoise.environment=own_code.Mine")
    assert "cannot import own_code" in line
    assert load().own_code() == []
    module(CLASS)
    loaded = load("equipoise.environment=own_code.Mine")
    assert loaded.own_code() == [("own_code", str(tmp_path / "own_code.py"))]


class TestOfARunFolder:
    """It may be somebody else's: what it names is not run because it names it."""

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
        (tmp_path / "run").mkdir()
        yield tmp_path
        for name in [name for name in sys.modules if name.split(".")[0] in ("hostile", "run")]:
            del sys.modules[name]

    @staticmethod
    def stored(folder, key, name):
        tree = yaml.safe_load(load_config("fairness", Options((LOCAL,))).to_yaml())
        ours = tree["equipoise"]
        (ours["data"] if key == "module" else ours)[key] = name
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        return folder / "config.yaml"

    @pytest.mark.parametrize("name", ["antigravity.X", "idlelib.idle.X", "os.path"])
    def test_no_module_of_python_itself_is_run(self, folder, name):
        config = self.stored(folder / "run", "module", name)
        with refusal("config.problems", name.rpartition(".")[0]):
            load_config("fairness", Options((config,), stored=True))
        assert not {"antigravity", "idlelib.idle"} & set(sys.modules)

    @pytest.mark.parametrize("place", ["hostile", "run.hostile"])
    @pytest.mark.parametrize("key", ["environment", "module"])
    def test_its_code_is_not_run(self, folder, place, key):
        path = folder / (place.replace(".", "/") + ".py")
        path.write_text(TRACE + CLASS)
        config = self.stored(folder / "run", key, f"{place}.Mine")
        with refusal("config.problems", f"--own-code {place.partition('.')[0]}"):
            load_config("fairness", Options((config,), stored=True))
        assert not path.with_suffix(".ran").exists()
        assert not set(sys.path) & {str(folder), ""}

    def test_what_the_user_names_is_theirs_unless_a_run_holds_it(self, folder):
        (folder / "run" / "provenance.json").write_text("{}")
        (folder / "run" / "hostile.py").write_text(TRACE + CLASS)
        with refusal("task.no-own-code", "run.hostile"):
            import_own_code("run.hostile")
        assert not (folder / "run" / "hostile.ran").exists()
        (folder / "hostile.py").write_text(CLASS)
        config = self.stored(folder / "run", "environment", "hostile.Mine")
        import_own_code("hostile")
        loaded = load_config("fairness", Options((config,), stored=True))
        assert loaded.environment_class.__module__ == "hostile"

    def test_its_names_of_keys_are_not_read(self, folder):
        judge = {"endpoint": {"url": "http://h/v1", "api_key_env": "HOME", "model": "m"}}
        kept = {"endpoint": {"url": "http://h/v1", "model": "m"}}
        assert without_keys({"judges": [judge]}) == {"judges": [kept]}
        word = f"env.dharma.judge={json.dumps(judge)}"
        loaded = load_config("dharma", Options((LOCAL,), assignments=(word,)))
        assert loaded.env_settings.judge.endpoint.api_key_env == "HOME"
        (folder / "config.yaml").write_text(loaded.to_yaml())
        again = load_config("dharma", Options((folder / "config.yaml",), stored=True))
        assert again.env_settings.judge.endpoint.api_key_env is None
