"""A recipe's configuration: composed, validated with the task's own models, ready to run."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel

from data_prep.contract import DataModule, DataSettings
from environments.contract import Environment, EnvironmentSettings
from equipoise.config.checks import Case, check_config
from equipoise.config.compose import Source, compose, leaves, read_file, run_sources
from equipoise.config.flags import CONFIG_FOLDER, Options
from equipoise.config.nemo_rl.installation import is_installed, is_launched
from equipoise.config.nemo_rl.rules import nemo_rl_warnings
from equipoise.config.schema import LOCAL_MODEL, Config, Engine
from equipoise.config.task_code import TaskCode, load_task, unread_problems
from equipoise.config.validate import (
    Origins,
    honoured_by_local,
    secret_problems,
    usage_error,
    validate,
    whole_schema,
    within,
)

# --- engine ---------------------------------------------------------------------------------------
# Which engine runs a configuration.


def choose_engine(config: Config) -> Engine:
    """The engine that is asked for; for `auto` the one that the configuration fits.

    Several GPUs need NeMo-RL. One GPU takes it where it is installed. The local model and the CPU
    are for the local engine.
    """
    engine = config.equipoise.engine
    if engine != "auto":
        return engine
    if is_launched():  # by a process that chose it
        return "nemo_rl"
    if config.cluster.gpus > 1:
        return "nemo_rl"
    for_local = config.policy.model_name == LOCAL_MODEL or config.equipoise.device == "cpu"
    return "nemo_rl" if not for_local and is_installed() and count_gpus() else "local"


def count_gpus() -> int:
    """The GPUs that torch sees."""
    import torch  # takes seconds, and is asked only where it decides something

    return torch.cuda.device_count()


# --- load -----------------------------------------------------------------------------------------


_OURS = frozenset({"data_prep", "environments"})
_STEPS = "grpo.max_num_steps"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration, and the task's code and settings that it names."""

    config: Config
    engine: Engine
    environment_class: type[Environment]
    env_settings: EnvironmentSettings
    data_module: DataModule
    prompt_settings: DataSettings
    local_model_settings: BaseModel | None  # None when the task has no local model
    resolved: Mapping[str, Any]
    scheduler: Any  # `policy.scheduler` as config.yaml keeps it
    origins: Origins
    warnings: tuple[str, ...]
    options: Options  # what it was composed from

    def own_code(self) -> list[tuple[str, str]]:
        """Name and file of the modules that were imported and are not Equipoise's."""
        names = dict.fromkeys((self.environment_class.__module__, self.data_module.__module__))
        modules = [sys.modules[name] for name in names if name.partition(".")[0] not in _OURS]
        return [(module.__name__, str(getattr(module, "__file__", ""))) for module in modules]

    def to_yaml(self) -> str:
        """config.yaml: what was set, interpolations resolved; `--resume` reads it.

        A schedule that follows the number of steps keeps doing so when that number changes.
        """
        tree = deepcopy(dict(self.resolved))
        tree["policy"]["scheduler"] = self.scheduler
        return OmegaConf.to_yaml(OmegaConf.create(tree))


def load_config(task: str, options: Options, *, to_train: bool = True) -> LoadedConfig:
    """Compose and validate. Raises `UsageError` with all that is wrong with the keys' values.

    Where they are valid by themselves it lists what is wrong with the task's own keys, and then
    what cannot work together. Without `to_train`, and of a run folder's file, batch sizes are not
    looked at, for nothing reads them. Nothing that takes long is imported or loaded for it.
    """
    sources = run_sources(task, options)
    composition = compose(sources)
    values, origins = composition.values, composition.origins
    if options.stored:
        values = without_keys(values)
    config, problems = validate(values, whole_schema())
    problems += secret_problems(values)
    if config is None or problems:
        raise usage_error(problems, origins)
    code = load_task(config, task, origins, stored=options.stored)
    engine, prompts = choose_engine(config), code.prompt_settings
    from_file = config.equipoise.data.data_path is not None
    case = Case(
        config,
        engine,
        code.set_size,
        code.env_settings.least_generations,
        None if from_file else prompts.training_prompts,
        to_train and not options.stored,
    )
    if problems := [*unread_problems(prompts, origins), *check_config(case)]:
        raise usage_error(problems, origins)
    # NeMo-RL's checkpoints hold the schedule that a run began with.
    follows = engine == "local" and composition.follows("policy", "scheduler", _STEPS)
    return LoadedConfig(
        config=config,
        engine=engine,
        environment_class=code.environment_class,
        env_settings=code.env_settings,
        data_module=code.data_module,
        prompt_settings=prompts,
        local_model_settings=code.local_model_settings,
        resolved=_resolved(values, config, engine, code),
        scheduler=(composition.raw if follows else values)["policy"].get("scheduler"),
        origins=origins,
        warnings=(
            *_outranked(sources, origins),
            *(() if from_file else prompts.chosen),
            *(nemo_rl_warnings(config) if engine == "nemo_rl" else ()),
            *_unread_warnings(config, engine, origins),
        ),
        options=options,
    )


def _outranked(sources: Iterable[Source], origins: Origins) -> Iterator[str]:
    """A warning for what was changed in a copy of a scale and gives way to the task."""
    for scale in sources:
        if scale.scale is None:
            continue
        shipped = dict(leaves(read_file(CONFIG_FOLDER / f"{scale.scale}.yaml", by_user=False).tree))
        for key, value in leaves(scale.tree):
            task = origins.get(key, scale.origin)
            if value != shipped.get(key) and not task.by_user:
                yield (
                    f"{key} of {scale.origin.label} gives way to {task.label}; without its line "
                    f"`scale: {scale.scale}` the file comes after the task's own and wins"
                )


def _resolved(
    values: Mapping[str, Any], config: Config, engine: Engine, code: TaskCode
) -> dict[str, Any]:
    """Join what was set in NeMo-RL's sections and all of ours that is read, defaults included."""
    ours, prompts, local_model = config.equipoise, code.prompt_settings, code.local_model_settings
    read = prompts.model_dump(mode="json", exclude=set(prompts.unread))
    return {
        **deepcopy(dict(values)),
        "env": {code.environment_class.name: code.env_settings.model_dump(mode="json")},
        "equipoise": {
            **ours.model_dump(mode="json"),
            "engine": engine,
            "data": {"module": ours.data.module, "data_path": ours.data.data_path} | read,
            "local_model": local_model.model_dump(mode="json") if local_model else {},
        },
    }


def without_keys(tree: Any) -> Any:
    """Drop the names of variables that hold keys from a configuration's values."""
    if isinstance(tree, dict):
        return {name: without_keys(value) for name, value in tree.items() if name != "api_key_env"}
    return [without_keys(value) for value in tree] if isinstance(tree, list) else tree


# --- Keys that nothing reads ----------------------------------------------------------------------

_LORA = "policy.dtensor_cfg.lora_cfg"
#: Of NeMo-RL's keys those that no run reads: Equipoise sets them, prompts are in equipoise.data.
_NEMO_RL = (
    *("data", "checkpointing.checkpoint_dir", "logger.log_dir", "policy.reward_model_cfg"),
    *("grpo.val_at_start", "grpo.val_at_end"),
)
#: What is read of these sections all the same; Megatron follows the optimizer's and LoRA's values.
_DATA = ("data.max_input_seq_length", "data.num_workers", "data.shuffle")
_FOLLOWED = (
    *(f"policy.optimizer.kwargs.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"{_LORA}.{name}" for name in ("enabled", "dim", "alpha", "dropout")),
    "policy.dtensor_cfg.enabled",
)
#: Generation backend -> its sections.
_GENERATION = {
    "vllm": ("vllm_cfg", "vllm_kwargs"),
    "sglang": ("sglang_cfg", "sglang_kwargs"),
    "megatron": ("mcore_generation_config",),
    "trtllm": ("trtllm_cfg", "trtllm_kwargs"),
    "dynamo": ("dynamo_cfg",),
}


def _unread_warnings(config: Config, engine: Engine, origins: Origins) -> Iterator[str]:
    """Warn of the keys that the user has set and that what trains does not read."""
    trainer = f"NeMo-RL with {'Megatron' if config.policy.megatron_cfg.enabled else 'DTensor'}"
    keys = _unread_by_nemo_rl(config, origins)
    if engine == "local":
        trainer = "the local engine"
        keys = [k for k, origin in origins.items() if origin.by_user and not honoured_by_local(k)]
    if keys:
        yield f"{trainer} does not read {', '.join(keys)}"


def _unread_by_nemo_rl(config: Config, origins: Origins) -> list[str]:
    policy = config.policy
    unread, read = [*_NEMO_RL], [*_DATA]
    if policy.megatron_cfg.enabled:
        unread += ["policy.optimizer", "policy.dtensor_cfg"]
        read += _FOLLOWED
    else:
        unread.append("policy.megatron_cfg")
        read.append("policy.megatron_cfg.enabled")
    for backend, sections in _GENERATION.items():
        if backend != policy.generation.backend:
            unread += [f"policy.generation.{section}" for section in sections]
    chosen = [key for key, origin in origins.items() if origin.by_user and not origin.shipped]
    return [key for key in chosen if _lies_in(key, unread) and not _lies_in(key, read)]


def _lies_in(key: str, sections: Iterable[str]) -> bool:
    return any(within(key, section) for section in sections)
