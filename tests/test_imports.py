"""Every module can be imported, on every Python and with every version that is promised."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("environments", "data_prep", "equipoise")
#: What only the extras, NeMo-RL's container or another project's environment have.
ELSEWHERE = {
    *("anyio", "fastapi", "inspect_ai", "megatron", "nemo_gym", "nemo_rl", "ray", "tensordict"),
    *("verifiers", "vllm", "zmq"),
}
SCRIPT = """
import importlib, pkgutil
for root in ("environments", "data_prep", "equipoise"):
    for module in pkgutil.walk_packages(importlib.import_module(root).__path__, root + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error.name.partition(".")[0])
        else:
            print(module.name)
"""


@pytest.mark.deep
def test_every_module_can_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    # A module's own imports may print lines; ours begin with a package's name.
    modules = [line for line in lines if line and line[0].startswith(PACKAGES)]
    files = [file.relative_to(ROOT) for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    assert {name for name, *_ in modules} == names - set(PACKAGES)
    lacking = [module for module in modules if module[1:] and module[1] not in ELSEWHERE]
    assert lacking == []


@pytest.mark.parametrize("names", [("environments",), PACKAGES], ids=["rewards", "whole"])
def test_every_import_is_declared(names: tuple[str, ...]) -> None:
    """Who installs the wheel gets all that it imports, not what a dependency happens to bring."""
    folder = ROOT / "environments" if names == ("environments",) else ROOT
    declared = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    distributions = {canonicalize_name(Requirement(line).name) for line in declared}
    modules = {
        module.partition(".")[0]
        for name in names
        for file in (ROOT / name).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for module in imported(node)
    }
    foreign = modules - set(sys.stdlib_module_names) - ELSEWHERE - {*PACKAGES}
    owners = packages_distributions()
    assert [
        module
        for module in sorted(foreign)
        if not {canonicalize_name(name) for name in owners.get(module, [module])} & distributions
    ] == []


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(str(module), level=0):
            return [module]
    return []
