"""The code that a configuration names: the environment's class and the task's data module."""

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from data_prep.hooks import DataModule, MakesLocalModel, hook_problems
from environments.base import Environment, ScoresSets
from equipoise.config.module_source import defines, find_module, is_pythons_own
from equipoise.config.problems import Problem
from equipoise.config.schema import LOCAL_MODEL, Config

_ENVIRONMENT_KEY, _MODULE_KEY = "equipoise.environment", "equipoise.data.module"
_ENVIRONMENT_NAMES = ("name", "scope", "Settings")
_MODULE_NAMES = ("PromptSettings", "build_prompts")


def find_environment(config: Config, problems: list[Problem]) -> type[Environment] | None:
    """The class `equipoise.environment`; None with a problem added when there is none."""
    module_name, _, class_name = config.equipoise.environment.rpartition(".")
    module = _import(module_name, [class_name], _ENVIRONMENT_KEY, problems)
    if module is None:
        return None
    environment: Any = getattr(module, class_name, None)
    if environment is None:
        problems.append(Problem((_ENVIRONMENT_KEY,), f"{module_name} has no {class_name}"))
        return None
    if not _has(environment, _ENVIRONMENT_NAMES, _ENVIRONMENT_KEY, problems):
        return None
    more = ["set_size"] if environment.scope == "set" else []
    return environment if _has(environment, more, _ENVIRONMENT_KEY, problems) else None


def find_data_module(config: Config, problems: list[Problem]) -> DataModule | None:
    """The module `equipoise.data.module`; None with problems added when its hooks are unfit."""
    name = config.equipoise.data.module
    module = _import(name, _MODULE_NAMES, _MODULE_KEY, problems)
    if module is None or not _has(module, _MODULE_NAMES, _MODULE_KEY, problems):
        return None
    unfit = [f"{name}: {problem} (see data_prep/hooks.py)" for problem in hook_problems(module)]
    if unfit or not isinstance(module, DataModule):
        problems += [Problem((_MODULE_KEY,), message) for message in unfit]
        return None
    if config.policy.model_name == LOCAL_MODEL and not isinstance(module, MakesLocalModel):
        message = f"{name} makes no local model, name another one with --model-name"
        problems.append(Problem(("policy.model_name",), message))
    return module


def set_size(environment: type[Environment] | None) -> int:
    """Prompts of a counterfactual set; 1 when the environment needs no sets."""
    return environment.set_size if isinstance(environment, ScoresSets) else 1


def _import(
    name: str, needed: Sequence[str], key: str, problems: list[Problem]
) -> ModuleType | None:
    """The module, which runs its code; one whose source lacks what is needed is not run."""
    try:
        if (reason := _unfit(name, needed)) is None:
            return importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        reason = f"cannot import {name}: {error}"
    problems.append(Problem((key,), reason))
    return None


def _unfit(name: str, needed: Sequence[str]) -> str | None:
    """Why the module is not worth importing; None when it is, or is imported already."""
    if is_pythons_own(name):
        return f"{name} is a module of Python itself and holds no task's code"
    if name in sys.modules:
        return None
    spec = find_module(name)
    if spec is None:
        return f"cannot import {name}: there is no such module"
    missing = [wanted for wanted in needed if not defines(spec, wanted)]
    return f"{name} has no {', '.join(missing)}" if missing else None


def _has(owner: Any, names: Sequence[str], key: str, problems: list[Problem]) -> bool:
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        problems.append(Problem((key,), f"{owner.__name__} has no {', '.join(missing)}"))
    return not missing
