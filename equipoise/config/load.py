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
from equipoise.config.checks import Case, Engine, check_config
from equipoise.config.compose import Composition, compose, leaves
from equipoise.config.flags import CONFIG_FOLDER, Options
from equipoise.config.nemo_rl.installation import is_installed, is_launched
from equipoise.config.nemo_rl.keys import whole_schema
from equipoise.config.nemo_rl.rules import nemo_rl_warnings
from equipoise.config.problems import Origin, add_problems, usage_error
from equipoise.config.schema import LOCAL_MODEL, Config
from equipoise.config.secrets import secret_problems, without_keys
from equipoise.config.sources import Source, read_file, run_sources
from equipoise.config.task_code import TaskCode, load_task, unread_keys, unread_problems
from equipoise.config.unread import unread_warnings
from equipoise.config.validate import validate

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
#: Of a GPU that vLLM shares with training.
_FULL = 0.9


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


def load_config(task: str, options: Options, *, to_train: bool = True) -> LoadedConfig:
    """Compose and validate. Raises one `UsageError` that lists every problem of the schema, if any.

    Else it lists what is wrong with the task's own keys, and what cannot work together. Without
    `to_train`, and of a run folder's file, batch sizes are not looked at, for nothing reads them.
    Nothing that takes long is imported or loaded for it.
    """
    sources = run_sources(task, options)
    composition = compose(sources)
    values, origins = composition.values, composition.origins
    if options.stored:
        values = without_keys(values)
    problems = [*composition.problems, *secret_problems(values)]
    config, errors = validate(values, whole_schema())
    add_problems(problems, errors)
    if config is None:
        raise usage_error(problems, origins)

    code, errors = load_task(config, task, stored=options.stored)
    add_problems(problems, [*errors, *unread_problems(code.prompt_settings, origins)])

    engine = choose_engine(config)
    case = Case(
        config,
        engine,
        code.set_size,
        code.least_generations,
        None if config.equipoise.data.data_path else code.training_prompts,
        to_train and not options.stored,
    )
    add_problems(problems, check_config(case))
    if problems:
        raise usage_error(problems, origins)
    # What is missing is among the problems.
    assert code.environment_class and code.data_module
    assert code.env_settings and code.prompt_settings
    return LoadedConfig(
        config=config,
        engine=engine,
        environment_class=code.environment_class,
        env_settings=code.env_settings,
        data_module=code.data_module,
        prompt_settings=code.prompt_settings,
        local_model_settings=code.local_model_settings,
        resolved=_resolved(values, config, engine, code),
        scheduler=_kept_scheduler(composition, engine),
        origins=origins,
        warnings=(
            *_outranked(sources, origins),
            *(() if config.equipoise.data.data_path else code.chosen),
            *(_nemo_rl_warnings(config) if engine == "nemo_rl" else ()),
            *unread_warnings(config, engine, origins),
        ),
        options=options,
    )


def _nemo_rl_warnings(config: Config) -> Iterator[str]:
    yield from nemo_rl_warnings(config)
    vllm = config.policy.generation.vllm_cfg
    if config.policy.generation.colocated.enabled and vllm.gpu_memory_utilization > _FULL:
        yield (
            f"policy.generation.vllm_cfg.gpu_memory_utilization {vllm.gpu_memory_utilization:g} "
            "leaves too little of a GPU that training shares; NeMo-RL's own recipes take 0.5 to 0.8"
        )
    if not config.checkpointing.save_optimizer:
        yield (
            "checkpointing.save_optimizer is false: a resumed run has a new optimizer, so it "
            "differs from one that was not stopped"
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


def _resolved(
    values: Mapping[str, Any], config: Config, engine: Engine, code: TaskCode
) -> dict[str, Any]:
    """Join what was set in NeMo-RL's sections and all of ours that is read, defaults included."""
    assert code.environment_class and code.env_settings and code.prompt_settings
    ours, local_model = config.equipoise, code.local_model_settings
    unread = unread_keys(code.prompt_settings)
    read = {
        k: v for k, v in code.prompt_settings.model_dump(mode="json").items() if k not in unread
    }
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


def _kept_scheduler(composition: Composition, engine: Engine) -> Any:
    """The schedule with its interpolations where the number of steps is all that they read.

    NeMo-RL's checkpoints hold the schedule that a run began with.
    """
    follows = set(composition.references.get("policy.scheduler", ())) == {"grpo.max_num_steps"}
    tree = composition.raw if follows and engine == "local" else composition.values
    return tree["policy"].get("scheduler")
