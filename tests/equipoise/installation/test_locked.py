"""NeMo-RL's environments against its lock."""

from pathlib import Path

import pytest

from equipoise.doctor.nemo_rl import packages
from equipoise.installation.locked import changes, installed_in, locked_in

LOCK = """
version = 1
[[package]]
name = "torch"
version = "2.11.0+cu129"
[[package]]
name = "torch"
version = "2.11.0"
[[package]]
name = "rich"
version = "13.9.4"
[[package]]
name = "nemo-rl"
source = { editable = "." }
"""


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "uv.lock").write_text(LOCK)
    return tmp_path


def environment(folder: Path, *distributions: str) -> Path:
    for name in distributions:
        (folder / "lib/python3.13/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    return folder


def test_versions_of_the_lock_are_in_order(root):
    own = environment(root / ".venv", "torch-2.11.0+cu128", "rich-13.9.4", "mine-1.0")
    assert locked_in(root)["torch"] == {"2.11.0", "2.11.0+cu129"}
    assert [result.status for result in packages(root, [own])] == ["ok"]


def test_equipoise_in_one_of_them_is_named_with_what_removes_it(root):
    """No build can refuse that: uv builds a wheel without saying for whom, and keeps it."""
    own = environment(root / ".venv", "torch-2.11.0", "equipoise-0.1.0")
    inside, others = packages(root, [own])
    assert inside.status == "warning"
    assert str(own) in inside.says
    assert f"uv pip uninstall --python {own} equipoise" in inside.remedy
    assert others.status == "ok"


def test_a_torch_that_somebody_replaced_ends_runs(root):
    """As `uv run` of another project does where its environment is named as theirs."""
    own = environment(root / ".venv", "torch-2.15.0", "rich-14.0.0")
    (result,) = packages(root, [own])
    assert result.status == "failure"
    assert "torch 2.15.0 (locked: 2.11.0 or 2.11.0+cu129)" in result.says
    assert result.says.index("torch") < result.says.index("rich")
    assert str(own) in result.says


def test_another_package_is_a_warning(root):
    worker = environment(root / "venvs" / "worker", "rich-14.0.0", "torch-2.11.0")
    assert [result.status for result in packages(root, [worker])] == ["warning"]


def test_without_a_lock_nobody_knows(tmp_path):
    assert [result.status for result in packages(tmp_path, [])] == ["not checked"]


def test_names_are_compared_as_the_index_does(tmp_path):
    own = environment(tmp_path, "Typing_Extensions-4.1")
    assert installed_in(own) == {"typing-extensions": "4.1"}
    (change,) = changes({"typing-extensions": "4.1"}, {"typing-extensions": {"4.2"}})
    assert not change.vital
