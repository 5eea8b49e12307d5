"""What a recipe gets: everything that is wrong at once, or a configuration that can run."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.fairness import LocalModelSettings, PromptSettings
from data_prep.splits import Fractions
from environments.fairness import FairnessEnvironment, FairnessSettings
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.nemo_rl.keys import whole_schema
from equipoise.config.validate import known_keys
from equipoise.errors import UsageError
from tests.refusals import holds, refusal

LOCAL = CONFIG_FOLDER / "local.yaml"


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
        assert loaded.data_module.name == "data_prep.fairness"

    def test_a_yaml_of_three_keys_is_enough(self, load, tmp_path):
        mine = tmp_path / "mine and yours.yaml"
        mine.write_text("grpo: {max_num_steps: 7}\npolicy: {model_name: my/model}\nenv: {}")
        loaded = load("--config", str(mine))
        assert loaded.config.grpo.max_num_steps == 7
        assert loaded.config.policy.tokenizer.name == "my/model"
        assert loaded.config.equipoise.run_name is None

    def test_later_files_win(self, load, tmp_path):
        (tmp_path / "mine.yaml").write_text("grpo: {max_num_steps: 7}")
        loaded = load("--config", str(LOCAL), "--config", str(tmp_path / "mine.yaml"))
        assert loaded.config.grpo.max_num_steps == 7
        assert loaded.config.policy.model_name == "local"

    def test_a_file_of_ones_own_wins_over_task_and_scale_wherever_it_is_named(self, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text("grpo: {num_generations_per_prompt: 4, max_num_steps: 7}")
        scale = CONFIG_FOLDER / "large.yaml"
        for files in ((scale, mine), (mine, scale)):
            grpo = load_config("rag", Options(files)).config.grpo
            assert (grpo.num_generations_per_prompt, grpo.max_num_steps) == (4, 7)

    def test_a_task_wins_over_the_scale_and_the_task_at_that_scale_over_both(self):
        scale = CONFIG_FOLDER / "large.yaml"
        loaded = load_config("rag", Options((scale,)))
        labels = {key: origin.label for key, origin in loaded.origins.items()}
        assert labels["cluster.num_nodes"] == "nemo_configs/large.yaml"
        assert labels["grpo.max_num_steps"] == "nemo_configs/tasks/rag.yaml"
        assert labels["policy.scheduler"] == "nemo_configs/tasks/rag.large.yaml"

    def test_what_was_changed_in_a_copy_of_a_scale_and_gives_way_to_the_task_is_said(
        self, tmp_path
    ):
        text = (CONFIG_FOLDER / "small.yaml").read_text()
        changed = {
            "num_generations_per_prompt: 8": "num_generations_per_prompt: 4",
            "2.0e-5": "0.1",
        }
        for old, new in changed.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "mine.yaml").write_text(text)
        loaded = load_config("rag", Options((tmp_path / "mine.yaml",)))
        assert loaded.config.grpo.num_generations_per_prompt == 8
        said = "\n".join(loaded.warnings)
        assert "grpo.num_generations_per_prompt of " in said
        assert "policy.optimizer.kwargs.lr of " in said
        assert len(loaded.warnings) == 2
        assert load_config("rag", Options((CONFIG_FOLDER / "small.yaml",))).warnings == ()

    def test_a_scale_that_there_is_not(self, problems, tmp_path):
        (tmp_path / "mine.yaml").write_text("scale: tiny")
        (line,) = problems("--config", str(tmp_path / "mine.yaml"))
        assert "scale: there is no scale tiny; there are large, local, medium, small" in line

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

    def test_no_warning_for_bfloat16_which_the_local_engine_does_not_take_on_a_cpu(self, load):
        assert load("policy.precision=bfloat16", "--device", "cpu").warnings == ()


class TestProblems:
    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("grpo.num_promts_per_step=8", "did you mean grpo.num_prompts_per_step?"),
            ("gropo.seed=1", "did you mean grpo?"),
            ("policy.lr=1e-4", "did you mean policy.optimizer.kwargs.lr?"),
            ("policy.dtensor_cfg.lora_cfg.rank=8", "unknown key"),
            ("policy.dtensor_cfg.v2=true", "did you mean policy.dtensor_cfg._v2?"),
            ("policy.generation.vllm_cfg.asynch_engine=true", "vllm_cfg.async_engine?"),
            ("policy.scheduler=[{nam: a.b}]", "did you mean policy.scheduler.0.name?"),
            ("env.fairness.rewrad=distance", "did you mean env.fairness.reward?"),
            ("env.math.num_workers=8", "this task's environment is env.fairness"),
            ("equipoise.data.num_smples=4", "did you mean equipoise.data.num_samples?"),
            ("equipoise.local_model.step=4", "did you mean equipoise.local_model.steps?"),
            ("cluster.xyz=1", "there are gpus_per_node, num_nodes, "),
            ("policy.megatron_cfg.mtp_num_layer=1", "policy.megatron_cfg.mtp_num_layers?"),
            ("grpo.reward_scaling.enable=true", "did you mean grpo.reward_scaling.enabled?"),
            ("scale=small", "unknown key"),
            ("defaults=base.yaml", "unknown key"),
        ],
    )
    def test_an_unknown_key_names_the_nearest(self, word, said, problems):
        (line,) = problems(word)
        assert line.startswith("command line: ")
        assert said in line

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("grpo.seed=abc", "grpo.seed: should be a valid integer, not 'abc'"),
            ("grpo.seed='8'", "grpo.seed: should be a valid integer, not '8'"),
            ("grpo.seed=1.5", "should be a valid integer, not 1.5"),
            ("grpo.seed=-1", "should be greater than or equal to 0, not -1"),
            ("grpo.max_num_steps=true", "should be a valid integer, not True"),
            ("grpo.normalize_rewards=1", "should be a valid boolean, not 1"),
            ("grpo=3", "grpo: should be a section with keys below it, not 3"),
            ("policy.optimizer.kwargs=3", "should be a section with keys below it, not 3"),
            ("policy.optimizer.kwargs.lr=0", "should be greater than 0, not 0"),
            ("policy.optimizer.kwargs.lr=.nan", "should be"),
            ("policy.optimizer.kwargs.betas=[0.9]", "should have at least 2 items"),
            ("policy.generation.top_p=1.5", "should be less than or equal to 1, not 1.5"),
            ("policy.precision=fp32", "should be 'float32', 'bfloat16' or 'float16', not 'fp32'"),
            ("policy.scheduler.0.name=x", "policy.scheduler: should be a list"),
            ("policy.dtensor_cfg.lora_cfg.dim=0", "should be greater than 0, not 0"),
            ("policy.dtensor_cfg.lora_cfg.alpha=-8", "should be greater than 0, not -8"),
            ("grpo.reward_scaling=1", "should be a section with keys below it, not 1"),
            ("equipoise.run_name=../up", "should match pattern"),
            ("equipoise.engine=trl", "should be 'auto', 'local' or 'nemo_rl', not 'trl'"),
            ("env.fairness.reward=fair", "should be 'distribution', 'distance' or 'group_mean'"),
            ("equipoise.data.num_samples=6", "cuts a counterfactual set of 4: take 4 or 8"),
            ("equipoise.environment=environments.fairness.Fair", "has no Fair"),
            ("equipoise.environment=environments.fair.Fair", "cannot import environments.fair"),
            (
                "equipoise.environment=environments.base.Score",
                "Score does not extend environments.contract.Environment",
            ),
            ("equipoise.data.module=data_prep.splits", "has no PromptSettings, build_prompts"),
            ("equipoise.task=dharma", "this recipe trains fairness, not dharma"),
        ],
    )
    def test_a_wrong_value_is_shown(self, word, said, problems):
        (line,) = problems(word)
        assert line.startswith("command line: ")
        assert said in line

    def test_everything_is_reported_at_once_with_its_file_or_flag(self, problems, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text("grpo: {sed: 1}\ndata: {shuffle: true}\nloss_fn: {ratio_clip_min: low}")
        found = problems(
            *("--config", str(LOCAL), "--config", str(mine), "--batch-size", "0"),
            *("grpo.val_period=${nope}", "no assignment", "env.fairness.rewards=1"),
        )
        assert sorted(line.split(": ")[0] for line in found) == sorted(
            [str(mine)] * 3 + ["--batch-size"] + ["command line"] * 3
        )
        said = "\n".join(found)
        assert f"{mine}: grpo.sed: unknown key, did you mean grpo.seed?" in said
        assert f"{mine}: loss_fn.ratio_clip_min: should be a valid number, not 'low'" in said
        assert f"{mine}: data.shuffle: shuffling" in said
        assert "--batch-size: grpo.num_prompts_per_step: should be greater than 0" in said
        assert "command line: grpo.val_period: Interpolation key 'nope' not found" in said
        assert "command line: 'no assignment' is no key=value" in said
        assert "did you mean env.fairness.reward?" in said

    def test_the_consequences_of_a_wrong_value_are_not_reported(self, problems):
        (line,) = problems("grpo.num_prompts_per_step=many")
        assert line.startswith("command line: grpo.num_prompts_per_step: ")
        assert holds(line, "config.invalid-value | 'many'")
        (line,) = problems("grpo=5")
        assert line.startswith("command line: grpo: should be a section")
        (line,) = problems("grpo.seed=abc", "equipoise.evaluation.seed=${grpo.seed}")
        assert holds(line, "config.invalid-value | grpo.seed | 'abc'")
        (line,) = problems("grpo.seed=${nope}", "equipoise.evaluation.seed=${grpo.seed}")
        assert holds(line, "config.unresolvable-value | grpo.seed | 'nope'")

    def test_interpolations_of_each_other_are_reported(self, problems):
        found = problems(
            "grpo.val_period=${grpo.max_num_epochs}", "grpo.max_num_epochs=${grpo.val_period}"
        )
        keys = [line.split(": ")[1] for line in found]
        assert keys == ["grpo.max_num_epochs", "grpo.val_period"]

    def test_a_wrong_value_does_not_hide_a_problem_beside_it(self, problems):
        found = problems("grpo.num_prompts_per_step=6", "policy.train_micro_batch_size=7")
        assert len(found) == 2

    def test_a_missing_file_names_the_shipped_one(self, problems, tmp_path):
        (line,) = problems("--config", str(tmp_path / "large.yml"))
        assert holds(line, "config.no-file | nemo_configs/large.yaml")
        (line,) = problems("--config", str(tmp_path / "mine.yaml"))
        assert holds(line, "config.unreadable-file | mine.yaml")

    def test_the_error_ends_with_code_2_and_says_that_nothing_was_started(self, load):
        with refusal("config.problems") as caught:
            load("grpo.seed=abc")
        assert caught.value.exit_code == 2

    def test_no_task_of_that_name(self):
        with refusal("config.problems", "tasks/flying.yaml: there is no such file"):
            load_config("flying", Options((LOCAL,)))


class TestResume:
    def test_takes_the_configuration_of_the_run(self, load, tmp_path):
        run = tmp_path / "night"
        run.mkdir()
        first = load("--run-name", "night", "--iterations", "5", "policy.max_grad_norm=2")
        (run / "config.yaml").write_text(first.to_yaml())
        again = load("--resume", str(run), "--iterations", "9")
        assert again.config.equipoise.run_name == "night"
        assert again.config.policy.max_grad_norm == 2
        assert again.config.grpo.max_num_steps == 9

    def test_a_folder_that_is_no_run(self, load, tmp_path):
        with refusal("resume.no-config"):
            load("--resume", str(tmp_path))


def unread(loaded):
    """The keys that what trains is said not to read."""
    lines = [line.partition(" does not read ") for line in loaded.warnings]
    return [key for _, found, keys in lines if found for key in keys.split(", ")]


class TestIgnoredByLocal:
    def test_lists_what_the_user_has_set(self, load, tmp_path):
        mine = tmp_path / "mine.yaml"
        mine.write_text(
            "policy: {logprob_batch_size: 4, generation: {vllm_cfg: {enforce_eager: true}}}\n"
            "loss_fn: {reference_policy_kl_type: k1, ratio_clip_min: 0.1}\n"
        )
        loaded = load(
            *("--config", str(LOCAL), "--config", str(mine), "--learning-rate", "1e-4"),
            *("policy.megatron_cfg.enabled=false", "grpo.val_at_end=true", "logger.wandb.name=x"),
        )
        assert unread(loaded) == [
            "policy.logprob_batch_size",
            "policy.generation.vllm_cfg.enforce_eager",
            "loss_fn.reference_policy_kl_type",
            "policy.megatron_cfg.enabled",
            "grpo.val_at_end",
        ]
        assert loaded.origins["policy.logprob_batch_size"].label == str(mine)

    def test_nothing_that_base_yaml_sets(self, load):
        assert "data.shuffle" in load().origins
        assert unread(load()) == []

    def test_every_named_flag_is_honoured(self, load):
        loaded = load(
            *("--run-name", "x", "--seed", "1", "--num-samples", "64", "--iterations", "2"),
            *("--batch-size", "4", "--learning-rate", "1e-4", "--lora-rank", "4"),
            *("--device", "cpu", "--wandb-project", "p", "--wandb-entity", "e"),
        )
        assert unread(loaded) == []


def test_the_configuration_is_read_without_torch():
    program = (
        "import sys; from equipoise.config import load_config; "
        "from equipoise.config.training_words import parse_flags; "
        "load_config('fairness', parse_flags('', [])); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'trl', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


KNOWN = sorted(known_keys(whole_schema()))
NAMES = sorted({name for key in KNOWN for name in key.split(".")})
HOSTILE = st.sampled_from(
    [
        *("${", "${a}", "${.}", "${grpo}", "${policy}", "${mul:${grpo.seed},x}", "???"),
        *("[", "{", "{}", "[]", "[[1]]", "[{}]", "{a: 1}", "a: b", "'", "&a [1]", "*a"),
        *("null", "true", ".nan", ".inf", "-1", "0", "1e400", "9" * 400, "0x" + "f" * 99),
        *("!!binary aGk=", "2020-01-01", "\0", "\ud800"),
    ]
)
KEYS = st.one_of(
    st.sampled_from(KNOWN),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=5).map(".".join),
    st.text(max_size=8),
)
VALUES = st.one_of(HOSTILE, st.text(max_size=12), st.integers().map(str), st.floats().map(str))


@given(st.lists(st.builds("{}={}".format, KEYS, VALUES) | st.text(max_size=8), max_size=4))
def test_no_word_of_the_command_line_raises_anything_but_a_usage_error(words):
    try:
        load_config("fairness", Options((LOCAL,), assignments=tuple(words)))
    except UsageError as error:
        assert len(str(error).splitlines()) >= 3


def test_the_numbers_of_a_small_first_try_are_rounded_and_said(load):
    loaded = load("--num-samples=50", "--batch-size=2")
    assert loaded.config.equipoise.data.num_samples == 52
    assert loaded.config.grpo.num_prompts_per_step == 4
    assert loaded.config.policy.train_global_batch_size == 4 * 16
    assert sum("counterfactual sets of 4" in warning for warning in loaded.warnings) == 2
