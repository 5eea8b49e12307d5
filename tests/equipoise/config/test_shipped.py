"""Every YAML that is shipped: with every task it composes and validates."""

from functools import cache

import pytest
import yaml

from environments.base import REWARD
from equipoise.config import LOCAL_MODEL, Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags
from tests.equipoise.config.conftest import on_nemo_rl

TASK_FILES = sorted((CONFIG_FOLDER / "tasks").glob("*.yaml"))
TASKS = [path.stem for path in TASK_FILES if "." not in path.stem]
LOCAL, SMALL, SMOKE = (CONFIG_FOLDER / f"{name}.yaml" for name in ("local", "small", "smoke"))
SCALES = sorted(set(CONFIG_FOLDER.glob("*.yaml")) - {CONFIG_FOLDER / "base.yaml", SMOKE})
#: What depends on the model's size, so that a scale or the task must set it.
SIZED = (
    *("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "grpo.max_num_steps"),
    *("policy.model_name", "policy.precision", "policy.train_micro_batch_size"),
    *("policy.max_total_sequence_length", "policy.optimizer.kwargs.lr"),
    *("policy.generation.max_new_tokens", "policy.dtensor_cfg.lora_cfg.enabled"),
)
at_every_scale = pytest.mark.parametrize("scale", SCALES, ids=lambda path: path.stem)
of_every_task = pytest.mark.parametrize("task", TASKS)


def test_there_are_tasks_and_scales_and_every_file_of_a_task_at_one_is_read():
    assert "fairness" in TASKS
    assert {path.stem for path in SCALES} == {"local", "small", "medium", "large"}
    read = {f"{task}.{scale.stem}" for task in TASKS for scale in (*SCALES, SMOKE)}
    assert {path.stem for path in TASK_FILES if "." in path.stem} <= read


def leaves(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read(path):
    return yaml.safe_load(path.read_text()) or {}


@of_every_task
def test_no_file_of_a_task_repeats_a_default_of_its_environment(task):
    """A file states a default only where the preparation of the prompts refers to its key."""
    loaded = load_config(task, Options((SMALL,)))
    name = loaded.environment_class.name
    defaults = dict(leaves(loaded.environment_class.Settings().model_dump(mode="json")))
    referred_to = (CONFIG_FOLDER / "tasks" / f"{task}.yaml").read_text()
    for path in (CONFIG_FOLDER / "tasks").glob(f"{task}*.yaml"):
        for key, value in leaves(read(path).get("env", {}).get(name, {})):
            is_default = defaults.get(key, "no such key") == value
            assert not is_default or f"${{env.{name}.{key}}}" in referred_to, key


def test_no_two_files_say_the_same():
    trees = [read(path) for path in CONFIG_FOLDER.rglob("*.yaml")]
    assert all(trees)
    assert [(a, b) for n, a in enumerate(trees) for b in trees[:n] if a == b] == []


@of_every_task
@at_every_scale
def test_a_scale_is_valid_and_leaves_no_size_to_a_default(scale, task):
    loaded = load_config(task, Options((scale,)))
    ours = loaded.config.equipoise
    assert (ours.task, ours.run_name) == (task, None)
    for key in SIZED:
        assert loaded.origins[key].label != "nemo_configs/base.yaml", key
    assert scale.read_text().startswith("# Hardware: ")


@of_every_task
@pytest.mark.parametrize("scale", ["small", "medium", "large"])
def test_the_rate_rises_first(scale, task):
    policy = load_config(task, Options((CONFIG_FOLDER / f"{scale}.yaml",))).resolved["policy"]
    chain, megatron = policy["scheduler"], policy["megatron_cfg"]["scheduler"]
    assert chain[0]["kwargs"]["start_factor"] < 1 if chain else megatron["lr_warmup_iters"] > 0


@of_every_task
@at_every_scale
def test_config_yaml_means_the_same(scale, task, tmp_path):
    loaded = load_config(task, Options((scale,)))
    (tmp_path / "config.yaml").write_text(loaded.to_yaml())
    resumed = load_config(task, Options((tmp_path / "config.yaml",), resume=tmp_path))
    assert resumed.resolved == loaded.resolved
    # What `auto` has chosen is written down.
    assert resumed.config.equipoise.engine == loaded.engine
    assert resumed.warnings == loaded.warnings


@of_every_task
@at_every_scale
def test_the_smallest_run_lies_over_every_scale(task, scale):
    """With what decides of hardware and model as the scale has it."""
    small, whole = (load_config(task, Options(f)).config for f in ((SMOKE, scale), (scale,)))
    assert small.grpo.rollouts_per_step == 32
    assert small.grpo.max_num_steps == 2
    assert small.policy.model_name == whole.policy.model_name
    assert small.policy.train_micro_batch_size <= whole.policy.train_micro_batch_size
    assert small.cluster == whole.cluster


@of_every_task
def test_a_task_is_valid_without_a_scale_and_smoke_is_one_of_local(task, tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(task, Options((tmp_path / "empty.yaml",))).engine == "local"
    alone, over = (load_config(task, Options(files)) for files in ((SMOKE,), (LOCAL, SMOKE)))
    assert alone.resolved == over.resolved
    assert alone.engine == "local"


def test_the_local_engine_honours_all_of_local_and_small():
    for scale in (LOCAL, SMALL):
        loaded = load_config("fairness", Options((scale,)))
        assert not [line for line in loaded.warnings if "does not read" in line]


def test_the_local_scale_needs_no_gpu_no_download_and_no_account():
    config = load_config("fairness", Options((LOCAL,))).config
    assert (config.policy.model_name, config.policy.precision) == (LOCAL_MODEL, "float32")
    assert config.cluster.gpus == 1


def test_the_rewards_of_fairness_are_not_divided_by_their_spread():
    for scale in SCALES:
        assert not load_config("fairness", Options((scale,))).config.grpo.normalize_rewards


def objective_metric(loaded):
    """The name in `checkpointing.metric_name` of the task's objective on the validation split."""
    objective = loaded.environment_class.objective
    return "val:accuracy" if objective == REWARD else f"val:env/{objective}"


@of_every_task
@at_every_scale
def test_checkpoints_are_chosen_by_the_objective_or_by_nothing(scale, task):
    loaded = load_config(task, Options((scale,)))
    named = loaded.config.checkpointing.metric_name
    if not loaded.config.grpo.val_period:
        assert named is None
    else:
        assert named == objective_metric(loaded)
        higher = loaded.resolved["checkpointing"]["higher_is_better"]
        assert higher == (named in ("val:accuracy", "val:env/mean_objective"))


@of_every_task
def test_small_can_choose_by_the_objective_on_nemo_rl(task):
    named = objective_metric(load_config(task, Options((SMALL,))))
    words = on_nemo_rl("small", "grpo.val_period=10", f"checkpointing.metric_name={named}")
    assert load_config(task, parse_flags("x", words)).config.checkpointing.metric_name == named
    assert named in (CONFIG_FOLDER.parent / "docs" / "cluster.md").read_text("utf-8")


SEEDS = (101, 102)


@cache
def loaded(task, seed):
    words = ("--config=nemo_configs/local.yaml", f"--seed={seed}")
    return load_config(task, parse_flags("", words))


@cache
def prompts(task, seed):
    run = loaded(task, seed)
    return tuple(run.data_module.build_prompts(run.prompt_settings))


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_another_seed_has_other_prompts_and_one_of_the_same_has_the_same(task):
    for split in ("train", "test"):
        one, other = (
            {r.messages[-1]["content"] for r in prompts(task, seed) if r.split == split}
            for seed in SEEDS
        )
        assert one
        assert len(one - other) > len(one) / 4
        assert len(other - one) > len(other) / 4
    run = loaded(task, SEEDS[0])
    assert tuple(run.data_module.build_prompts(run.prompt_settings)) == prompts(task, SEEDS[0])


@pytest.mark.parametrize("task", TASKS)
def test_the_local_model_training_and_sampling_follow_the_seed(task):
    shown = []
    for seed in SEEDS:
        run = loaded(task, seed)
        assert run.config.grpo.seed == run.config.equipoise.evaluation.seed == seed
        assert run.local_model_settings.seed == run.resolved["equipoise"]["data"]["seed"] == seed
        few = run.local_model_settings.model_copy(update={"steps": 4})
        replies = run.data_module.imitated_replies(prompts(task, seed), few)
        shown.append({(str(record.messages), reply) for record, reply in replies})
    assert shown[0]
    assert len(shown[0] & shown[1]) < len(shown[0]) / 2, "the warm start imitates other replies"
