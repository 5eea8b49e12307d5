"""Every shipped scale with every task, as the real NeMo-RL reads it.

Runs against the checkout that NEMO_RL_PATH names, with what it imports from the extra `rehearse`.
"""

import os
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from environments.yaml_file import fields_of
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.files.nemo_rl import find_installation
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.engine import DATASET, nemo_rl_config
from equipoise.train.nemo_rl.process import before_nemo_rl

TASKS = sorted(
    path.stem for path in (CONFIG_FOLDER / "tasks").glob("*.yaml") if "." not in path.stem
)
SCALES = ("small", "medium", "large")
NEMO_RL = Setting("", "equipoise.engine", "nemo_rl")
#: Sections whose keys are our own code's to define.
OURS = ("defaults", "env", "data.train", "data.validation")


@pytest.fixture(scope="module")
def nemo_rl():
    """The functions of the real NeMo-RL that its driver calls."""
    root = os.environ.get("NEMO_RL_PATH")
    if not root:
        pytest.skip("NEMO_RL_PATH names no checkout of NeMo-RL")
    find_installation().make_importable()
    before_nemo_rl()
    try:
        from nemo_rl.algorithms.grpo import MasterConfig
        from nemo_rl.utils import config
    except ImportError as error:
        pytest.skip(f"NeMo-RL at {root} cannot be imported: {error}")
    base = Path(root) / "examples" / "configs" / "grpo_math_1B.yaml"
    return SimpleNamespace(MasterConfig=MasterConfig, load=config.load_config, base=base)


@pytest.fixture
def written(nemo_rl, tmp_path):
    """A function that writes our configuration and reads it again by NeMo-RL's loader."""

    def write(task, scale, *settings):
        options = Options((CONFIG_FOLDER / f"{scale}.yaml",), (NEMO_RL, *settings))
        loaded = load_config(task, options)
        name = loaded.config.policy.model_name
        ours = nemo_rl_config(loaded, nemo_rl.base, RunDirectory(tmp_path / "run"), name)
        path = tmp_path / "nemo_rl.yaml"
        OmegaConf.save(OmegaConf.create(ours), path)
        merged = OmegaConf.to_container(nemo_rl.load(path), resolve=True)
        return loaded, ours, merged

    return write


def structures(annotation):
    if fields_of(annotation):
        return [annotation]
    return [s for part in typing.get_args(annotation) for s in structures(part)]


def declared(model, prefix=""):
    for name, annotation in fields_of(model).items():
        yield prefix + name
        for structure in structures(annotation):
            yield from declared(structure, f"{prefix}{name}.")


def keys(tree, prefix=""):
    for name, value in tree.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", SCALES)
class TestShipped:
    def test_it_is_a_master_config(self, scale, task, nemo_rl, written):
        loaded, _, merged = written(task, scale)
        config = nemo_rl.MasterConfig(**merged)
        assert config.policy["model_name"] == loaded.config.policy.model_name
        assert set(config.env) == {loaded.environment_class.name}

    def test_nemo_rl_knows_every_key(self, scale, task, nemo_rl, written):
        _, ours, _ = written(task, scale)
        known = {
            *declared(nemo_rl.MasterConfig),
            *keys(OmegaConf.to_container(OmegaConf.load(nemo_rl.base))),
        }
        free = {key for key in known if not any(other.startswith(f"{key}.") for other in known)}
        unknown = [
            key
            for key in keys(ours)
            if key not in known
            and not key.endswith("_override_")
            and not key.startswith(OURS)
            and not any(key.startswith(f"{leaf}.") for leaf in free)
        ]
        assert unknown == []

    def test_what_we_set_reaches_nemo_rl(self, scale, task, written):
        _, ours, merged = written(task, scale)

        def compare(ours, merged):
            for key, value in ours.items():
                if isinstance(value, dict):
                    compare(value, merged[key])
                elif key not in ("_override_", "defaults"):
                    assert merged[key] == value, key

        compare(ours, merged)

    def test_no_default_of_the_base_reaches_our_data_or_environment(self, scale, task, written):
        loaded, ours, merged = written(task, scale)
        assert merged["data"] == {k: v for k, v in ours["data"].items() if k != "_override_"}
        assert merged["data"]["train"]["dataset_name"] == DATASET
        assert merged["env"].keys() == {loaded.environment_class.name}

    def test_a_batch_is_what_a_step_samples(self, scale, task, written):
        _, _, merged = written(task, scale)
        grpo, policy = merged["grpo"], merged["policy"]
        rollouts = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
        assert rollouts % policy["train_global_batch_size"] == 0
        assert grpo["max_val_samples"] >= grpo["val_batch_size"]


def test_one_backend_trains(written):
    for scale in SCALES:
        policy = written("fairness", scale)[2]["policy"]
        assert policy["dtensor_cfg"]["enabled"] != policy["megatron_cfg"]["enabled"]
        assert policy["megatron_cfg"]["enabled"] == (scale == "large")


def test_megatron_learns_as_the_flags_say(written):
    settings = (
        Setting("--learning-rate", "policy.optimizer.kwargs.lr", 3.0e-6),
        Setting("--lora-rank", "policy.dtensor_cfg.lora_cfg.dim", 8),
    )
    megatron = written("pubmedqa", "large", *settings)[2]["policy"]["megatron_cfg"]
    assert (megatron["optimizer"]["lr"], megatron["optimizer"]["min_lr"]) == (3.0e-6, 3.0e-6)
    assert (megatron["peft"]["enabled"], megatron["peft"]["dim"]) == (True, 8)
    assert megatron["peft"]["lora_dtype"] is None
    # What nobody set is the version's own.
    assert megatron["optimizer"]["use_distributed_optimizer"] is True
    assert megatron["optimizer"]["clip_grad"] == 1.0


def test_no_key_is_set_that_a_later_nemo_rl_lacks(written):
    """After v0.7.0 there is neither `_v2` nor the worker that `false` asks for."""
    for scale in SCALES:
        _, ours, _ = written("fairness", scale)
        assert "_v2" not in set(keys(ours["policy"]["dtensor_cfg"]))
