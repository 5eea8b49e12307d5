"""A recipe's configuration: composed, validated with the task's own models, ready to run."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from omegaconf import OmegaConf
from pydantic import BaseModel

from data_prep.contract import DataModule, DataSettings
from environments.contract import Environment, EnvironmentSettings
from equipoise.config.batch_sizes import Fitted, fit_batch_sizes
from equipoise.config.checks import Case, Engine, check_also, check_config
from equipoise.config.compose import Composition, compose, leaves
from equipoise.config.engine import choose_engine
from equipoise.config.flags import CONFIG_FOLDER, Options, Setting, whole_sets
from equipoise.config.nemo_rl.checkout import unknown_to_installed
from equipoise.config.nemo_rl.rules import nemo_rl_warnings
from equipoise.config.nemo_rl.schema import whole_schema
from equipoise.config.problems import SEPARATOR, Origin, Problem, add_problems, usage_error
from equipoise.config.schema import Config
from equipoise.config.secrets import secret_problems
from equipoise.config.sources import Source, read_file, run_sources, task_defaults
from equipoise.config.task_code import TaskCode, load_task, unread_keys, unread_problems
from equipoise.config.validate import honoured_by_local, validate

T = TypeVar("T")
_OURS = frozenset({"data_prep", "environments"})
#: Keys of `data` that train/nemo_rl/configuration.py hands on, or that are refused.
_READ_DATA = ("data.max_input_seq_length", "data.num_workers", "data.shuffle")


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
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]
    options: Options  # what it was composed from

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


def load_config(
    task: str, options: Options, *, to_train: bool = True, training_prompts: int | None = None
) -> LoadedConfig:
    """Compose and validate. Raises one `UsageError` that lists everything that is wrong.

    Batch sizes that do not fit are made to where the user has chosen none, and without `to_train`,
    when nothing reads them, in any case. `training_prompts` is how many there are to train on,
    where they have been made. Nothing that takes long is imported or loaded for it.
    """
    sources = run_sources(task, options)
    composition = compose(sources)
    values, origins = composition.values, composition.origins
    problems = [*composition.problems, *secret_problems(values)]
    config, errors = validate(values, whole_schema())
    # Wrong values give way to the defaults, so that what else is wrong is told as well.
    config = config or _repaired(values, [*composition.problems, *errors], task)
    add_problems(problems, errors)
    if config is None:
        raise usage_error(problems, origins, composition.references)

    code, errors = load_task(config, task)
    # Only now it is known how large a set is.
    options, rounded = whole_sets(options, code.set_size)
    if rounded:
        loaded = load_config(task, options, to_train=to_train, training_prompts=training_prompts)
        return replace(loaded, warnings=(*rounded, *loaded.warnings))
    add_problems(problems, [*errors, *unread_problems(code.prompt_settings, origins)])

    engine = choose_engine(config)
    prompts = training_prompts
    if prompts is None and not config.equipoise.data.data_path:
        prompts = code.training_prompts
    case = Case(config, engine, code.set_size, code.least_generations, prompts, code.mixed)
    if fitted := fit_batch_sizes(case, lambda key: not (to_train and _is_chosen(key, origins))):
        loaded = load_config(
            task,
            _with_sizes(options, fitted),
            to_train=to_train,
            training_prompts=training_prompts,
        )
        read = [size for size in fitted if engine == "nemo_rl" or honoured_by_local(size.key)]
        return replace(loaded, warnings=(*map(str, read), *loaded.warnings))
    add_problems(problems, [*check_config(case), *(check_also(case) if to_train else ())])
    if problems:
        raise usage_error(problems, origins, composition.references)
    return LoadedConfig(
        config=config,
        engine=engine,
        environment_class=_present(code.environment_class),
        env_settings=_present(code.env_settings),
        data_module=_present(code.data_module),
        prompt_settings=_present(code.prompt_settings),
        local_model_settings=code.local_model_settings,
        resolved=_resolved(values, config, engine, code),
        scheduler=_kept_scheduler(composition, engine),
        origins=origins,
        warnings=(
            *_outranked(sources, origins),
            *(() if config.equipoise.data.data_path else code.chosen),
            *(_nemo_rl_warnings(config, origins) if engine == "nemo_rl" else ()),
        ),
        options=options,
    )


def _is_chosen(key: str, origins: Mapping[str, Origin]) -> bool:
    """Whether the user has set the key, and not a scale of ours."""
    origin = origins.get(key)
    return origin is not None and origin.by_user and not origin.shipped


def _with_sizes(options: Options, fitted: Iterable[Fitted]) -> Options:
    settings = (Setting("fitted batch sizes", size.key, size.value) for size in fitted)
    return replace(options, fitted=(*options.fitted, *settings))


def ignored_by_local(loaded: LoadedConfig) -> list[str]:
    """The keys that the user has set and that the local engine does not read."""
    return [
        key
        for key, origin in loaded.origins.items()
        if origin.by_user and not honoured_by_local(key)
    ]


def _nemo_rl_warnings(config: Config, origins: Mapping[str, Origin]) -> Iterator[str]:
    yield from nemo_rl_warnings(config)
    yield from _unread_data(origins)
    yield from unknown_to_installed(origins)


def _unread_data(origins: Mapping[str, Origin]) -> Iterator[str]:
    """Name what the user has set in `data` and NeMo-RL does not get: the prompts are ours."""
    unread = [
        key
        for key, origin in origins.items()
        if origin.by_user and key.startswith("data.") and key not in _READ_DATA
    ]
    if unread:
        yield (
            f"not read: {', '.join(unread)}; NeMo-RL gets its prompts and their order from "
            "Equipoise: say what they are in equipoise.data"
        )


def _outranked(sources: Iterable[Source], origins: Mapping[str, Origin]) -> Iterator[str]:
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


def _repaired(values: Mapping[str, Any], problems: Iterable[Problem], task: str) -> Config | None:
    """The configuration with the defaults in place of wrong values, where that makes it valid."""
    defaults = compose(task_defaults(task)).values
    repaired = deepcopy(dict(values))
    for problem in problems:
        for key in problem.keys:
            _restore(repaired, defaults, key.split(SEPARATOR))
    return validate(repaired, whole_schema())[0]


def _restore(values: dict[str, Any], defaults: Mapping[str, Any], path: list[str]) -> None:
    """Put the default at `path`, or remove the key when it has none."""
    name, *deeper = path
    below, default = values.get(name), defaults.get(name)
    if deeper and isinstance(below, dict):
        _restore(below, default if isinstance(default, dict) else {}, deeper)
    elif name in defaults:
        values[name] = default
    else:
        values.pop(name, None)


def _resolved(
    values: Mapping[str, Any], config: Config, engine: Engine, code: TaskCode
) -> dict[str, Any]:
    """Join what was set in NeMo-RL's sections and all of ours that is read, defaults included."""
    ours = config.equipoise
    data = {"module": ours.data.module, "data_path": ours.data.data_path}
    unread = unread_keys(code.prompt_settings)
    read = {k: v for k, v in _dump(code.prompt_settings).items() if k not in unread}
    return {
        **deepcopy(dict(values)),
        "env": {_present(code.environment_class).name: _dump(code.env_settings)},
        "equipoise": {
            **_dump(ours),
            "engine": engine,
            "data": data | read,
            "local_model": _dump(code.local_model_settings) if code.local_model_settings else {},
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
