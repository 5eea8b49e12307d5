"""What is assumed of NeMo-RL stands on one page, and is checked without importing it."""

import ast
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.assumptions import ASSUMPTIONS, is_tried, unmet
from tests.nemo_rl_checkout import write_checkout

ROOT = Path(__file__).resolve().parents[4]


def imports():
    """Every `from nemo_rl.x import y` in our code, as the module and the name."""
    for path in (ROOT / "equipoise").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module and module.partition(".")[0] == "nemo_rl":
                yield from ((module, alias.name) for alias in node.names)


def test_all_that_is_imported_is_on_the_page():
    pages: dict[str, set[str]] = {}
    for a in ASSUMPTIONS:
        pages.setdefault(a.file, set()).update(name.partition(".")[0] for name in a.names)

    def is_assumed(module: str, name: str) -> bool:
        path = module.replace(".", "/")
        inner = (f"{path}/{name}.py", f"{path}/{name}/__init__.py")  # the name is a module
        return name in pages.get(f"{path}.py", ()) or any(file in pages for file in inner)

    found = list(imports())
    assert len(found) > 15
    assert [pair for pair in found if not is_assumed(*pair)] == []


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


def test_what_is_assumed_is_enough(tmp_path):
    write_checkout(tmp_path)
    assert list(unmet(tmp_path)) == []
    lacks = list(unmet(tmp_path, ("run", "async", "rehearsal")))
    assert any("it has no nemo_rl/models/policy/utils.py" in lack for lack in lacks)
    # A method counts with its class.
    (tmp_path / "nemo_rl" / "distributed" / "virtual_cluster.py").write_text(
        "init_ray = SYSTEM = 1\nclass PY_EXECUTABLES:\n    OTHER = 1\n"
    )
    (lack,) = unmet(tmp_path)
    assert "virtual_cluster.py has no PY_EXECUTABLES.SYSTEM (" in lack


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        ("class ENV_REGISTRY: pass\nimport register_env", None),
        ("from x import y as register_env\nENV_REGISTRY: dict = {}", None),
        ("try:\n    import register_env\nexcept ImportError: pass\nENV_REGISTRY = 1", None),
        ("def register_env(): ENV_REGISTRY = 1", "has no ENV_REGISTRY (registers"),
        ("# ENV_REGISTRY register_env", "has no ENV_REGISTRY, register_env"),
        ("def register_env(:", "has no ENV_REGISTRY, register_env"),
    ],
)
def test_a_name_counts_where_it_can_be_imported(tmp_path, text, lack):
    write_checkout(tmp_path)
    (tmp_path / "nemo_rl" / "environments" / "utils.py").write_text(text)
    found = list(unmet(tmp_path))
    assert found == [] if lack is None else (lack in found[0] and len(found) == 1)
