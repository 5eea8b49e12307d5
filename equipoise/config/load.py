"""A recipe's configuration: composed, validated with the task's own models, ready to run.

The code that it names is a class for the environment and one for the data.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

from data_prep.contract import DataModule, DataSettings, WarmStart, unfit_data
from environments.contract import Environment, EnvironmentSettings
from equipoise.config.checks import Case, check_config
from equipoise.config.compose import Options, compose, run_sources
from equipoise.config.nemo_rl_rules import nemo_rl_warnings
from equipoise.config.schema import CLASS_NAME, LOCAL_MODEL, Config, Engine
from equipoise.config.validate import (
    Origins,
    Problem,
    honoured_by_local,
    secret_problems,
    usage_error,
    validate,
    whole_schema,
    within,
)
from equipoise.files.errors import UsageError
from equipoise.files.nemo_rl import is_installed, is_launched

_ENVIRONMENT_KEY, MODULE_KEY = "equipoise.environment", "equipoise.data.module"
_SHIPPED = frozenset({"data_prep", "environments"})


@dataclass(frozen=True, slots=True)
class TaskCode:
    """The code of a task, and its part of a configuration."""

    environment_class: type[Environment]
    data_module: DataModule
    env_settings: EnvironmentSettings
    prompt_settings: DataSettings
    local_model_settings: WarmStart | None  # None when the task has no local model

    @property
    def prepares(self) -> bool:
        """Whether the task makes something before its prompts: plans, an index."""
        return self.data_module.offers(DataModule.prepare)

    @property
    def set_size(self) -> int:
        return set_size(self.environment_class, self.env_settings)


class UnfitCodeError(Exception):
    """Code that a configuration names and that cannot be a task's."""

    def __init__(self, code: str, key: str, message: str) -> None:
        self.problem = Problem(code, (key,), message)


def load_task(config: Config, task: str, origins: Origins, *, stored: bool = False) -> TaskCode:
    """Import what the configuration names and validate its settings with the task's own models.

    A `stored` configuration may import only modules that are shipped, installed or named by the
    user. Raises `UsageError` for unfit code, or with every fault of the settings.
    """
    ours, is_local = config.equipoise, config.policy.model_name == LOCAL_MODEL
    try:
        if ours.task != task:
            message = f"this recipe trains {task}, not {ours.task}"
            raise UnfitCodeError("task.other-recipe", "equipoise.task", message)
        environment = find_class(
            ours.environment, _ENVIRONMENT_KEY, _unfit_environment, stored=stored
        )
        data: DataModule = find_class(ours.data.module, MODULE_KEY, unfit_data, stored=stored)()
        if is_local and data.LocalModelSettings is None:
            message = f"{ours.data.module} makes no local model, name another one with --model-name"
            raise UnfitCodeError("data-module.no-local-model", "policy.model_name", message)
    except UnfitCodeError as error:
        raise usage_error([error.problem], origins) from error
    problems: list[Problem] = []

    def settings(values: Mapping[str, Any], model: Any, key: str) -> Any:
        valid, errors = validate(values, model, key)
        problems.extend(errors)
        return valid

    name = environment.name
    for section in config.env.keys() - {name}:
        message = f"unknown key, this task's environment is env.{name}"
        problems.append(Problem("task.invalid-settings", (f"env.{section}",), message))
    prompts = settings(ours.data.model_extra or {}, data.PromptSettings, "equipoise.data")
    env = settings(config.env.get(name, {}), environment.Settings, f"env.{name}")
    local_model = None
    if tiny := data.LocalModelSettings:
        local_model = settings(ours.local_model, tiny, "equipoise.local_model")
    if prompts and is_local and not ours.data.data_path and (reason := prompts.no_local_model):
        problems.append(Problem("task.other-model", ("policy.model_name",), reason))
    if problems:
        raise usage_error(problems, origins)
    return TaskCode(environment, data, env, prompts, local_model)


def find_class(path: str, key: str, unfit: Callable[[Any], str], *, stored: bool = False) -> Any:
    """Import `package.module.Class`. Raises `UnfitCodeError`."""
    if not re.match(CLASS_NAME, path):
        raise UnfitCodeError("task.unfit-class", key, f"{path} does not name a class of a module")
    module_name, _, name = path.rpartition(".")
    code = getattr(_import(module_name, key, stored), name, None)
    if reason := "does not exist" if code is None else unfit(code):
        message = f"{name} of {module_name} {reason}"
        raise UnfitCodeError("task.unfit-class", key, message)
    return code


def _import(name: str, key: str, stored: bool) -> ModuleType:
    """Import a module, which runs its code."""
    if stored and not _is_trusted(name):
        message = (
            f"the run names the code {name}, which is neither shipped nor installed: if it is your "
            f"own, give --own-code {name.partition('.')[0]}"
        )
        raise UnfitCodeError("task.untrusted-code", key, message)
    if not stored and name.partition(".")[0] not in _SHIPPED:
        add_working_folder()
    try:
        return importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        reason = f"cannot import {name}: {error}"
        raise UnfitCodeError("task.failed-import", key, reason) from error


def unread_problems(settings: DataSettings, origins: Origins) -> list[Problem]:
    """Report keys that the user set and that mean nothing beside the others."""
    by_user = [leaf for leaf, origin in origins.items() if origin.by_user]
    return [
        Problem(
            "task.unread-key", (key,), f"is not read beside the other keys; take it out: {instead}"
        )
        for name, instead in settings.unread.items()
        if any(within(leaf, key := f"equipoise.data.{name}") for leaf in by_user)
    ]


def set_size(environment: type[Environment], settings: EnvironmentSettings) -> int:
    """Prompts of a counterfactual set; 1 when the environment needs no sets."""
    return settings.set_size or environment.set_size


def _unfit_environment(environment: Any) -> str:
    """Say why a class is not an environment, by environments/contract.py; empty where it is."""
    if not (isinstance(environment, type) and issubclass(environment, Environment)):
        return "does not extend environments.contract.Environment"
    if missing := sorted(environment.__abstractmethods__):
        return f"has no {', '.join(missing)}"
    if not environment.name:
        return "has no name"
    if not issubclass(environment.Settings, EnvironmentSettings):
        return "has Settings that do not extend environments.contract.EnvironmentSettings"
    if environment.scope == "set" and environment.set_size < 2:
        return 'has the scope "set" and no set_size'
    return ""


def add_working_folder() -> None:
    """Find a user's own task in the working folder, after ours, so that it shadows none."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)


def import_own_code(name: str) -> None:
    """Import a module that the user names, so that a run may name it too. Raises `UsageError`."""
    add_working_folder()
    try:
        package = PathFinder.find_spec(name.partition(".")[0])
        if package is None or _is_of_run(package, name):
            raise ImportError("there is no such module outside a run's folder")
        importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        raise UsageError(
            "task.no-own-code", f"cannot import {name}: {error}", "Start in the folder that has it."
        ) from error


def _is_trusted(name: str) -> bool:
    """Whether a module is shipped, installed, or was imported because the user named it."""
    top = name.partition(".")[0]
    if name in sys.modules or top in _SHIPPED:
        return True
    if top in sys.stdlib_module_names:
        return False
    folder = Path.cwd().resolve()
    package = PathFinder.find_spec(
        top, [entry for entry in sys.path if Path(entry).resolve() != folder]
    )
    return package is not None and not _is_of_run(package, name)


def _is_of_run(package: ModuleSpec, name: str) -> bool:
    """Whether a package, or a folder of the module's in it, lies in a run's folder."""
    origins = [package.origin] if package.has_location else []
    roots = [Path(path) for path in package.submodule_search_locations or ()]
    below = [root.joinpath(*name.split(".")[1:]) for root in roots]
    paths = [path.resolve() for path in (*map(Path, filter(None, origins)), *below)]
    return any((f / "provenance.json").exists() for path in paths for f in (path, *path.parents))


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


_STEPS = "grpo.max_num_steps"


@dataclass(frozen=True, slots=True)
class LoadedConfig(TaskCode):
    """A valid configuration, and the task's code and settings that it names."""

    config: Config
    engine: Engine
    resolved: Mapping[str, Any]
    scheduler: Any  # `policy.scheduler` as config.yaml keeps it
    origins: Origins
    warnings: tuple[str, ...]
    options: Options  # what it was composed from

    def own_code(self) -> list[tuple[str, str]]:
        """Name and file of the modules that were imported and are not Equipoise's."""
        names = dict.fromkeys((self.environment_class.__module__, self.data_module.__module__))
        modules = [sys.modules[name] for name in names if name.partition(".")[0] not in _SHIPPED]
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
    looked at, for nothing reads them. It imports nothing slow.
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
        **{field.name: getattr(code, field.name) for field in fields(code)},
        resolved=_resolved(values, config, engine, code),
        scheduler=(composition.raw if follows else values)["policy"].get("scheduler"),
        origins=origins,
        warnings=(
            *(nemo_rl_warnings(config) if engine == "nemo_rl" else ()),
            *_unread_warnings(config, engine, origins),
        ),
        options=options,
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
    *("grpo.val_at_start", "grpo.val_at_end", "logger.report_to", "async_rl"),
    *("equipoise.load_in_4bit", "equipoise.device"),
)
#: What is read of these sections all the same; Megatron follows the optimizer's and LoRA's values.
_DATA = ("data.max_input_seq_length", "data.num_workers", "data.shuffle")
_FOLLOWED = (
    *(f"policy.optimizer.kwargs.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
    *(f"{_LORA}.{name}" for name in ("enabled", "dim", "alpha", "dropout")),
    "policy.dtensor_cfg.enabled",
)
#: Generation backend -> its sections.
_GENERATION = {"vllm": ("vllm_cfg", "vllm_kwargs"), "sglang": ("sglang_cfg", "sglang_kwargs")}


def _unread_warnings(config: Config, engine: Engine, origins: Origins) -> Iterator[str]:
    """Warn of keys that the user set and that the training backend ignores."""
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
