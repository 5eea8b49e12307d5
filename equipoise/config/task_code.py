"""The code that a configuration names: the environment's class and the task's data module."""

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from data_prep.contract import DataModule, DataSettings, hook_problems
from environments.contract import Environment, EnvironmentSettings
from equipoise.config.problems import Origins, Problem, within
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.config.validate import validate
from equipoise.files.errors import UsageError

_ENVIRONMENT_KEY, _MODULE_KEY = "equipoise.environment", "equipoise.data.module"
_MODULE_NAMES = ("PromptSettings", "build_prompts")
_SHIPPED = frozenset({"data_prep", "environments"})


@dataclass(frozen=True, slots=True)
class TaskCode:
    """The task's part of a configuration; None for what has a problem."""

    environment_class: type[Environment] | None
    data_module: DataModule | None
    env_settings: EnvironmentSettings | None
    prompt_settings: DataSettings | None
    local_model_settings: BaseModel | None  # None too when the task has no local model

    @property
    def set_size(self) -> int:
        return set_size(self.environment_class, self.env_settings)

    @property
    def least_generations(self) -> int:
        """Generations of a prompt that the environment compares with each other, at least 1."""
        return self.env_settings.least_generations if self.env_settings else 1

    @property
    def training_prompts(self) -> int | None:
        """Prompts to train on, where the settings know that before they are made."""
        return self.prompt_settings.training_prompts if self.prompt_settings else None

    @property
    def chosen(self) -> Sequence[str]:
        """The choices that the prompts' settings made themselves, in words."""
        return self.prompt_settings.chosen if self.prompt_settings else ()


def load_task(config: Config, task: str, *, stored: bool = False) -> tuple[TaskCode, list[Problem]]:
    """Import what the configuration names and validate its settings with the task's own models.

    Of a `stored` configuration nothing is imported but what is shipped or installed, or was named
    by the user.
    """
    problems: list[Problem] = []
    ours = config.equipoise
    if ours.task != task:
        problems.append(
            Problem(
                "task.other-recipe",
                ("equipoise.task",),
                f"this recipe trains {task}, not {ours.task}",
            )
        )
    environment = _find_environment(config, problems, stored)
    module = _find_data_module(config, problems, stored)

    def settings(values: Mapping[str, Any], owner: Any, name: str, key: str) -> Any:
        if owner is None:
            return None
        model: type[BaseModel] = getattr(owner, name)
        valid, errors = validate(values, model, key)
        problems.extend(errors)
        return valid

    name = environment.name if environment else ""
    for section in config.env if environment else ():
        if section != name:
            message = f"unknown key, this task's environment is env.{name}"
            problems.append(Problem("task.invalid-settings", (f"env.{section}",), message))
    tiny = module if module and module.LocalModelSettings else None
    prompts = settings(ours.data.model_extra or {}, module, "PromptSettings", "equipoise.data")
    if config.policy.model_name == LOCAL_MODEL and prompts:
        reason = "" if ours.data.data_path else prompts.no_local_model
        problems += [Problem("task.other-model", ("policy.model_name",), reason)] if reason else []
    code = TaskCode(
        environment,
        module,
        settings(config.env.get(name, {}), environment, "Settings", f"env.{name}"),
        prompts,
        settings(ours.local_model, tiny, "LocalModelSettings", "equipoise.local_model"),
    )
    return code, problems


def unread_keys(settings: DataSettings | None) -> Mapping[str, str]:
    """Keys of `equipoise.data` that mean nothing beside the others, with what to do instead."""
    return settings.unread if settings else {}


def unread_problems(settings: DataSettings | None, origins: Origins) -> list[Problem]:
    """Report unread keys that the user set: they would be ignored."""
    remedies = {
        f"equipoise.data.{name}": instead for name, instead in unread_keys(settings).items()
    }
    by_user = [leaf for leaf, origin in origins.items() if origin.by_user]
    return [
        Problem(
            "task.unread-key", (key,), f"is not read beside the other keys; take it out: {instead}"
        )
        for key, instead in remedies.items()
        if any(within(leaf, key) for leaf in by_user)
    ]


def set_size(environment: type[Environment] | None, settings: EnvironmentSettings | None) -> int:
    """Prompts of a counterfactual set; 1 when the environment needs no sets."""
    if environment is None:
        return 1
    return (settings and settings.set_size) or environment.set_size


def _find_environment(
    config: Config, problems: list[Problem], stored: bool
) -> type[Environment] | None:
    """The class `equipoise.environment`; None with a problem added when there is none."""
    module_name, _, class_name = config.equipoise.environment.rpartition(".")
    module = _import(module_name, [class_name], _ENVIRONMENT_KEY, problems, stored)
    if module is None:
        return None
    environment = getattr(module, class_name, None)
    if environment is None:
        problems.append(
            Problem(
                "environment.no-class", (_ENVIRONMENT_KEY,), f"{module_name} has no {class_name}"
            )
        )
        return None
    if reason := _unfit_environment(environment):
        problems.append(
            Problem("environment.no-environment", (_ENVIRONMENT_KEY,), f"{class_name} {reason}")
        )
        return None
    environment_class: type[Environment] = environment
    return environment_class


def _unfit_environment(environment: Any) -> str:
    """Why a class is no environment, see environments/contract.py; empty where it is one."""
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


def _find_data_module(config: Config, problems: list[Problem], stored: bool) -> DataModule | None:
    """The module `equipoise.data.module`; None with problems added when its hooks are unfit."""
    name = config.equipoise.data.module
    module = _import(name, _MODULE_NAMES, _MODULE_KEY, problems, stored)
    if module is None:
        return None
    if missing := [hook for hook in _MODULE_NAMES if not hasattr(module, hook)]:
        problems.append(
            Problem("task.missing-names", (_MODULE_KEY,), f"{name} has no {', '.join(missing)}")
        )
        return None
    unfit = [f"{name}: {problem} (see data_prep/contract.py)" for problem in hook_problems(module)]
    if unfit:
        problems += [Problem("data-module.invalid", (_MODULE_KEY,), message) for message in unfit]
        return None
    data_module = DataModule(module)
    if config.policy.model_name == LOCAL_MODEL and data_module.LocalModelSettings is None:
        message = f"{name} makes no local model, name another one with --model-name"
        problems.append(Problem("data-module.no-local-model", ("policy.model_name",), message))
    return data_module


def _import(
    name: str, needed: Sequence[str], key: str, problems: list[Problem], stored: bool
) -> ModuleType | None:
    """The module, which runs its code; one whose source lacks what is needed is not run."""
    if stored and not _is_trusted(name):
        message = (
            f"the run names the code {name}, which is neither shipped nor installed: if it is your "
            f"own, give --own-code {name.partition('.')[0]}"
        )
        problems.append(Problem("task.untrusted-code", (key,), message))
        return None
    if not stored and name.partition(".")[0] not in _SHIPPED:
        add_working_folder()
    try:
        if (reason := _unfit(name, needed)) is None:
            return importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        reason = f"cannot import {name}: {error}"
    problems.append(Problem("task.failed-import", (key,), reason))
    return None


def add_working_folder() -> None:
    """Find a user's own task in the working folder; behind ours, so that it hides nothing."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)


def import_own_code(name: str) -> None:
    """Import a module that the user names, so that a run may name it too. Raises `UsageError`."""
    add_working_folder()
    try:
        found = _find_module(name)
        if found is None or any(_is_of_run(path) for path in _paths_of(found)):
            raise ImportError("there is no such module outside a run's folder")
        importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        raise UsageError(
            "task.no-own-code", f"cannot import {name}: {error}", "Start in the folder that has it."
        ) from error


def _is_trusted(name: str) -> bool:
    """Whether a module is shipped, installed, or was imported because the user named it."""
    package = name.partition(".")[0]
    if name in sys.modules or package in _SHIPPED:
        return True
    folder = Path.cwd().resolve()
    installed = [entry for entry in sys.path if Path(entry).resolve() != folder]
    found = PathFinder.find_spec(package, installed)
    return found is not None and not any(_is_of_run(path) for path in _paths_of(found))


def _paths_of(spec: ModuleSpec) -> list[Path]:
    names = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
    return [Path(name).resolve() for name in names if name]


def _is_of_run(path: Path) -> bool:
    return any((folder / "provenance.json").exists() for folder in (path, *path.parents))


def _unfit(name: str, needed: Sequence[str]) -> str | None:
    """Why the module is not worth importing; None when it is, or is imported already."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return f"{name} is a module of Python itself and holds no task's code"
    if name in sys.modules:
        return None
    spec = _find_module(name)
    if spec is None:
        return f"cannot import {name}: there is no such module"
    missing = [need for need in needed if not _defines(spec, need)]
    return f"{name} has no {', '.join(missing)}" if missing else None


def _find_module(name: str) -> ModuleSpec | None:
    """Find the module as `import name` would, without importing it or its packages."""
    path: list[str] | None = None
    spec = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if end > 1 and path is None:
            return None
        package = ".".join(parts[:end])
        specs = (finder.find_spec(package, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        path = None if places is None else list(places)
    return spec


def _defines(spec: ModuleSpec, name: str) -> bool:
    """Whether the module's source binds `name`; a module that cannot be read so may."""
    if spec.origin is None or not spec.has_location or not spec.origin.endswith(".py"):
        return spec.origin is not None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return True  # the import says what is wrong with it
    names = set(_bound(tree))
    return bool(names & {name, "*", "__getattr__"})


def _bound(tree: ast.AST) -> Iterator[str]:
    """The names that definitions, imports and assignments bind, in conditions and `try` too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _bound(node)
