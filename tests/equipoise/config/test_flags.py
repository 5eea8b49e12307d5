"""Each named flag sets its keys, and wrong words end the program."""

from pathlib import Path

import pytest
import yaml

from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import MODEL_SIZES, parse_flags
from equipoise.files.errors import UsageError
from tests.equipoise.config.conftest import rows

LORA = "policy.dtensor_cfg.lora_cfg"


SET = f"""
--model-name a/b -> policy.model_name: a/b
--model-size base -> policy.model_name: Qwen/Qwen2.5-1.5B-Instruct
--num-samples 64 -> equipoise.data.num_samples: 64
--iterations 3 -> grpo.max_num_steps: 3
--output-dir out -> equipoise.output_dir: out
--run-name night -> equipoise.run_name: night
--lora-rank 8 -> {LORA}.enabled: true, {LORA}.dim: 8, {LORA}.alpha: 16
--learning-rate 1e-4 -> policy.optimizer.kwargs.lr: 1.0e-4
--device cpu -> equipoise.device: cpu
--engine local -> equipoise.engine: local
--use-nemo -> equipoise.engine: nemo_rl
--use-nemo --engine nemo_rl -> equipoise.engine: nemo_rl
--wandb-entity us -> logger.wandb.entity: us, logger.wandb_enabled: true
--wandb-project it -> logger.wandb.project: it, logger.wandb_enabled: true
--no-wandb -> logger.wandb_enabled: false
--seed 0 -> grpo.seed: 0
--rehearse -> equipoise.engine: nemo_rl
"""


@pytest.mark.parametrize(("words", "expected"), rows(SET))
def test_flags_set_keys(words, expected):
    settings = parse_flags("", words.split()).settings
    assert {s.key: s.value for s in settings} == yaml.safe_load(f"{{{expected}}}")
    assert {setting.flag for setting in settings} <= set(words.split())


def test_the_batch_size_sets_the_update_as_well_and_wins_over_a_files_numbers(load, tmp_path):
    config = load("--batch-size", "8", "grpo.num_generations_per_prompt=6").config
    assert config.grpo.num_prompts_per_step == 8
    assert config.policy.train_global_batch_size == 48
    (tmp_path / "mine.yaml").write_text(
        "grpo: {num_prompts_per_step: 4}\npolicy: {train_global_batch_size: 32}"
    )
    config = load("--config", str(tmp_path / "mine.yaml"), "--batch-size", "8").config
    assert config.policy.train_global_batch_size == 64


@pytest.mark.parametrize(
    ("words", "scale"),
    [("--model-size small", "small"), ("--model-size large", "large"), ("--model-name a", "small")],
)
def test_a_named_model_brings_the_scale_that_suits_it(words, scale):
    assert parse_flags("", words.split()).config_files == (CONFIG_FOLDER / f"{scale}.yaml",)


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_every_model_size_is_a_valid_configuration(size, load):
    policy = load("--model-size", size).config.policy
    assert policy.model_name == policy.tokenizer.name == MODEL_SIZES[size][0]


def test_resume_takes_the_runs_configuration():
    options = parse_flags("", ["--resume", "results/fairness/local"])
    assert options.config_files == (Path("results/fairness/local/config.yaml"),)
    assert options.resume == Path("results/fairness/local")


REFUSED = """
--use-nemo --engine local -> --use-nemo contradicts --engine local
--no-wandb --wandb-entity us -> --no-wandb contradicts
--rehearse --dry-run -> take one of them
--ask -> a run asks anyway
--planner-only --dry-run -> give it alone
--rehearse --engine local -> contradicts --engine local
--resume r --config c.yaml -> contradicts --config
--model-size small --model-name a/b -> not allowed together
--model-size huge -> invalid choice 'huge' for argument '--model-size'
--iterations many -> invalid int value: 'many'
--iteration 3 -> did you mean --iterations?
--iteratons=3 -> did you mean --iterations?
--push_to_hub -> `hf upload REPOSITORY
--device tpu -> Expected one of ('cpu', 'cuda')
"""


@pytest.mark.parametrize(("words", "said"), rows(REFUSED))
def test_wrong_flags_are_wrong_usage(words, said):
    with pytest.raises(UsageError) as caught:
        parse_flags("", words.split())
    assert caught.value.exit_code == 2
    assert said in caught.value.message


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as left:
        parse_flags("", ["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("equipoise ")
