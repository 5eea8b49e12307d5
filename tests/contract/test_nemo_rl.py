"""Parts of NeMo-RL on which our engine relies, checked against the one at NEMO_RL_PATH.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl.py
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.awaited_sets import sibling_means
from environments.base import Failure, PromptRecord, Rollout, Score
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.nemo_rl import find_installation, unmet
from equipoise.train.nemo_rl.process import before_nemo_rl
from tests.contract.rehearsal import SMALL, Both, needs_checkout, needs_extra

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.usefixtures("only_ray"),
    needs_checkout,
    needs_extra("tensorboard", "prometheus_client"),
]
#: The rehearsal itself stops it after the third.
SIX_STEPS = ("--config=nemo_configs/small.yaml", "--iterations=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def start(folder):
    def start(*arguments, recipe="grpo_fairness"):
        return subprocess.Popen(
            [sys.executable, f"recipes/{recipe}.py", *arguments],
            cwd=ROOT,
            # At Ray's own niceness of 15 nothing moves on a loaded machine.
            env=os.environ | {"HF_HUB_OFFLINE": "1", "RAY_worker_niceness": "0"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    return start


@pytest.fixture(scope="module")
def new(start, folder):
    def new(name, *arguments, recipe="grpo_fairness"):
        places = (f"--run-name={name}", f"--output-dir={folder}")
        places = (*places, f"equipoise.cache_dir={folder / 'cache'}")
        small = [word for word in SMALL if recipe == "grpo_fairness" or "fairness" not in word]
        return start("--rehearse", *small, *places, *arguments, recipe=recipe)

    return new


def finished(process, code=0):
    output = process.communicate(timeout=1800)[0]
    assert process.returncode == code, output
    return output


def history(run):
    return [json.loads(row) for row in (run / "training_history.jsonl").open()]


def test_it_has_all_that_is_called():
    find_installation().make_importable()
    before_nemo_rl()
    assert list(unmet()) == []
    grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    made = inspect.signature(grpo.setup).return_annotation
    assert len(get_args(made)) == 13  # as many as recipe.py takes


class TestARehearsal:
    """One rehearsal of the scale for one GPU, looked at from several sides."""

    @pytest.fixture(scope="class")
    def output(self, new, folder):
        mine = folder / "mine.yaml"
        mine.write_text(
            "checkpointing: {metric_name: 'val:env/disparity_ratio', higher_is_better: false}\n"
            "logger: {tensorboard_enabled: true}\n"
        )
        words = ("grpo.val_period=3", "checkpointing.save_period=3", f"--config={mine}")
        return finished(new("whole", *SIX_STEPS, *words))

    @pytest.fixture
    def run(self, output, folder):
        return folder / "fairness" / "whole"

    def test_is_stopped_and_goes_on_and_says_what_it_is(self, output):
        assert "stopped after step 3" in output
        assert "This is a rehearsal" in output
        assert "Traceback" not in output
        assert "Ray is not initialized" not in output

    def test_leaves_the_run_directory_of_the_local_engine(self, run):
        assert [row["step"] for row in history(run)] == [1, 2, 3, 4, 5, 6]
        first = history(run)[0]
        for name in ("reward", "loss", "learning_rate", "entropy", "completion_length", "seconds"):
            assert name in first
        assert "env/disparity_ratio" in first
        assert first["token_mult_prob_error"] == pytest.approx(1, abs=1e-3)
        assert abs(first["gen_kl_error"]) < 1e-3
        for stage in ("baseline", "final"):
            evaluation = json.loads((run / stage / "evaluation.json").read_text())
            assert "disparity_ratio" in evaluation["metrics"]
            assert evaluation["prompt_tokens"] > evaluation["completion_tokens"] > 0
        for name in ("comparison.json", "report.html", "reference.jsonl", "config.yaml"):
            assert (run / name).exists(), name
        assert not list((run / "logs").rglob("train_data*"))
        provenance = json.loads((run / "provenance.json").read_text())
        assert provenance["engine"] == "nemo_rl"
        assert provenance["hashes"].keys() == {
            *("model", "chat_template", "prompts", "reference", "environment")
        }

    def test_chooses_checkpoints_by_a_metric_of_the_environment(self, run):
        info = json.loads((run / "checkpoints" / "step_6" / "training_info.json").read_text())
        assert info["val:env/disparity_ratio"] >= 1

    def test_logs_the_environments_metrics_where_nemo_rl_logs(self, run):
        events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        logged: dict[str, dict[int, float]] = {}
        for path in (run / "logs").rglob("events.out.tfevents.*"):
            reader = events.EventAccumulator(str(path))
            reader.Reload()
            for tag in reader.Tags()["scalars"]:
                points = {event.step: event.value for event in reader.Scalars(tag)}
                logged.setdefault(tag, {}).update(points)
        assert "validation/env/disparity_ratio" in logged
        for name in ("env/disparity_ratio", "reward/fairness"):
            expected = {row["step"]: row[name] for row in history(run)}
            assert logged[f"train/{name}"] == pytest.approx(expected, rel=1e-5)

    def test_trains_at_the_rate_of_the_configuration(self, run):
        rates = [row["learning_rate"] for row in history(run)][:4]
        assert rates == pytest.approx([1e-5, 1.9e-5, 2.8e-5, 3.7e-5])

    def test_trains_samples_and_exports_one_policy(self, output, run):
        differences = json.loads((run / "provenance.json").read_text())["logprobs_differ_by"]
        assert differences.keys() == {"training", "final_checkpoint"}
        assert max(differences.values()) < 1e-4
        assert "differ from the generation's by" in output

    def test_repeats_itself_when_it_was_stopped_and_killed(self, run, new, start, folder):
        """SIGTERM ends a step with a checkpoint that is not due, SIGKILL comes at any moment."""
        other = folder / "fairness" / "other"
        words = ("checkpointing.save_period=5", "checkpointing.metric_name=train:env/parse_rate")
        process = new("other", *SIX_STEPS, *words, "grpo.val_period=0")
        wait_for(lambda: (other / "training_history.jsonl").exists(), process)
        process.send_signal(signal.SIGTERM)
        assert "--resume" in finished(process, code=130)
        done = len(history(other))
        assert done < 3  # where the rehearsal itself stops
        checkpoint = other / "checkpoints" / f"step_{done}"
        info = json.loads((checkpoint / "training_info.json").read_text())
        assert info["train:env/parse_rate"] == pytest.approx(history(other)[-1]["env/parse_rate"])
        process = start("--resume", str(other))
        wait_for(lambda: (other / "checkpoints" / "step_5").is_dir(), process)
        process.kill()
        process.communicate()
        finished(start("--resume", str(other)))
        assert without_seconds(history(other)) == without_seconds(history(run))

    def test_leaves_a_model_that_loads(self, run):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer

        final = run / "final_checkpoint"
        settings = json.loads((final / "adapter_config.json").read_text())
        base = AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"])
        assert PeftModel.from_pretrained(base, final).peft_config
        assert AutoTokenizer.from_pretrained(final).chat_template


def test_two_policies_in_training_and_generation_end_a_run_with_a_checkpoint(new, folder):
    """With a bound that rounding alone exceeds: the first step shows it, and the second ends."""
    words = ("equipoise.max_token_mult_prob_error=1", "equipoise.failure_window=1")
    process = new("apart", "--config=nemo_configs/small.yaml", *words)
    output = " ".join(finished(process, 1).split())
    assert "the median token_mult_prob_error of the last 1 steps is 1" in output
    assert "Traceback" not in output
    run = folder / "fairness" / "apart"
    assert (run / "checkpoints" / "step_2").is_dir()
    assert (run / "report.html").exists()


def without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_two_workers_train_one_policy_by_a_chain_of_schedulers(new, folder):
    linear = (
        "{name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.5, total_iters: 2}}"
    )
    constant = "{name: torch.optim.lr_scheduler.ConstantLR, kwargs: {factor: 1.0}}"
    chain = folder / "chain.yaml"
    chain.write_text(f"policy: {{scheduler: [{linear}, {constant}, {{milestones: [2]}}]}}\n")
    words = ("--config=nemo_configs/medium.yaml", f"--config={chain}", "--iterations=3")
    finished(new("two", *words))
    run = folder / "fairness" / "two"
    assert "2 workers initialized" in (run / "nemo_rl.log").read_text()
    rates = [row["learning_rate"] for row in history(run)]
    assert rates == pytest.approx([2.5e-5, 3.75e-5, 5e-5])
    assert (run / "final_checkpoint" / "adapter_model.safetensors").exists()


def test_all_weights_of_two_workers_that_pack_sequences_become_one_model(new, folder):
    """Training's log-probabilities are of packed rows, the other sides' of single ones."""
    words = ("policy.dtensor_cfg.lora_cfg.enabled=false", "equipoise.gpu_memory_gb=null")
    finished(new("all", "--config=nemo_configs/large.yaml", "--iterations=2", *words))
    run = folder / "fairness" / "all"
    assert "Sequence packing is enabled" in (run / "nemo_rl.log").read_text()
    record = json.loads((run / "final_checkpoint" / "conversion.json").read_text())
    assert record["source"]["kind"].endswith("in 2 shards")
    differences = json.loads((run / "provenance.json").read_text())["logprobs_differ_by"]
    assert differences.keys() == {"training", "final_checkpoint"}
    assert max(differences.values()) < 1e-4


@pytest.mark.parametrize("task", ["dharma", "pubmedqa", "rag"])
def test_every_other_task_is_stopped_and_goes_on(new, folder, task):
    words = ("--config=nemo_configs/small.yaml", "--iterations=2", "grpo.val_period=0")
    output = finished(new(task, *words, recipe=f"grpo_{task}"))
    assert "stopped after step 1" in output
    run = folder / task / task
    assert [row["step"] for row in history(run)] == [1, 2]
    differences = json.loads((run / "provenance.json").read_text())["logprobs_differ_by"]
    assert max(differences.values()) < 1e-4


def test_an_adapter_on_a_head_that_is_the_embeddings_is_caught(new, folder):
    lora = "policy.dtensor_cfg.lora_cfg"
    words = (f"{lora}.match_all_linear=true", f"{lora}.exclude_modules=[]", "--iterations=1")
    words = (*words, "--learning-rate=1e-3")
    output = finished(new("head", "--config=nemo_configs/medium.yaml", *words), code=1)
    assert "what is trained is not what is sampled or exported" in output
    assert "lm_head" in output
    differences = json.loads((folder / "fairness" / "head" / "provenance.json").read_text())
    assert differences["logprobs_differ_by"]["final_checkpoint"] > 1e-3


def wait_for(condition, process):
    deadline = time.monotonic() + 900
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.2)


class TestAdvantages:
    """NeMo-RL's advantages from our rewards against TRL's, on the same scores."""

    GROUPS, GENERATIONS = 8, 8

    @pytest.fixture(scope="class", autouse=True)
    def nemo_rl(self):
        find_installation().make_importable()
        before_nemo_rl()

    @pytest.fixture
    def values(self):
        """Rewards of which a part failed: none, some, all but one, all of a prompt's."""
        drawn = np.random.default_rng(0).normal(size=(self.GROUPS, self.GENERATIONS)).tolist()
        for group, failed in enumerate((0, 1, 3, self.GENERATIONS - 1, self.GENERATIONS, 2)):
            drawn[group][:failed] = [None] * failed
        return [value for group in drawn for value in group]

    def of_nemo_rl(self, values, normalize):
        estimator = importlib.import_module("nemo_rl.algorithms.advantage_estimator")
        prompts = torch.arange(self.GROUPS).repeat_interleave(self.GENERATIONS)[:, None]
        rollouts = [Rollout(str(int(p)), "", "train", "", "") for p in prompts]
        down = Failure("server_error", "down")
        scores = [Score(v, error=down if v is None else None) for v in values]
        rewards = torch.tensor(sibling_means(rollouts, scores))
        settings = Both(use_leave_one_out_baseline=False, normalize_rewards=normalize)
        grpo = estimator.GRPOAdvantageEstimator(settings, {})
        return grpo.compute_advantage(prompts, rewards, torch.ones(len(values), 1)).squeeze(1)

    def of_trl(self, values, normalize, folder):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from equipoise.run.sampling import LoadedModel
        from equipoise.train.local import build_trainer, trainable

        records = [
            PromptRecord(f"{g}", "toy", ({"role": "user", "content": f"Q{g}"},), f"{g}", "train")
            for g in range(self.GROUPS)
        ]
        words = [
            f"grpo.num_prompts_per_step={self.GROUPS}",
            f"grpo.num_generations_per_prompt={self.GENERATIONS}",
            f"grpo.normalize_rewards={normalize}",
            "policy.train_micro_batch_size=64",
            "policy.generation.max_new_tokens=2",
            "checkpointing.enabled=false",
            "--iterations=1",
        ]
        examples = [Example(record.messages, "yes") for record in records]
        settings = WarmStart(steps=1, batch_size=2, vocab_size=400)
        model = warm_start(examples, settings, folder / "cache")
        loaded = LoadedModel(
            AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model), "x"
        )
        config = load_config("fairness", parse_flags("x", words)).config
        reward = lambda completions, **_: values[: len(completions)]  # noqa: E731
        reward.__name__ = "toy"
        model = trainable(loaded, config)
        trainer = build_trainer(model, loaded, records, reward, config, folder / "trl")
        rows = [trainer.train_dataset[g] for g in range(self.GROUPS)]
        batch = [row for row in rows for _ in range(self.GENERATIONS)]
        trainer.model.train()
        return trainer._generate_and_score_completions(batch)["advantages"]

    def test_are_the_same_failures_included(self, values, tmp_path):
        ours = self.of_nemo_rl(values, normalize=False)
        assert torch.allclose(ours, self.of_trl(values, False, tmp_path), atol=1e-5)
        assert all(ours[i] == pytest.approx(0, abs=1e-6) for i, v in enumerate(values) if v is None)

    def test_divided_by_the_spread_differ_by_a_factor_of_the_failures_alone(self, values, tmp_path):
        """A failed score counts as a generation without deviation in NeMo-RL's spread."""
        ours = self.of_nemo_rl(values, normalize=True).view(self.GROUPS, self.GENERATIONS)
        theirs = self.of_trl(values, True, tmp_path).view(self.GROUPS, self.GENERATIONS)
        for group in range(self.GROUPS):
            valid = sum(v is not None for v in values[group * 8 : group * 8 + 8])
            if valid < 2:
                continue  # nothing to divide by
            factor = ((self.GENERATIONS - 1) / (valid - 1)) ** 0.5
            assert torch.allclose(ours[group], theirs[group] * factor, rtol=1e-3, atol=1e-4)
