"""A recipe's configuration: composed, validated with the task's own models, ready to run."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import BaseModel

from data_prep.hooks import DataModule, MakesLocalModel
from environments.base import ComparesGenerations, Environment
from equipoise.config.checks import Case, Engine, check_config, warnings
from equipoise.config.compose import (
    Composition,
    Source,
    compose,
    read_assignment,
    read_file,
    read_value,
)
from equipoise.config.engine import choose_engine
from equipoise.config.flags import CONFIG_FOLDER, Options, whole_sets
from equipoise.config.keys import honoured_by_local
from equipoise.config.problems import SEPARATOR, Origin, Problem, related, usage_error
from equipoise.config.schema import Config
from equipoise.config.secret_checks import secret_problems
from equipoise.config.task_code import (
    find_data_module,
    find_environment,
    set_size,
)
from equipoise.config.validate import validate
from equipoise.errors import UsageError

T = TypeVar("T")
_OURS = frozenset({"data_prep", "environments"})


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration, and the task's code and settings that it names."""

    config: Config
    engine: Engine
    environment_class: type[Environment]
    env_settings: BaseModel
    data_module: DataModule
    prompt_settings: BaseModel
    local_model_settings: BaseModel | None  # None when the task has no local model
    resolved: Mapping[str, Any]
    scheduler: Any  # `policy.scheduler` as config.yaml keeps it
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]

    def own_code(self) -> list[tuple[str, str]]:
        """Name and file of the modules that were imported and are not Equipoise's."""
        module = self.config.equipoise.data.module
        names = dict.fromkeys((self.environment_class.__module__, module))
        modules = [sys.modules[name] for name in names if name.partition(".")[0] not in _OURS]
        return [(module.__name__, str(getattr(module, "__file__", ""))) for module in modules]

    def to_yaml(self) -> str:
        """config.yaml: what was set, interpolations resolved; `--resume` reads it.

        A schedule that follows the number of steps keeps doing so when that number changes.
        """
        tree = deepcopy(dict(self.resolved))
        tree["policy"]["scheduler"] = self.scheduler
        return OmegaConf.to_yaml(OmegaConf.create(tree))


@dataclass(frozen=True, slots=True)
class _Task:
    """The task's part of a configuration; None for what has a problem."""

    environment_class: type[Environment] | None
    data_module: DataModule | None
    env_settings: BaseModel | None = None
    prompt_settings: BaseModel | None = None
    local_model_settings: BaseModel | None = None


def load_config(task: str, options: Options) -> LoadedConfig:
    """Compose and validate. Raises one `UsageError` that lists everything that is wrong.

    Nothing that takes long is imported or loaded for it.
    """
    _refuse_no_run(options)
    composition = compose([*_defaults(task), *_choices(task, options)])
    config, found = validate(composition.values, Config)
    problems = [*composition.problems, *secret_problems(composition.values)]
    _extend(problems, found)
    # Wrong values give way to the defaults, so that what else is wrong is told as well.
    usable = config or _repaired(composition.values, [*composition.problems, *found], task)
    if usable is None:
        raise usage_error(problems, composition.origins, composition.references)
    parts, found = _load_task(usable, task)
    whole, rounded = whole_sets(options, set_size(parts.environment_class))
    if rounded:
        loaded = load_config(task, whole)
        return replace(loaded, warnings=(*rounded, *loaded.warnings))
    _extend(problems, found)
    engine = choose_engine(usable)
    _extend(problems, check_config(_case(usable, engine, parts)))
    if problems:
        raise usage_error(problems, composition.origins, composition.references)
    return LoadedConfig(
        config=usable,
        engine=engine,
        environment_class=_present(parts.environment_class),
        env_settings=_present(parts.env_settings),
        data_module=_present(parts.data_module),
        prompt_settings=_present(parts.prompt_settings),
        local_model_settings=parts.local_model_settings,
        resolved=_resolved(composition.values, usable, engine, parts),
        scheduler=_kept_scheduler(composition, engine),
        origins=composition.origins,
        warnings=tuple(warnings(usable, engine)),
    )


def _case(config: Config, engine: Engine, parts: _Task) -> Case:
    settings = parts.env_settings
    least = settings.least_generations if isinstance(settings, ComparesGenerations) else 1
    return Case(config, engine, set_size(parts.environment_class), least)


def ignored_by_local(loaded: LoadedConfig) -> list[str]:
    """The keys that the user has set and that the local engine does not read."""
    return [
        key
        for key, origin in loaded.origins.items()
        if origin.by_user and not honoured_by_local(key)
    ]


def _refuse_no_run(options: Options) -> None:
    if options.resume and not options.config_files[0].is_file():
        raise UsageError(
            f"{options.resume} is no run to resume: it has no {options.config_files[0].name}",
            "Name the folder of a run: results/<task>/<run name>.",
        )


def _defaults(task: str) -> list[Source]:
    """base.yaml and the task's YAML."""
    files = [CONFIG_FOLDER / "base.yaml", CONFIG_FOLDER / "tasks" / f"{task}.yaml"]
    return [read_file(path, _label(path), by_user=False) for path in files]


def _choices(task: str, options: Options) -> list[Source]:
    """What the command line chooses; the file of a resumed run is not the user's to mend."""
    files = [file for path in options.config_files for file in _with_task_sizes(task, path)]
    return [
        *_of_wandb(os.environ),
        *(_chosen_file(path, options) for path in files),
        *(read_value(setting.flag, setting.key, setting.value) for setting in options.settings),
        *(read_assignment(text) for text in options.assignments),
    ]


def _of_wandb(environment: Mapping[str, str]) -> Iterator[Source]:
    """The variables that name a run to wandb, which a file or a flag takes precedence over."""
    for name in ("project", "entity", "name"):
        variable = f"WANDB_{name.upper()}"
        if value := environment.get(variable):
            yield read_value(variable, f"logger.wandb.{name}", value, by_user=False)


def _with_task_sizes(task: str, path: Path) -> list[Path]:
    """A file of --config; after a shipped scale comes what this task sets at that scale."""
    at_scale = CONFIG_FOLDER / "tasks" / f"{task}.{path.name}"
    shipped = path.resolve().parent == CONFIG_FOLDER
    return [path, at_scale] if shipped and at_scale.is_file() else [path]


def _chosen_file(path: Path, options: Options) -> Source:
    shipped = CONFIG_FOLDER / f"{path.stem}.yaml"
    if not path.exists() and shipped.exists():
        origin = Origin(str(path), by_user=True)
        message = f"there is no such file, did you mean {_label(shipped)}?"
        return Source(origin, problems=(Problem(("",), message, origin),))
    return read_file(path, _label(path), by_user=options.resume is None)


def _label(path: Path) -> str:
    """The path as the user gave it; a shipped file from the project's root."""
    root = CONFIG_FOLDER.parent
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _extend(problems: list[Problem], found: Iterable[Problem]) -> None:
    """Add what is found, except about keys that are known to be wrong already."""
    wrong = [key for problem in problems for key in problem.keys if key]
    problems.extend(
        problem
        for problem in found
        if not any(related(key, other) for key in problem.keys for other in wrong)
    )


def _repaired(values: Mapping[str, Any], problems: Iterable[Problem], task: str) -> Config | None:
    """The configuration with the defaults in place of wrong values, where that makes it valid."""
    defaults = compose(_defaults(task)).values
    repaired = deepcopy(dict(values))
    for problem in problems:
        for key in problem.keys:
            _restore(repaired, defaults, key.split(SEPARATOR))
    return validate(repaired, Config)[0]


def _restore(values: dict[str, Any], defaults: Mapping[str, Any], path: list[str]) -> None:
    """Put the default at `path`, or remove the key when it has none."""
    name, *rest = path
    below, default = values.get(name), defaults.get(name)
    if rest and isinstance(below, dict):
        _restore(below, default if isinstance(default, dict) else {}, rest)
    elif name in defaults:
        values[name] = default
    else:
        values.pop(name, None)


def _load_task(config: Config, task: str) -> tuple[_Task, list[Problem]]:
    problems: list[Problem] = []
    if config.equipoise.task != task:
        message = f"this recipe trains {task}, not {config.equipoise.task}"
        problems.append(Problem(("equipoise.task",), message))
    environment = find_environment(config, problems)
    module = find_data_module(config, problems)

    def settings(values: Mapping[str, Any], owner: Any, name: str, key: str) -> BaseModel | None:
        if owner is None:
            return None
        model: type[BaseModel] = getattr(owner, name)
        valid, found = validate(values, model, key)
        problems.extend(found)
        return valid

    name = environment.name if environment else ""
    problems.extend(_unread_environments(config, name) if environment else [])
    source = config.equipoise
    tiny = module if isinstance(module, MakesLocalModel) else None
    return (
        _Task(
            environment,
            module,
            settings(config.env.get(name, {}), environment, "Settings", f"env.{name}"),
            settings(source.data.model_extra or {}, module, "PromptSettings", "equipoise.data"),
            settings(source.local_model, tiny, "LocalModelSettings", "equipoise.local_model"),
        ),
        problems,
    )


def _unread_environments(config: Config, name: str) -> Iterable[Problem]:
    for other in config.env:
        if other != name:
            yield Problem((f"env.{other}",), f"unknown key, this task's environment is env.{name}")


def _resolved(
    values: Mapping[str, Any], config: Config, engine: Engine, parts: _Task
) -> dict[str, Any]:
    """What was set in NeMo-RL's sections, and all of ours with their defaults."""
    ours = config.equipoise
    data = {"module": ours.data.module, "data_path": ours.data.data_path}
    return {
        **deepcopy(dict(values)),
        "env": {_present(parts.environment_class).name: _dump(parts.env_settings)},
        "equipoise": {
            **_dump(ours),
            "engine": engine,
            "data": data | _dump(parts.prompt_settings),
            "local_model": _dump(parts.local_model_settings) if parts.local_model_settings else {},
        },
    }


def _kept_scheduler(composition: Composition, engine: Engine) -> Any:
    """The schedule with its interpolations where the number of steps is all that they read.

    NeMo-RL's checkpoints hold the schedule that a run began with.
    """
    follows = set(composition.references.get("policy.scheduler", ())) == {"grpo.max_num_steps"}
    tree = composition.raw if follows and engine == "local" else composition.values
    return tree["policy"].get("scheduler")


def _dump(model: BaseModel | None) -> dict[str, Any]:
    return _present(model).model_dump(mode="json")


def _present(value: T | None) -> T:
    """The value; None would have been a problem, and problems are raised first."""
    assert value is not None
    return value
