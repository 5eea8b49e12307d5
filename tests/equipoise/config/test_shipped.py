"""Every YAML that is shipped: with every task it composes and validates."""

import pytest

from equipoise.config import LOCAL_MODEL, Options, ignored_by_local, load_config
from equipoise.config.flags import CONFIG_FOLDER

TASK_FILES = sorted((CONFIG_FOLDER / "tasks").glob("*.yaml"))
TASKS = [path.stem for path in TASK_FILES if "." not in path.stem]
SCALES = sorted(path for path in CONFIG_FOLDER.glob("*.yaml") if path.stem != "base")

#: What depends on the model's size, so that a scale, or the task at that scale, must set it.
SIZED = (
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    "grpo.max_num_steps",
    "policy.model_name",
    "policy.precision",
    "policy.train_micro_batch_size",
    "policy.max_total_sequence_length",
    "policy.optimizer.kwargs.lr",
    "policy.generation.max_new_tokens",
    "policy.dtensor_cfg.lora_cfg.enabled",
    "equipoise.data.num_samples",
)


def test_there_are_tasks_and_scales():
    assert "fairness" in TASKS
    assert {path.stem for path in SCALES} == {"local", "small", "medium", "large"}


def test_every_file_of_a_task_at_a_scale_is_read():
    read = {f"{task}.{scale.stem}" for task in TASKS for scale in SCALES}
    assert {path.stem for path in TASK_FILES if "." in path.stem} <= read


def test_a_scale_brings_what_the_task_sets_at_it_and_a_copy_of_it_does_not(tmp_path):
    scale = CONFIG_FOLDER / "small.yaml"
    (tmp_path / "small.yaml").write_text(scale.read_text())
    (tmp_path / "mine.yaml").write_text("equipoise: {data: {num_samples: 96}}")
    shipped, mine = (scale,), (scale, tmp_path / "mine.yaml")
    samples = {
        files: load_config("fairness", Options(files)).resolved["equipoise"]["data"]["num_samples"]
        for files in (shipped, (tmp_path / "small.yaml",), mine)
    }
    assert list(samples.values()) == [2304, None, 96]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", SCALES, ids=lambda path: path.stem)
class TestScale:
    def test_is_valid(self, scale, task):
        loaded = load_config(task, Options((scale,)))
        assert loaded.config.equipoise.task == task
        assert loaded.config.equipoise.run_name is None

    def test_sets_what_depends_on_the_model(self, scale, task):
        origins = load_config(task, Options((scale,))).origins
        files = {f"nemo_configs/{scale.name}", f"nemo_configs/tasks/{task}.{scale.name}"}
        for key in SIZED:
            assert origins[key].label in files, key

    def test_config_yaml_gives_the_same_configuration_again(self, scale, task, tmp_path):
        loaded = load_config(task, Options((scale,)))
        (tmp_path / "config.yaml").write_text(loaded.to_yaml())
        resumed = load_config(task, Options((tmp_path / "config.yaml",), resume=tmp_path))
        assert resumed.resolved == loaded.resolved
        # What `auto` has chosen is written down.
        assert resumed.config.equipoise.engine == loaded.engine
        assert ignored_by_local(resumed) == []

    def test_starts_with_its_hardware(self, scale, task):
        assert scale.read_text().startswith("# Hardware: ")


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_valid_without_a_scale(task, tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(task, Options((tmp_path / "empty.yaml",))).engine == "local"


@pytest.mark.parametrize(
    ("scale", "engine"),
    [("local", "local"), ("small", "local"), ("medium", "nemo_rl"), ("large", "nemo_rl")],
)
def test_the_engine_that_a_scale_needs_where_nemo_rl_is_not_installed(scale, engine):
    options = Options((CONFIG_FOLDER / f"{scale}.yaml",))
    assert load_config("fairness", options).engine == engine


def test_the_local_engine_honours_all_of_local_and_small():
    for scale in ("local", "small"):
        loaded = load_config("fairness", Options((CONFIG_FOLDER / f"{scale}.yaml",)))
        assert ignored_by_local(loaded) == []


def test_the_local_scale_needs_no_gpu_no_download_and_no_account():
    config = load_config("fairness", Options((CONFIG_FOLDER / "local.yaml",))).config
    assert config.policy.model_name == LOCAL_MODEL
    assert config.policy.precision == "float32"
    assert config.cluster.gpus_per_node * config.cluster.num_nodes == 1


def test_the_rewards_of_fairness_are_not_divided_by_their_spread():
    for scale in SCALES:
        assert not load_config("fairness", Options((scale,))).config.grpo.normalize_rewards
