"""Equipoise finds an installation of NeMo-RL, and names one that it cannot use."""

import ast
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from equipoise.files import nemo_rl
from equipoise.files.nemo_rl import (
    CALLED,
    find_installation,
    find_python,
    is_installed,
    is_tried,
    unmet,
)
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
    monkeypatch.setattr(nemo_rl, "_CONTAINER_ENVIRONMENT", tmp_path / "container")
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


ROOT = Path(__file__).resolve().parents[3]
REHEARSAL = ROOT / "equipoise" / "train" / "nemo_rl" / "rehearsal"


def sources():
    """The syntax of every module of ours that no rehearsal brings."""
    for path in sorted((ROOT / "equipoise").rglob("*.py")):
        if not path.is_relative_to(REHEARSAL):
            yield path, ast.parse(path.read_text("utf-8"))


def imports(tree):
    """Every `from nemo_rl.x import y`, as the module and the name."""
    for node in ast.walk(tree):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and module.partition(".")[0] == "nemo_rl":
            yield from ((module.removeprefix("nemo_rl."), alias) for alias in node.names)


def test_all_that_is_imported_is_in_the_table():
    called = [line.split()[0].split(":") for line in CALLED.strip().splitlines()]
    table = {(module, name.partition(".")[0]) for module, name in called}
    modules = {module for module, _ in called}
    found = [pair for _, tree in sources() for pair in imports(tree)]
    assert len(found) > 10
    for module, alias in found:
        assert (module, alias.name) in table or f"{module}.{alias.name}" in modules


def test_nothing_of_nemo_rl_is_assigned_but_by_a_rehearsals_stand_ins():
    """Neither `module.name = x`, nor setattr, nor an entry of one of its dictionaries."""
    files = {path for path, tree in sources() for _ in assigned(tree)}
    files |= {
        path
        for path in REHEARSAL.rglob("*.py")
        for _ in assigned(ast.parse(path.read_text("utf-8")))
    }
    assert files == {REHEARSAL / "rehearse.py"}


def assigned(tree):
    """Yield each statement of a module that changes an object it imports from NeMo-RL."""
    theirs = {alias.asname or alias.name for _, alias in imports(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = getattr(node, "targets", None) or [node.target]
            changed = [t for t in targets if isinstance(t, ast.Attribute | ast.Subscript)]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            changes = name in {"setattr", "delattr", "update", "object", "setitem", "patch"}
            changed = [*node.args[:1], node.func] if changes else []
        else:
            continue
        for target in changed:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and root.id in theirs:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "text",
    [
        "from nemo_rl.algorithms import grpo\ngrpo.Logger = 1",
        "from nemo_rl.algorithms import grpo as g\nsetattr(g, 'Logger', 1)",
        "from nemo_rl.environments.utils import ENV_REGISTRY\nENV_REGISTRY['x'] = 1",
        "from nemo_rl.environments.utils import ENV_REGISTRY\nENV_REGISTRY.update(x=1)",
    ],
)
def test_an_assignment_is_found(text):
    assert list(assigned(ast.parse(text)))


@pytest.mark.parametrize(
    ("version", "tried"),
    [
        ("0.7.0", True),  # the source of the release
        ("0.7.0+81aa43dda", True),
        ("0.6.0+7ea279abf", True),  # main says this number
        ("0.7.0+1234567", False),  # a fork of it, or a later commit
        ("0.6.0", False),  # a release
        ("0.8.0", False),
    ],
)
def test_a_version_was_tried_or_not(version, tried):
    assert is_tried(version) == tried


def test_a_function_a_method_and_a_parameter_that_are_missing_are_named(monkeypatch):
    module = ModuleType("nemo_rl.toy")
    module.train = lambda policy, logger: None
    monkeypatch.setitem(sys.modules, "nemo_rl", ModuleType("nemo_rl"))
    monkeypatch.setitem(sys.modules, "nemo_rl.toy", module)
    lacks = {
        "toy:train a.py policy logger": "",
        "toy:train a.py policy state": "nemo_rl.toy.train lacks state (a.py)",
        "toy:Logger.log a.py": "has no attribute 'Logger'",
        "gone:train a.py": "No module named 'nemo_rl.gone'",
    }
    for called, lack in lacks.items():
        monkeypatch.setattr(nemo_rl, "CALLED", called)
        found = list(unmet())
        assert len(found) == bool(lack)
        assert not lack or lack in found[0]
