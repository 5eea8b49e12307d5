"""A recipe gets a list of all its problems at once, or a configuration that can run."""

import subprocess
import sys

import pytest

from data_prep.fairness import FairnessData, LocalModelSettings, PromptSettings
from data_prep.splits import Fractions
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from tests.equipoise.config.conftest import on_nemo_rl, rows
from tests.nemo_rl_checkout import write_checkout
from tests.refusals import refusal

LOCAL, SMALL, LARGE = (CONFIG_FOLDER / f"{name}.yaml" for name in ("local", "small", "large"))


class TestAValidConfiguration:
    def test_has_the_tasks_own_code_and_settings(self, load):
        loaded = load(
            *("env.fairness.reward=distance", "--num-samples", "64", "equipoise.data.seed=3"),
            *("equipoise.local_model.steps=7", "equipoise.local_model.seed=5"),
        )
        assert loaded.environment_class is FairnessEnvironment
        assert loaded.env_settings == FairnessSettings(reward="distance", reference_generations=32)
        assert loaded.prompt_settings == PromptSettings(
            num_samples=64,
            leave_out=["falling_load"],
            implied_share=0.25,
            fractions=Fractions(train=0.8, validation=0.05, test=0.15),
            seed=3,
        )
        assert loaded.local_model_settings == LocalModelSettings(steps=7, seed=5)
        assert isinstance(loaded.data_module, FairnessData)

    def test_a_yaml_of_three_keys_is_enough(self, load, tmp_path):
        mine = tmp_path / "mine and yours.yaml"
        mine.write_text("grpo: {max_num_steps: 7}\npolicy: {model_name: my/model}\nenv: {}")
        loaded = load("--config", str(mine))
        assert loaded.config.grpo.max_num_steps == 7
        assert loaded.config.policy.tokenizer.name == "my/model"
        assert loaded.config.equipoise.run_name is None

    def test_a_file_of_ones_own_wins_over_task_and_scale_wherever_it_is_named(self, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text("grpo: {num_generations_per_prompt: 4, max_num_steps: 7}")
        for files in ((LARGE, mine), (mine, LARGE)):
            grpo = load_config("rag", Options(files)).config.grpo
            assert (grpo.num_generations_per_prompt, grpo.max_num_steps) == (4, 7)

    def test_a_task_wins_over_the_scale_and_the_task_at_that_scale_over_both(self):
        origins = load_config("rag", Options((LARGE,))).origins
        assert origins["cluster.num_nodes"].label == "nemo_configs/large.yaml"
        assert origins["grpo.max_num_steps"].label == "nemo_configs/tasks/rag.yaml"
        assert origins["policy.scheduler"].label == "nemo_configs/tasks/rag.large.yaml"

    def test_a_scale_that_there_is_not(self, load, tmp_path):
        (tmp_path / "mine.yaml").write_text("over: tiny")
        with refusal("config.unknown-scale", "tiny", "large, local, medium, small"):
            load("--config", str(tmp_path / "mine.yaml"))

    def test_flags_win_over_files_and_assignments_over_flags(self, load):
        assert load("--iterations", "5").config.grpo.max_num_steps == 5
        loaded = load("--iterations", "5", "grpo.max_num_steps=6")
        assert loaded.config.grpo.max_num_steps == 6
        assert loaded.origins["grpo.max_num_steps"].label == "command line"

    def test_the_resolved_values_hold_the_tasks_defaults_and_no_unset_nemo_rl_key(self, load):
        resolved = load().resolved
        assert resolved["env"]["fairness"]["reference_generations"] >= 1
        assert resolved["equipoise"]["evaluation"]["confidence"] == 0.95
        assert isinstance(resolved["policy"]["train_global_batch_size"], int)
        assert "vllm_cfg" not in resolved["policy"]["generation"]

    def test_a_run_that_is_resumed_has_its_own_configuration(self, load, tmp_path):
        first = load("--run-name", "night", "--iterations", "5", "policy.max_grad_norm=2")
        (tmp_path / "config.yaml").write_text(first.to_yaml())
        again = load("--resume", str(tmp_path), "--iterations", "9").config
        assert (again.equipoise.run_name, again.policy.max_grad_norm) == ("night", 2)
        assert again.grpo.max_num_steps == 9
        with refusal("resume.no-config"):
            load("--resume", str(tmp_path / "nowhere"))


#: Found together by the schema.
OF_THE_SCHEMA = """
grpo.num_promts_per_step=8 -> did you mean grpo.num_prompts_per_step?
gropo.seed=1 -> did you mean grpo?
policy.lr=1e-4 -> use policy.optimizer.kwargs.lr, or --learning-rate
grpo.num_iterations=2 -> each step makes one update
beta=0.1 -> use loss_fn.reference_policy_kl_penalty
policy.dtensor_cfg.lora_cfg.rank=8 -> unknown key
policy.dtensor_cfg.v2=true -> did you mean policy.dtensor_cfg._v2?
policy.generation.vllm_cfg.asynch_engine=true -> vllm_cfg.async_engine?
policy.scheduler=[{nam: a.b}] -> did you mean policy.scheduler.0.name?
cluster.xyz=1 -> there are gpus_per_node, num_nodes,
grpo.reward_scaling.enable=true -> did you mean grpo.reward_scaling.enabled?
scale=small -> unknown key
grpo.max_num_epochs=many -> should be a valid integer, not 'many'
grpo.val_period='8' -> should be a valid integer, not '8'
grpo.val_batch_size=1.5 -> should be a valid integer, not 1.5
grpo.max_val_samples=-1 -> should be greater than 0, not -1
grpo.normalize_rewards=1 -> should be a valid boolean, not 1
loss_fn=3 -> loss_fn: should be a section with keys below it, not 3
checkpointing=3 -> checkpointing: should be a section with keys below it, not 3
policy.precision=fp32 -> should be 'float32' or 'bfloat16', not 'fp32'
grpo.reward_shaping=1 -> should be a section with keys below it, not 1
equipoise.run_name=../up -> should match pattern
"""
#: Found together by the task's own classes.
OF_THE_TASK = """
env.fairness.rewrad=distance -> did you mean env.fairness.reward?
env.math.num_workers=8 -> this task's environment is env.fairness
equipoise.local_model.step=4 -> did you mean equipoise.local_model.steps?
env.fairness.reward=fair -> should be 'distribution', 'distance' or 'group_mean'
equipoise.data.num_samples=6 -> cuts a counterfactual set of 4: take 4 or 8
"""
#: Found one by one.
ALONE = """
policy.optimizer.kwargs.lr=.nan -> should be
policy.scheduler.0.name=x -> policy.scheduler: should be a list
equipoise.environment=environments.fairness.Fair -> Fair of environments.fairness does not exist
equipoise.environment=environments.fair.Fair -> cannot import environments.fair
equipoise.environment=environments.base.Score -> Score of environments.base does not extend
equipoise.data.module=data_prep.fairness -> fairness of data_prep does not extend
equipoise.task=dharma -> this recipe trains fairness, not dharma
"""


class TestProblems:
    @pytest.mark.parametrize(
        "table", [rows(OF_THE_SCHEMA), rows(OF_THE_TASK), *([row] for row in rows(ALONE))]
    )
    def test_an_unknown_key_names_the_nearest_and_a_wrong_value_is_shown(self, table, problems):
        lines = problems(*(word for word, _ in table))
        for word, said in table:
            assert [line for line in lines if said in line], (word, lines)
        assert len(lines) == len(table)
        assert all(line.startswith("command line: ") for line in lines)

    def test_all_of_the_schema_is_reported_at_once_with_its_file_or_flag(self, problems, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text("grpo: {sed: 1}\nloss_fn: {ratio_clip_min: low}")
        found = problems(*("--config", str(LOCAL), "--config", str(mine), "--batch-size", "0"))
        assert sorted(line.partition(" [")[0] for line in found) == sorted(
            [
                f"{mine}: grpo.sed: unknown key, did you mean grpo.seed?",
                f"{mine}: loss_fn.ratio_clip_min: should be a valid number, not 'low'",
                "--batch-size: grpo.num_prompts_per_step: should be greater than 0, not 0",
                "--batch-size: policy.train_global_batch_size: should be greater than 0, not 0",
            ]
        )

    def test_so_is_all_of_a_valid_schema(self, problems):
        words = ("grpo.num_prompts_per_step=6", "policy.train_micro_batch_size=7")
        found = problems(*words, "data.shuffle=true")
        assert [line.split(": ")[1] for line in found] == [
            *("grpo.num_prompts_per_step", "policy.train_micro_batch_size", "data.shuffle")
        ]

    def test_a_missing_file_names_the_shipped_one(self, load, tmp_path):
        with refusal("config.no-file", "nemo_configs/large.yaml"):
            load("--config", str(tmp_path / "large.yml"))
        with refusal("config.unreadable-file", "mine.yaml"):
            load("--config", str(tmp_path / "mine.yaml"))

    def test_no_task_of_that_name_ends_with_code_2(self):
        with refusal("config.unreadable-file", "tasks/flying.yaml") as caught:
            load_config("flying", Options((LOCAL,)))
        assert caught.value.exit_code == 2


def test_the_configuration_is_read_without_torch():
    program = (
        "import sys; from equipoise.config import load_config; "
        "from equipoise.config.words import parse_flags; "
        "load_config('fairness', parse_flags('', [])); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'trl', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


AT_SMALL, AT_MEDIUM = (("--config", str(CONFIG_FOLDER / f"{s}.yaml")) for s in ("small", "medium"))


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (AT_SMALL, "nemo_rl"),
        ((*AT_SMALL, "--engine", "local"), "local"),
        ((*AT_SMALL, "--device", "cpu"), "local"),
        ((), "local"),
    ],
)
def test_auto_with_nemo_rl_and_a_gpu(words, engine, load, monkeypatch, tmp_path):
    write_checkout(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("equipoise.config.load.count_gpus", lambda: 1)
    assert load(*words).engine == engine


def test_auto_without_nemo_rl_is_what_the_scale_needs_and_is_decided_once(load, monkeypatch):
    """NeMo-RL's torch may see other GPUs than ours."""
    assert (load(*AT_SMALL).engine, load(*AT_MEDIUM).engine) == ("local", "nemo_rl")
    monkeypatch.setenv("EQUIPOISE_LAUNCHED", "1")
    assert load(*AT_SMALL).engine == "nemo_rl"


def unread(loaded):
    """The keys that what trains is said not to read."""
    lines = [line.partition(" does not read ") for line in loaded.warnings]
    return [key for _, found, keys in lines if found for key in keys.split(", ")]


@pytest.mark.parametrize(
    "words",
    """
large policy.optimizer.name=torch.optim.SGD
large policy.dtensor_cfg.tensor_parallel_size=2
large policy.dtensor_cfg.lora_cfg.match_all_linear=false
medium policy.megatron_cfg.optimizer.min_lr=0.0
medium policy.reward_model_cfg.enabled=true
medium policy.generation.sglang_cfg.tp_size=2
medium grpo.val_at_end=false
medium equipoise.device=cpu
medium data.use_multiple_dataloader=true
medium data.train.dataset_name=squad
medium data.validation=[{"dataset_name":squad}]
""".strip().splitlines(),
)
def test_a_key_that_nemo_rl_does_not_read_is_named(words, load):
    words = words.split()
    assert unread(load(*on_nemo_rl(*words))) == [words[-1].partition("=")[0]]


@pytest.mark.parametrize("scale", ["large", "medium"])
def test_what_is_followed_or_read_by_both_is_not(scale, load):
    words = ("--learning-rate=1e-5", "--lora-rank=8", "policy.optimizer.kwargs.weight_decay=0.1")
    more = ("policy.dtensor_cfg.lora_cfg.dropout=0.1", "policy.generation.vllm_cfg.enforce_eager=1")
    data = ("data.num_workers=2", "data.max_input_seq_length=512", "grpo.seed=3")
    assert unread(load(*on_nemo_rl(scale, *words, *more, *data))) == []


@pytest.mark.parametrize(
    ("word", "said"),
    rows("""
checkpointing.save_optimizer=false -> a resumed run has a new optimizer
policy.generation.vllm_cfg.gpu_memory_utilization=0.95 -> that training shares
"""),
)
def test_what_ends_equal_resume_or_fills_a_shared_gpu_is_warned_of(word, said, load):
    assert [said in line for line in load(*on_nemo_rl("medium", word)).warnings] == [True]


def test_of_the_local_engine_it_lists_what_the_user_has_set(load, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "policy: {logprob_batch_size: 4, generation: {vllm_cfg: {enforce_eager: true}}}\n"
        "loss_fn: {reference_policy_kl_type: k1, ratio_clip_min: 0.1}\n"
    )
    files = ("--config", str(CONFIG_FOLDER / "local.yaml"), "--config", str(mine))
    words = ("policy.megatron_cfg.enabled=false", "grpo.val_at_end=true", "logger.wandb.name=x")
    assert unread(load(*files, "--learning-rate", "1e-4", *words)) == [
        "policy.logprob_batch_size",
        "policy.generation.vllm_cfg.enforce_eager",
        "loss_fn.reference_policy_kl_type",
        "policy.megatron_cfg.enabled",
        "grpo.val_at_end",
    ]


def test_the_local_engine_honours_every_named_flag_and_what_base_yaml_sets(load):
    loaded = load(
        *("--run-name", "x", "--seed", "1", "--num-samples", "64", "--iterations", "2"),
        *("--batch-size", "4", "--learning-rate", "1e-4", "--lora-rank", "4"),
        *("--device", "cpu", "--wandb-project", "p", "--wandb-entity", "e"),
    )
    assert "data.shuffle" in loaded.origins
    assert unread(loaded) == []
