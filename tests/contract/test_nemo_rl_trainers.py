"""Which trainer NeMo-RL's own run_grpo.py takes: each is followed or refused.

    NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_nemo_rl_trainers.py

The script's `main` runs as it is, on our own configuration; what it would start does not.
"""

import os
import runpy
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.nemo_rl.assumptions import TRAINER, unmet
from equipoise.config.nemo_rl.installation import PATH_VARIABLE
from equipoise.config.nemo_rl.rules import check_nemo_rl
from equipoise.config.schema import DataPlaneConfig
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.configuration import nemo_rl_config
from tests.contract.rehearsal import needs_checkout, needs_extra

pytestmark = [needs_checkout, needs_extra()]
DATA_PLANE, ASYNC = "data_plane.enabled", "grpo.async_grpo.enabled"


@pytest.fixture(scope="module")
def nemo_rl():
    from equipoise.config.nemo_rl.installation import find_installation
    from equipoise.train.nemo_rl.engine import prepare_process

    installation = find_installation()
    installation.make_importable()
    prepare_process()
    return installation


@pytest.fixture
def trainers(nemo_rl, monkeypatch):
    """The names of the trainers that the script has called; nothing else of it does anything."""
    from nemo_rl.algorithms import grpo
    from nemo_rl.algorithms import utils as algorithms
    from nemo_rl.data import utils as data_utils
    from nemo_rl.distributed import virtual_cluster
    from nemo_rl.models import generation
    from nemo_rl.utils import logger

    called = []

    def recorder(name):
        return lambda *_, **__: called.append(name)

    for name in ("grpo_train", "async_grpo_train"):
        monkeypatch.setattr(grpo, name, recorder(name))
    # What it imports needs a package that a rehearsal does without.
    sync = SimpleNamespace(grpo_train_sync=recorder("grpo_train_sync"))
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms.grpo_sync", sync)
    policy = SimpleNamespace(TQPolicy=MagicMock())
    monkeypatch.setitem(sys.modules, "nemo_rl.models.policy.tq_policy", policy)
    made = [MagicMock() for _ in range(10)]
    monkeypatch.setattr(grpo, "setup", lambda config, *_, **__: [*made, config, {}, {}])
    monkeypatch.setattr(virtual_cluster, "init_ray", lambda: None)
    monkeypatch.setattr(algorithms, "get_tokenizer", MagicMock())
    monkeypatch.setattr(generation, "configure_generation_config", lambda config, *_, **__: config)
    monkeypatch.setattr(data_utils, "setup_response_data", lambda *_: ("", "", {}, {}))
    monkeypatch.setattr(logger, "get_next_experiment_dir", lambda folder: folder)
    return called


@pytest.fixture
def written(nemo_rl, tmp_path, monkeypatch):
    """Write our file for `run_grpo.py` with other values, and start the script with it."""

    def write(values):
        settings = [Setting("", "equipoise.engine", "nemo_rl")]
        options = Options((CONFIG_FOLDER / "medium.yaml",), tuple(settings))
        loaded = load_config("fairness", options)
        ours = OmegaConf.create(
            nemo_rl_config(loaded, nemo_rl.base_config, RunDirectory(tmp_path / "run"), "model")
        )
        for key, value in values.items():
            OmegaConf.update(ours, key, value)
        path = tmp_path / "nemo_rl.yaml"
        OmegaConf.save(ours, path)
        monkeypatch.setattr(sys, "argv", [str(nemo_rl.script), "--config", str(path)])
        return loaded.config

    return write


def refused_by_us(config, values):
    """The keys with which our own checks refuse the configuration."""
    changed = config.model_copy(update={"data_plane": DataPlaneConfig(enabled=values[DATA_PLANE])})
    return [key for problem in check_nemo_rl(changed) for key in problem.keys]


@pytest.mark.parametrize("values", product([False, True], repeat=2))
def test_every_branch_leads_to_a_trainer_that_is_followed_or_is_refused(
    values, nemo_rl, written, trainers
):

    values = dict(zip((DATA_PLANE, ASYNC), values, strict=True))
    config = written(values)
    runpy.run_path(str(nemo_rl.script), run_name="__main__")
    (trainer,) = trainers
    followed = trainer in TRAINER.names
    refused = DATA_PLANE in refused_by_us(config, values)
    assert refused == values[DATA_PLANE]
    assert followed or refused, trainer
    assert trainer == (
        "async_grpo_train"
        if values[ASYNC]
        else "grpo_train_sync"
        if values[DATA_PLANE]
        else "grpo_train"
    )


def test_it_has_all_that_is_assumed_of_it() -> None:
    assert list(unmet(Path(os.environ[PATH_VARIABLE]), ("run", "async", "rehearsal"))) == []
