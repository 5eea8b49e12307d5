"""Settings of every test: no timed test, the same examples in every run, nothing of the user's."""

import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

settings.register_profile("deep", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("deep"), max_examples=20)

# What tests start imports some ten thousand files: each process would compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Nothing is looked for on the Hugging Face hub, which would be tried again until it is given up.
os.environ["HF_HUB_OFFLINE"] = "1"
# As in every run that we start on NeMo-RL: under `uv run` Ray starts its workers by `uv run`, too.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
# With two processes of tests on two cores, two threads each only wait for one another. torch reads
# it when it is imported, here and in the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

CONTRACT = Path(__file__).parent / "contract"
GPU = Path(__file__).parent / "gpu"
#: What users set for their own runs. Contract tests and those of a GPU read a NeMo-RL's of the
#: user's, and where packages.py makes folders.
NAMES = ("WANDB_", "EQUIPOISE_", "SLURM_", "HF_TOKEN", "OPENAI_API_KEY", "UV_PROJECT_ENVIRONMENT")
OF_CONTRACTS = ("NEMO_RL_", "EQUIPOISE_CONTRACT_PACKAGES")


def pytest_configure(config):
    """Without a path and a mark, deep tests are left out and properties have fewer examples."""
    option = config.option
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not option.markexpr:
        option.markexpr = "not deep"
    settings.load_profile("quick" if option.markexpr == "not deep" else "deep")


def pytest_ignore_collect(collection_path, config):
    """Do not import other libraries for tests that are left out: Automodel's take half a minute."""
    return True if collection_path == CONTRACT and config.option.markexpr == "not deep" else None


def pytest_itemcollected(item):
    """Tests of other libraries are deep, all of them."""
    if CONTRACT in item.path.parents:
        item.add_marker("deep")


def pytest_collection_modifyitems(items):
    """The recipes, which take longest, first: so both processes end together."""
    items.sort(key=lambda item: "recipes" not in item.path.parts)


@pytest.fixture(scope="module")
def only_ray(tmp_path_factory):
    """No other test's Ray runs meanwhile: it looks for clusters in all of a machine's processes."""
    with FileLock(tmp_path_factory.getbasetemp().parent / "ray.lock"):
        yield


@pytest.fixture(scope="module")
def one_thread():
    """More would only wait for each other over a model this small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_the_users(request):
    """Without the user's variables, `.env` and account with wandb."""
    contract = not {CONTRACT, GPU}.isdisjoint(request.path.parents)
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            kept = contract and name.startswith(OF_CONTRACTS)
            if name.startswith((*NAMES, *OF_CONTRACTS)) and not kept:
                patch.delenv(name)
        patch.setenv("PYTHON_DOTENV_DISABLED", "1")
        patch.setenv("WANDB_MODE", "offline")
        yield
