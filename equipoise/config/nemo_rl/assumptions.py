"""NeMo-RL's versions, and its functions that Equipoise calls, with the parameters that it gives.

A start reads the installed version against this table. The names of its keys are in keys.yaml, the
packages of its image in containers/.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

#: The release whose code was run, and whose image is the default.
RELEASE = "v0.7.0"
IMAGE = f"nvcr.io/nvidia/nemo-rl:{RELEASE}"
#: The versions that were read and run: their commits.
TRIED: Mapping[str, str] = {
    RELEASE: "81aa43dda4765b0429cf31dab44441e4e4383911",
    "main-7ea279a": "7ea279abfbeb698b092856d0dab61e7cf39bc909",  # of 22 August 2026
}
#: What it names a resource of a Ray that it started for a run on one machine.
OWN_CLUSTER = "nrl_tag_"

_TRAINER = (
    "policy policy_generation val_dataloader tokenizer loss_fn task_to_env val_task_to_env logger "
    "checkpointer grpo_save_state master_config"
)


@dataclass(frozen=True, slots=True)
class Called:
    """A name of a module of nemo_rl, its parameters, and where Equipoise calls it."""

    module: str
    name: str
    user: str  # of equipoise/train/nemo_rl
    parameters: str = ""


CALLED = (
    Called("algorithms.grpo", "MasterConfig", "recipe.py"),
    Called(
        "algorithms.grpo",
        "setup",
        "recipe.py",
        "master_config tokenizer dataset val_dataset policy_factory",
    ),
    Called("algorithms.grpo", "grpo_train", "recipe.py", f"wrapped_dataloader {_TRAINER}"),
    Called(
        "algorithms.grpo",
        "async_grpo_train",
        "recipe.py",
        f"dataloader {_TRAINER} max_trajectory_age_steps",
    ),
    Called(
        "algorithms.grpo",
        "refit_policy_generation",
        "recipe.py",
        "policy policy_generation colocated_inference _refit_buffer_size_gb",
    ),
    Called(
        "algorithms.grpo",
        "validate",
        "evaluations.py",
        "policy_generation val_dataloader tokenizer val_task_to_env step master_config logger",
    ),
    Called("algorithms.utils", "get_tokenizer", "recipe.py", "tokenizer_config"),
    Called("data.collate_fn", "rl_collate_fn", "evaluations.py", "data_batch"),
    Called("data.datasets.raw_dataset", "RawDataset", "dataset.py"),
    Called("data.utils", "setup_response_data", "recipe.py", "tokenizer data_config"),
    Called("distributed.virtual_cluster", "init_ray", "recipe.py"),
    Called("environments.interfaces", "EnvironmentInterface", "actor.py"),
    Called(
        "environments.interfaces",
        "EnvironmentReturn",
        "scoring.py",
        "observations metadata next_stop_strings rewards terminateds answers",
    ),
    Called(
        "models.generation",
        "configure_generation_config",
        "recipe.py",
        "config tokenizer has_refit_draft_weights trains_mtp",
    ),
    Called(
        "models.policy.lm_policy",
        "Policy",
        "reference_policy.py",
        "config weights_path optimizer_path init_reference_model",
    ),
    Called("utils.config", "load_config", "recipe.py", "config_path"),
    Called("utils.config", "register_omegaconf_resolvers", "recipe.py"),
    Called("utils.logger", "Logger.log_metrics", "history.py", "metrics step prefix"),
    Called("utils.logger", "Logger.log_batched_dict_as_jsonl", "history.py", "to_log filename"),
    Called("utils.logger", "get_next_experiment_dir", "recipe.py", "base_log_dir"),
)


def is_tried(version: str) -> bool:
    """Whether a version was tried; its text is that of NeMo-RL's package, 0.7.0+81aa43dda.

    A checkout names its commit, and the source of a release may not.
    """
    number, _, commit = version.partition("+")
    if not commit:
        return f"v{number}" in TRIED
    return any(tried.startswith(commit) for tried in TRIED.values())


def unmet() -> Iterator[str]:
    """Yield what the NeMo-RL that can be imported lacks, with the file that calls it."""
    for called in CALLED:
        if missing := list(_missing(called)):
            lacks = ", ".join(missing)
            yield f"nemo_rl.{called.module}.{called.name} lacks {lacks} ({called.user})"


def _missing(called: Called) -> Iterator[str]:
    try:
        function: Any = import_module(f"nemo_rl.{called.module}")
        for part in called.name.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        yield str(error)
        return
    needed = called.parameters.split()
    known = inspect.signature(function).parameters if needed else {}
    yield from (name for name in needed if name not in known)
