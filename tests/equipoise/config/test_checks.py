"""Impossible combinations: each is refused with its reason, and its neighbour is not."""

import pytest

from equipoise.config.checks import Case, check_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.task_code import load_task
from tests.refusals import holds

#: What the combinations below are changes of; the shipped scales may change their minds.
PLAIN = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 8, max_num_steps: 60,
       val_period: 10, val_batch_size: 64, max_val_samples: 128}
policy:
  model_name: local
  precision: float32
  train_micro_batch_size: ${policy.train_global_batch_size}
  max_total_sequence_length: 256
  scheduler: null
  generation: {max_new_tokens: 48}
  dtensor_cfg: {lora_cfg: {enabled: false}}
checkpointing: {save_period: 10, metric_name: val:accuracy}
"""
LARGE = str(CONFIG_FOLDER / "large.yaml")
SCHEDULER = "torch.optim.lr_scheduler"
ONE = f"{{name: {SCHEDULER}.LinearLR, kwargs: {{total_iters: 5}}}}"
TWO = f"{{name: {SCHEDULER}.ConstantLR, kwargs: {{factor: 1.0}}}}"
LORA = "policy.dtensor_cfg.lora_cfg"


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "plain.yaml").write_text(PLAIN)
    return ("--config", str(tmp_path / "plain.yaml"))


@pytest.mark.parametrize(
    ("words", "key", "reason"),
    [
        (
            ["grpo.num_prompts_per_step=30", "policy.train_global_batch_size=240"],
            "grpo.num_prompts_per_step",
            "sets.cut-set | 30 prompts | such as 32",
        ),
        (["grpo.val_batch_size=66"], "grpo.val_batch_size", "sets.cut-set | such as 64"),
        (
            ["grpo.num_generations_per_prompt=1"],
            "grpo.num_generations_per_prompt",
            "grpo.single-generation | 2",
        ),
        (
            ["equipoise.evaluation.generations=1"],
            "equipoise.evaluation.generations",
            "evaluation.too-few-generations | 2",
        ),
        (
            ["policy.train_global_batch_size=128", "policy.train_micro_batch_size=128"],
            "policy.train_global_batch_size",
            "batch.several-updates | 32 x 8 = 256 | 128",
        ),
        (
            ["--engine", "nemo_rl", "policy.train_global_batch_size=96"],
            "policy.train_global_batch_size",
            "batch.uneven-updates | 96",
        ),
        (
            ["policy.train_micro_batch_size=48"],
            "policy.train_micro_batch_size",
            "batch.uneven-micro-batches | 48 | 256",
        ),
        (["policy.generation.backend=trtllm"], "policy.generation.backend", "sets.single-rollouts"),
        (
            ["policy.generation.use_async_rollouts=true"],
            "policy.generation.use_async_rollouts",
            "sets.single-rollouts",
        ),
        (["data.shuffle=true"], "data.shuffle", "sets.shuffled-prompts"),
        (["grpo.use_dynamic_sampling=true"], "grpo.use_dynamic_sampling", "sets.dynamic-sampling"),
        (
            ["policy.generation.max_new_tokens=256"],
            "policy.generation.max_new_tokens",
            "lengths.no-prompt-room",
        ),
        (
            ["grpo.max_val_samples=32"],
            "grpo.max_val_samples",
            "validation.too-few-samples | 64",
        ),
        (["grpo.max_num_steps=0"], "grpo.max_num_steps", "training.no-steps"),
        (
            ["--engine", "nemo_rl", "grpo.max_num_steps=0", "equipoise.first_stage.passes=1"],
            "grpo.max_num_steps",
            "training.no-steps",
        ),
        (
            ["checkpointing.metric_name=accuracy"],
            "checkpointing.metric_name",
            "checkpointing.unprefixed-metric",
        ),
        (
            ["checkpointing.metric_name='val:'"],
            "checkpointing.metric_name",
            "checkpointing.unprefixed-metric",
        ),
        (
            ["checkpointing.save_period=15"],
            "checkpointing.save_period",
            "checkpointing.rare-metric | 10",
        ),
        (["grpo.val_period=0"], "grpo.val_period", "checkpointing.rare-metric"),
        (
            [f"{LORA}.enabled=true", f"{LORA}.exclude_modules=[]"],
            f"{LORA}.exclude_modules",
            "lora-keys.ambiguous-layers | target_modules, exclude_modules, match_all_linear | 0",
        ),
        (
            [f"{LORA}.enabled=true", f"{LORA}.target_modules=[q_proj]"],
            f"{LORA}.target_modules",
            "lora-keys.ambiguous-layers | 2",
        ),
        (
            [f"{LORA}.enabled=true", f"{LORA}.exclude_modules=[]", f"{LORA}.match_all_linear=true"],
            f"{LORA}.exclude_modules",
            "lora-keys.untrained-output",
        ),
        (
            [
                f"{LORA}.enabled=true",
                f"{LORA}.exclude_modules=[]",
                f"{LORA}.target_modules=[lm_head]",
            ],
            f"{LORA}.target_modules",
            "lora-keys.untrained-output",
        ),
        ([f"{LORA}.dim=0"], f"{LORA}.dim", "config.invalid-value | 0 | 0"),
        (
            ["cluster.gpus_per_node=8", "--engine", "local"],
            "cluster.gpus_per_node",
            "local.several-gpus | 8 GPUs",
        ),
        (
            ["--config", LARGE, "--engine", "local"],
            "cluster.gpus_per_node",
            "local.several-gpus | 4 nodes of 8 GPUs",
        ),
        (["policy.precision=float16"], "policy.precision", "local.float16"),
        (["equipoise.load_in_4bit=true"], "equipoise.load_in_4bit", "local.trained-4-bits"),
        (
            ["--use-nemo", "--lora-rank=4", "equipoise.load_in_4bit=true"],
            "equipoise.load_in_4bit",
            "nemo-rl.4-bit-policy",
        ),
        (["--use-nemo", "--device", "cpu"], "equipoise.engine", "nemo-rl.on-cpu"),
        (["policy.optimizer.name=bnb.AdamW"], "policy.optimizer.name", "optimizer.foreign-class"),
        (
            ["policy.optimizer.kwargs.lrr=1"],
            "policy.optimizer.kwargs.lrr",
            "optimizer.unknown-argument",
        ),
        (
            [f"policy.scheduler=[{ONE},{TWO}]"],
            "policy.scheduler",
            "scheduler.invalid-chain | 1 milestones",
        ),
        (
            [f"policy.scheduler=[{ONE},{{milestones: [3]}}]"],
            "policy.scheduler",
            "scheduler.invalid-chain | 1",
        ),
        (
            [f"policy.scheduler=[{ONE},{TWO},{ONE},{{milestones: [9, 3]}}]"],
            "policy.scheduler",
            "scheduler.invalid-chain | must increase",
        ),
        (
            ["policy.scheduler=[{kwargs: {a: 1}}]"],
            "policy.scheduler",
            "scheduler.invalid-chain | each entry",
        ),
        (
            ["policy.scheduler=[{name: my.LR}]"],
            "policy.scheduler",
            "scheduler.invalid-chain | alone",
        ),
    ],
)
def test_is_refused(words, key, reason, problems, plain):
    (line,) = problems(*plain, *words)
    label, found, said = line.split(": ", 2)
    assert found == key
    assert holds(said, reason)
    assert label in ("command line", "nemo_configs/large.yaml", *words)


@pytest.mark.parametrize(
    "words",
    [
        ["grpo.val_batch_size=null"],
        ["grpo.max_val_samples=null"],
        ["grpo.async_grpo=null"],
        ["grpo.async_grpo.enabled=false"],
        ["policy.generation.vllm_cfg.async_engine=true"],
        ["--engine", "nemo_rl", "policy.generation.vllm_cfg.async_engine=true"],
        ["--engine", "nemo_rl", "policy.train_global_batch_size=128"],
        ["checkpointing.metric_name=null", "grpo.val_period=0"],
        ["grpo.max_num_steps=0", "equipoise.first_stage.passes=1"],
        ["checkpointing.metric_name=train:reward", "checkpointing.save_period=7"],
        ["checkpointing.metric_name=val:env/disparity_ratio", "checkpointing.save_period=20"],
        [f"{LORA}.enabled=true", f"{LORA}.exclude_modules=[]", f"{LORA}.target_modules=[q]"],
        ["policy.optimizer.name=torch.optim.SGD", "policy.optimizer.kwargs.momentum=0.9"],
        ["policy.optimizer.kwargs.fused=true"],
        [f"policy.scheduler=[{ONE}]"],
        ["policy.scheduler=[]"],
        [f"policy.scheduler=[{ONE},{TWO},{{milestones: [5]}}]"],
        ["policy.max_grad_norm=null"],
        ["--num-samples", "64", "--batch-size", "4", "--lora-rank", "8"],
        ["--device", "cuda", "policy.precision=bfloat16"],
    ],
)
def test_is_allowed(words, problems, plain):
    assert problems(*plain, *words) == []


def test_a_reward_that_compares_with_other_prompts_alone_takes_one_generation(problems, plain):
    one = "equipoise.evaluation.generations=1"
    assert problems(*plain, one, "env.fairness.reward=distance") == []


def test_a_failure_of_an_asynchronous_rollout_would_become_a_number(load, plain):
    generation = load(*plain).config.policy.generation
    other = generation.model_copy(update={"use_async_rollouts": True})
    config = changed(load(*plain).config, policy={"generation": other})
    (problem,) = check_config(Case(config, "nemo_rl", set_size=1))
    assert problem.keys == ("policy.generation.use_async_rollouts",)
    assert "it would become the reward 0" in problem.message
    (problem,) = check_config(Case(config, "nemo_rl", set_size=4))
    assert "counterfactual sets can only be scored whole" in problem.message


def changed(config, **sections):
    return config.model_copy(
        update={
            name: getattr(config, name).model_copy(update=values)
            for name, values in sections.items()
        }
    )


def test_without_sets_prompts_may_be_shuffled(load, plain):
    config = load(*plain).config
    free = config.model_copy(
        update={
            "data": config.data.model_copy(update={"shuffle": True}),
            "grpo": config.grpo.model_copy(
                update={"use_dynamic_sampling": True, "val_batch_size": 63}
            ),
        }
    )
    assert check_config(Case(free, "local", set_size=1)) == []
    keys = [problem.keys[0] for problem in check_config(Case(free, "local", set_size=4))]
    assert keys == ["grpo.val_batch_size", "data.shuffle", "grpo.use_dynamic_sampling"]


def test_an_environment_of_sets_must_say_their_size(load, tmp_path, monkeypatch):
    (tmp_path / "sets_without_size.py").write_text(
        "from environments.contract import Environment\n"
        "class Sets(Environment):\n    name, scope, score, measure = 'sets', 'set', None, None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = load().config
    ours = config.equipoise.model_copy(update={"environment": "sets_without_size.Sets"})
    code, problems = load_task(config.model_copy(update={"equipoise": ours}), "fairness")
    assert code.environment_class is None
    assert [problem.message for problem in problems] == ['Sets has the scope "set" and no set_size']
