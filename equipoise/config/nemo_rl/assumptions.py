"""NeMo-RL's versions, and its functions that Equipoise calls, with the parameters that it gives.

A start reads the installed version against this table. The names of its keys are in keys.yaml, the
packages of its image in containers/.
"""

import inspect
from collections.abc import Iterator, Mapping
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
_ROLLOUTS = (
    "policy_generation input_batch tokenizer task_to_env max_seq_len max_rollout_turns greedy"
)
#: Module below nemo_rl and name in it, its user in equipoise/train/nemo_rl, parameters.
CALLED = f"""
algorithms.grpo:MasterConfig recipe.py
algorithms.grpo:setup recipe.py master_config tokenizer dataset val_dataset policy_factory
algorithms.grpo:grpo_train recipe.py wrapped_dataloader {_TRAINER}
algorithms.grpo:async_grpo_train recipe.py dataloader {_TRAINER} max_trajectory_age_steps
algorithms.grpo:refit_policy_generation recipe.py policy policy_generation colocated_inference
algorithms.grpo:refit_policy_generation recipe.py _refit_buffer_size_gb
algorithms.utils:get_tokenizer recipe.py tokenizer_config
data.collate_fn:rl_collate_fn evaluations.py data_batch
data.datasets.raw_dataset:RawDataset dataset.py
data.utils:setup_response_data recipe.py tokenizer data_config
distributed.virtual_cluster:init_ray recipe.py
environments.interfaces:EnvironmentInterface actor.py
environments.interfaces:EnvironmentReturn scoring.py observations metadata next_stop_strings
environments.interfaces:EnvironmentReturn scoring.py rewards terminateds answers
experience.rollouts:run_multi_turn_rollout evaluations.py {_ROLLOUTS}
experience.rollouts:run_async_multi_turn_rollout evaluations.py {_ROLLOUTS}
models.generation:configure_generation_config recipe.py config tokenizer
models.generation:configure_generation_config recipe.py has_refit_draft_weights trains_mtp
models.policy.lm_policy:Policy recipe.py config weights_path optimizer_path
utils.config:load_config recipe.py config_path
utils.config:register_omegaconf_resolvers recipe.py
utils.logger:Logger.log_metrics history.py metrics step prefix
utils.logger:Logger.log_batched_dict_as_jsonl history.py to_log filename
utils.logger:get_next_experiment_dir recipe.py base_log_dir
"""


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
    for line in CALLED.strip().splitlines():
        path, user, *parameters = line.split()
        module, _, name = path.partition(":")
        try:
            function: Any = import_module(f"nemo_rl.{module}")
            for part in name.split("."):
                function = getattr(function, part)
            known = inspect.signature(function).parameters if parameters else {}
            missing = [word for word in parameters if word not in known]
        except (ImportError, AttributeError) as error:
            missing = [str(error)]
        if missing:
            yield f"nemo_rl.{module}.{name} lacks {', '.join(missing)} ({user})"
