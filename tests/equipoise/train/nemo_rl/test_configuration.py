"""NeMo-RL reads the configuration of every task at every scale."""

from pathlib import Path

import pytest

from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl_rules import adapts
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.engine import nemo_rl_config

FILES = (CONFIG_FOLDER / "tasks").glob("*.yaml")
TASKS = sorted(path.stem for path in FILES if "." not in path.stem)
SCALES = ("small", "medium", "large")
ENGINE = Setting("", "equipoise.engine", "nemo_rl")
LINEAR = {
    "name": "torch.optim.lr_scheduler.LinearLR",
    "kwargs": {"start_factor": 0.5, "total_iters": 2},
}


@pytest.fixture
def written(tmp_path):
    """The values of nemo_rl.yaml."""

    def write(task, scale, *settings, validates=True):
        options = Options((CONFIG_FOLDER / f"{scale}.yaml",), (ENGINE, *settings))
        loaded = load_config(task, options)
        base = Path("/opt/nemo-rl/examples/configs/grpo_math_1B.yaml")
        run = RunDirectory(tmp_path)
        return nemo_rl_config(loaded, base, run, "model", validates=validates)

    return write


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", SCALES)
class TestShipped:
    def test_no_adapter_is_on_the_output_layer(self, scale, task, written):
        """Which a small model shares with its embeddings, and vLLM does not take for itself."""
        policy = written(task, scale)["policy"]
        lora, peft = policy["dtensor_cfg"]["lora_cfg"], policy["megatron_cfg"]["peft"]
        assert not lora["match_all_linear"]
        assert not adapts("lm_head", lora["target_modules"], lora["exclude_modules"])
        assert not adapts("output_layer", peft["target_modules"], peft.get("exclude_modules", ()))


def test_no_path_depends_on_the_node_or_its_user(written, tmp_path):
    data = written("fairness", "small")["data"]
    assert data["train"]["prompts"] == data["validation"]["prompts"]
    assert data["train"]["prompts"] == str(tmp_path / "prompts.jsonl")


def test_without_prompts_to_validate_on_there_is_no_validation(written):
    """Of the last step either; our final evaluation is another one."""
    config = written("fairness", "small", validates=False)
    assert (config["data"]["validation"], config["grpo"]["val_at_end"]) == (None, False)
    assert written("fairness", "small")["grpo"]["val_at_end"]


def test_a_scheduler_is_a_chain_with_milestones_and_constant_by_default(written):
    """NeMo-RL takes no null, and its workers read the milestones of a single scheduler, too."""
    null = Setting("", "policy.scheduler", None)
    (constant, end) = written("fairness", "small", null)["policy"]["scheduler"]
    assert (constant["kwargs"]["factor"], end) == (1.0, {"milestones": []})
    one = Setting("", "policy.scheduler", [LINEAR])
    assert written("fairness", "small", one)["policy"]["scheduler"] == [LINEAR, {"milestones": []}]
    chain = [LINEAR, LINEAR, {"milestones": [3]}]
    setting = Setting("", "policy.scheduler", chain)
    assert written("fairness", "small", setting)["policy"]["scheduler"] == chain
