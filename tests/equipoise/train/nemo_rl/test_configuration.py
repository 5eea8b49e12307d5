"""NeMo-RL reads the configuration of every task at every scale."""

from pathlib import Path

import pytest
import torch

from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl.rules import adapts
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.engine import nemo_rl_config
from tests.equipoise.train.nemo_rl.stand_ins import scheduler_of

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


def learning_rates(policy, steps):
    """Those at which a worker trains."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = scheduler_of(optimizer, policy["scheduler"])
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", SCALES)
class TestShipped:
    def test_a_worker_builds_its_scheduler(self, scale, task, written):
        rates = learning_rates(written(task, scale)["policy"], 3)
        assert all(0 < rate <= 1 for rate in rates)

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


def test_without_a_scheduler_the_learning_rate_is_constant(written):
    null = Setting("", "policy.scheduler", None)
    assert learning_rates(written("fairness", "small", null)["policy"], 4) == [1.0] * 4


def test_a_single_scheduler_is_a_chain_too(written):
    one = Setting("", "policy.scheduler", [LINEAR])
    assert learning_rates(written("fairness", "small", one)["policy"], 3) == [0.5, 0.75, 1.0]


def test_the_milestones_of_a_chain_stay(written):
    chain = Setting("", "policy.scheduler", [LINEAR, LINEAR, {"milestones": [3]}])
    rates = learning_rates(written("fairness", "small", chain)["policy"], 5)
    assert rates == [0.5, 0.75, 1.0, 0.5, 0.75]
