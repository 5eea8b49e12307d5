"""Equipoise finds an installation of NeMo-RL, and names one that it cannot use."""

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.config.nemo_rl import installation
from equipoise.config.nemo_rl.installation import find_installation, find_python, is_installed
from tests.nemo_rl_checkout import write_checkout
from tests.refusals import refusal


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    write_checkout(tmp_path / "checkout")
    monkeypatch.setenv("NEMO_RL_PATH", str(tmp_path / "checkout"))
    return tmp_path / "checkout"


def test_a_checkout_is_found_without_importing_it(checkout):
    found = find_installation()
    assert (found.root, found.version) == (checkout, "0.7.0")
    assert found.base_config.is_file()
    assert "nemo_rl" not in sys.modules


def test_an_importable_one_is_found(checkout, monkeypatch):
    monkeypatch.delenv("NEMO_RL_PATH")
    assert not is_installed()
    monkeypatch.syspath_prepend(checkout)
    assert find_installation().root == checkout


def test_workers_get_the_checkout_and_nothing_else_of_ours(checkout, monkeypatch):
    """Whatever folder this project is installed in, for others' packages may be there, too."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for _ in range(2):
        find_installation().make_importable()
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(checkout), "/mine"]
    assert sys.path.count(str(checkout)) == 1


def test_the_python_of_a_checkout_is_that_of_its_environment_or_one_that_is_named(
    checkout, tmp_path, monkeypatch
):
    monkeypatch.delenv("NEMO_RL_PYTHON", raising=False)
    monkeypatch.setattr(installation, "_CONTAINER_ENVIRONMENT", tmp_path / "container")
    with refusal("nemo-rl.no-python"):
        find_python(checkout)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert find_python(checkout) == python
    assert is_installed()
    monkeypatch.setenv("NEMO_RL_PYTHON", sys.executable)
    assert find_python(checkout) == Path(sys.executable)
    monkeypatch.setenv("NEMO_RL_PYTHON", str(checkout / "absent"))
    assert not is_installed()


def test_a_wheel_without_examples_is_refused(checkout):
    (checkout / "examples" / "configs" / "grpo_math_1B.yaml").unlink()
    with refusal("nemo-rl.unusable-installation", "examples/configs/grpo_math_1B.yaml"):
        find_installation()


def test_a_wrong_path_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_RL_PATH", str(tmp_path))
    assert not is_installed()
    with refusal("nemo-rl.no-installation", tmp_path):
        find_installation()


def test_the_placeholder_is_called_by_its_name(tmp_path, monkeypatch):
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.0")
    with refusal("nemo-rl.no-installation", "empty placeholder"):
        find_installation()
