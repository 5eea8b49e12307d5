"""That what stands in for NeMo-RL's interface in fast tests is like it.

Reads the source of the checkout that NEMO_RL_PATH names; nothing of it is imported.
"""

import ast
import inspect
import os
from pathlib import Path

import pytest

from tests.equipoise.train.nemo_rl import stand_ins

ROOT = Path(os.environ.get("NEMO_RL_PATH", "")) / "nemo_rl"
if not (ROOT / "models").is_dir():
    pytest.skip("NEMO_RL_PATH names no checkout of NeMo-RL", allow_module_level=True)


def class_of(module, name):
    tree = ast.parse((ROOT / f"{module}.py").read_text("utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return found


def method_of(found, name):
    (method,) = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return method


def words(method):
    return [argument.arg for argument in method.args.args]


def stood_in(function):
    return list(inspect.signature(function).parameters)


def lines_of_calls(method, name):
    calls = [node for node in ast.walk(method) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call.func).split(".")[-1] == name]


def test_a_policy_is_built_from_these_words():
    policy = method_of(class_of("models/policy/lm_policy", "Policy"), "__init__")
    assert set(stood_in(stand_ins.Policy.__init__)) <= set(words(policy))
    assert words(policy)[:4] == stood_in(stand_ins.Policy.__init__)[:4]


def test_a_worker_loads_before_it_copies_its_reference():
    """A version that fails this no longer needs `with_first_reference` of recipe.py."""
    name = "models/policy/workers/dtensor_policy_worker_v2"
    tree = ast.parse((ROOT / f"{name}.py").read_text("utf-8"))
    workers = [n.name for n in tree.body if getattr(n, "name", "").startswith("DTensorPolicyWo")]
    worker = class_of(name, workers[0])
    begin = method_of(worker, "__init__")
    (loaded,) = lines_of_calls(begin, "setup_model_and_optimizer")
    (copied,) = lines_of_calls(begin, "setup_reference_model_state")
    assert loaded < copied
    load = method_of(worker, "load_checkpoint")
    assert words(load) == stood_in(stand_ins.Worker.load_checkpoint)
