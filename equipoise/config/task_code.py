"""The code that a configuration names: a task's class of an environment and one of its data."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from data_prep.contract import DataModule, DataSettings, unfit_data
from environments.contract import Environment, EnvironmentSettings
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.config.validate import Origins, Problem, usage_error, validate, within
from equipoise.files.errors import UsageError

_ENVIRONMENT_KEY, _MODULE_KEY = "equipoise.environment", "equipoise.data.module"
_SHIPPED = frozenset({"data_prep", "environments"})


@dataclass(frozen=True, slots=True)
class TaskCode:
    """The code of a task, and its part of a configuration."""

    environment_class: type[Environment]
    data_module: DataModule
    env_settings: EnvironmentSettings
    prompt_settings: DataSettings
    local_model_settings: BaseModel | None  # None when the task has no local model

    @property
    def set_size(self) -> int:
        return set_size(self.environment_class, self.env_settings)


class UnfitCodeError(Exception):
    """Code that a configuration names and that cannot be a task's."""

    def __init__(self, code: str, key: str, message: str) -> None:
        self.problem = Problem(code, (key,), message)


def load_task(config: Config, task: str, origins: Origins, *, stored: bool = False) -> TaskCode:
    """Import what the configuration names and validate its settings with the task's own models.

    Of a `stored` configuration nothing is imported but what is shipped or installed, or was named
    by the user. Raises `UsageError` for code that is unfit, or with all that is wrong in settings.
    """
    ours, is_local = config.equipoise, config.policy.model_name == LOCAL_MODEL
    try:
        if ours.task != task:
            message = f"this recipe trains {task}, not {ours.task}"
            raise UnfitCodeError("task.other-recipe", "equipoise.task", message)
        environment = _find_class(ours.environment, _ENVIRONMENT_KEY, _unfit_environment, stored)
        data: DataModule = _find_class(ours.data.module, _MODULE_KEY, unfit_data, stored)()
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


def _find_class(path: str, key: str, unfit: Callable[[Any], str], stored: bool) -> Any:
    """Import `package.module.Class`."""
    module_name, _, name = path.rpartition(".")
    found = getattr(_import(module_name, key, stored), name, None)
    if reason := "does not exist" if found is None else unfit(found):
        message = f"{name} of {module_name} {reason}"
        raise UnfitCodeError("task.unfit-class", key, message)
    return found


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
    """Why a class is not an environment, see environments/contract.py; empty where it is one."""
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
    """Find a user's own task in the working folder; behind ours, so that it hides nothing."""
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
