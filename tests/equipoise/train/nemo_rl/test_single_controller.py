"""The command that trains with NeMo-RL's Single Controller: what it refuses, writes and runs."""

import sys

import pytest
from omegaconf import OmegaConf

from data_prep.records import write_prompts
from environments.base import Rollout
from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl.assumptions import SINGLE_CONTROLLER
from equipoise.config.nemo_rl.installation import PATH_VARIABLE
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts
from equipoise.train.nemo_rl import single_controller
from tests.equipoise.train.nemo_rl.single_controller import records
from tests.nemo_rl_checkout import write_checkout


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of fairness at medium, and a NeMo-RL that has a Single Controller."""
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "nemo-rl"))
    write_checkout(tmp_path / "nemo-rl", ("run", "rule", "controller"))

    def run(*settings, reference=True, task="fairness"):
        folder = RunDirectory(tmp_path / "run")
        folder.root.mkdir()
        folder.ledger.create({"seconds": {}, "hashes": {}, "task": task})
        words = (Setting("", "equipoise.engine", "nemo_rl"), *settings)
        loaded = load_config(task, Options((CONFIG_FOLDER / "medium.yaml",), words))
        folder.config.write_text(loaded.to_yaml())
        write_prompts(folder.prompts, records(64, 4), {})
        if reference:
            write_rollouts(folder.reference, [Rollout("p", "p", "train", "Q", "A")])
        return folder

    return run


def written(run, *words):
    assert single_controller.main([str(run.root), "--write-only", *words]) == 0
    return OmegaConf.to_container(OmegaConf.load(run.root / "single_controller" / "nemo_rl.yaml"))


def test_it_writes_what_the_controller_reads(run):
    folder = run()
    config = written(folder, "--max-staleness-versions", "2")
    step = config["grpo"]["num_prompts_per_step"]
    sampler = config["async_rl"]["sampler"]
    assert (
        sampler["prompts_per_step"] == config["async_rl"]["min_groups_for_streaming_train"] == step
    )
    assert (sampler["set_size"], sampler["max_staleness_versions"]) == (4, 2)
    assert config["async_rl"]["max_buffered_rollouts"] == 3 * step
    assert sampler["scoring_actor"] == config["env"]["fairness"]["scoring_actor"]
    assert sampler["prompts"] == config["data"]["train"]["prompts"] == str(folder.prompts)
    assert config["data"]["train"]["spare"]
    assert (config["grpo"]["async_grpo"], config["data"]["validation"]) == (None, None)
    assert not any(config["grpo"][name] for name in ("val_period", "val_at_start", "val_at_end"))
    assert config["checkpointing"]["checkpoint_dir"].startswith(f"{folder.root}/single_controller/")


def test_the_extension_finds_the_class(run):
    """As NeMo-RL's `create_sampler` does."""
    from importlib import import_module

    module, _, name = written(run())["async_rl"]["sampler"]["target"].partition(":")
    sampler = getattr(import_module(module), name)
    names = ("admit", "select", "evict", "should_abort_inflight", "is_on_policy")
    more = ("required_buffer_capacity", "set_dispatch_index")
    assert all(hasattr(sampler, one) for one in (*names, *more))


def test_it_runs_nemo_rls_script_and_not_the_older_way(run, monkeypatch):
    calls = []
    monkeypatch.setattr(single_controller, "register", lambda name: calls.append(name))
    monkeypatch.setattr(single_controller, "run_script", lambda *paths: calls.append(paths))
    monkeypatch.setattr(single_controller, "prepare_process", lambda: None)
    monkeypatch.delitem(sys.modules, "equipoise.train.nemo_rl.whole_sets", raising=False)
    folder = run()
    single_controller.main([str(folder.root)])
    name, (script, config) = calls
    assert name == "fairness"
    assert str(script).endswith(SINGLE_CONTROLLER.file)
    assert config == folder.root / "single_controller" / "nemo_rl.yaml"
    assert "equipoise.train.nemo_rl.whole_sets" not in sys.modules


ASYNC_GRPO = (
    Setting("", "grpo.async_grpo.enabled", True),
    Setting("", "policy.generation.vllm_cfg.async_engine", True),
    Setting("", "policy.generation.colocated.enabled", False),
    Setting("", "policy.generation.colocated.resources.gpus_per_node", 4),
    Setting("", "loss_fn.use_importance_sampling_correction", True),
)


@pytest.fixture
def refused(capfd):
    """The message of a run that the command refuses."""

    def refused(run):
        assert single_controller.main([str(run.root), "--write-only"]) > 0
        assert not (run.root / "single_controller").exists()
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return " ".join((out + err).split())

    return refused


def test_a_run_of_the_older_way_is_refused(run, refused):
    assert "another way to train on whole sets" in refused(run(*ASYNC_GRPO))


def test_a_run_without_the_frozen_models_replies_is_refused(run, refused):
    assert "has no reference.jsonl" in refused(run(reference=False))


def test_a_rehearsals_run_is_refused(run, refused):
    local = Setting("", "policy.model_name", "local")
    assert "trains on GPUs alone" in refused(run(local))


def test_a_nemo_rl_without_it_is_refused(run, refused, tmp_path):
    folder = run()
    (tmp_path / "nemo-rl" / SINGLE_CONTROLLER.file).unlink()
    assert "it has no examples/run_grpo_single_controller.py" in refused(folder)
