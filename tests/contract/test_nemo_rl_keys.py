"""The names of a real NeMo-RL's keys against Equipoise's list: what a new version adds to it.

Reads the examples of the checkout that NEMO_RL_PATH names; nothing of it is imported.
"""

import os
from pathlib import Path
from typing import get_args

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from equipoise.config.compose import Source, compose, read_file, task_defaults
from equipoise.config.schema import Config
from equipoise.config.validate import validate, whole_schema

ROOT = Path(os.environ.get("NEMO_RL_PATH", ""))
if not (ROOT / "nemo_rl").is_dir():
    pytest.skip("NEMO_RL_PATH names no checkout of NeMo-RL", allow_module_level=True)

CONFIGS = ROOT / "examples" / "configs"
EXAMPLES = sorted(CONFIGS.rglob("grpo*.y*ml"))
#: Refused for values: null, -1, the worker that later releases lack, and replies without a prompt.
REFUSED_FOR_THE_VALUE = {
    "policy",  # max_new_tokens is as long as a whole sequence
    "data_plane.enabled",  # its trainer has no place for our evaluations
    "policy.generation.backend",  # others than vllm and sglang
    "policy.optimizer",  # Equipoise takes Megatron's learning rate from there
    "grpo.val_period",  # 0 turns validation off
    "policy.dtensor_cfg._v2",
}
#: What our own code sets for NeMo-RL, whatever its base says.
OURS = ("equipoise", "env", "logger.wandb.name", "data.num_workers")


def chain(path):
    """The example with the files that it inherits from, as sources; later ones win."""
    source = read_file(path, by_user=True)
    tree = dict(source.tree)
    parents = tree.pop("defaults", [])
    for parent in [parents] if isinstance(parents, str) else parents:
        yield from chain(path.parent / parent)
    tree["data"] = {k: v for k, v in tree.get("data", {}).items() if k != "_override_"}
    # Which environment a run has is the task's in Equipoise.
    yield Source(source.origin, {key: value for key, value in tree.items() if key != "env"})


def test_there_are_examples():
    assert len(EXAMPLES) > 100


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_key_of_an_example_is_known(path, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/models")
    composition = compose([*task_defaults("fairness"), *chain(path)])
    problems = validate(composition.values, whole_schema())[1]
    said = [f"{p.keys[0]}: {p.message}" for p in problems]
    assert [line for line in said if line.partition(":")[0] not in REFUSED_FOR_THE_VALUE] == []


def defaults(model, prefix=""):
    """Key and default of what has one, in NeMo-RL's sections."""
    for name, info in model.model_fields.items():
        key = prefix + (info.alias or name)
        below = [
            part
            for part in (info.annotation, *get_args(info.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        if below:
            yield from defaults(below[0], f"{key}.")
        elif not info.is_required():
            yield key, info.default


@pytest.mark.parametrize(
    ("key", "default"), [case for case in defaults(Config) if not case[0].startswith(OURS)]
)
def test_a_default_of_ours_is_nemo_rls(key, default):
    """NeMo-RL's base decides a key that nobody sets, so a check must assume its value."""
    base = OmegaConf.to_container(OmegaConf.load(CONFIGS / "grpo_math_1B.yaml"))
    for name in key.split("."):
        if not isinstance(base, dict) or name not in base:
            pytest.skip("the base does not set it")
        base = base[name]
    if isinstance(base, str) and "${" in base:
        pytest.skip("the base derives it from another key")
    assert (list(default) if isinstance(default, tuple) else default) == base
