"""The command line that all training recipes share: named flags and `key=value` words.

A named flag is a short way to set one key, or a few that belong together. What is more exact
wins: base.yaml, the scale, the task, the task at that scale, a user's own `--config` files in their
order, then named flags, then `key=value` words.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError, no_such_flag

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "nemo_configs"
#: In the package where it is installed, beside it in a checkout.
CONFIG_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / _INSTALLED.name

#: --model-size -> the model, and the scale that suits it unless --config names another.
MODEL_SIZES = {
    "small": ("Qwen/Qwen2.5-0.5B-Instruct", "small.yaml"),
    "base": ("Qwen/Qwen2.5-1.5B-Instruct", "small.yaml"),
    "large": ("meta-llama/Llama-3.3-70B-Instruct", "large.yaml"),
}
_LOCAL_SCALE, _NAMED_MODEL_SCALE = "local.yaml", "small.yaml"
_TASKS, _EVALUATIONS = "tasks", "evaluations"
#: Flags that count prompts.
_IN_SETS = frozenset({"--num-samples", "--batch-size"})
_LORA = "policy.dtensor_cfg.lora_cfg"
#: What a user of transformers looks for among the flags of training.
_PUSH = "--push-to-hub"

_EPILOG = """\
what wins:
  nemo_configs/base.yaml, the scale, nemo_configs/tasks/<task>.yaml, tasks/<task>.<scale>.yaml where
  there is one, your own --config files in their order, then the named flags, then key=value. A YAML
  of your own needs only the keys that it changes; with the word `scale` in it, it is a scale.

keys:
  the task's own are equipoise.data.* (its prompts) and env.<name>.* (its reward), with their
  meaning in docs/<task>.md; docs/configuration.md has the others. A key that does not exist is
  answered with the nearest one.

examples:
  {called}    # the small local model on this machine
  {called} --config nemo_configs/small.yaml    # a 0.5B model on one GPU
  {called} --config nemo_configs/small.yaml --config mine.yaml --run-name mine
  {called} --iterations 20 --seed 1 grpo.num_generations_per_prompt=16
  {called} --config nemo_configs/large.yaml --dry-run
  {called} --resume results/TASK/RUN
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A key that a named flag sets."""

    flag: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; `fitted` is what was made to fit it, and wins over it."""

    config_files: tuple[Path, ...]
    settings: tuple[Setting, ...] = ()
    assignments: tuple[str, ...] = ()
    fitted: tuple[Setting, ...] = ()
    resume: Path | None = None
    dry_run: bool = False
    ask: bool = False
    rehearse: bool = False
    planner_only: bool = False
    probe_only: bool = False


def tasks() -> list[str]:
    """The tasks that have a YAML."""
    return _named_in(_TASKS)


def check_task(name: str, remedy: str = "") -> None:
    """Raise `UsageError` with the tasks that there are, where this is none of them."""
    if name not in tasks():
        message = f"the first word is the task, one of {', '.join(tasks())}"
        raise UsageError(message + (f"; not {name}" if name else ""), remedy)


def evaluations() -> list[str]:
    """The tasks that are asked and never trained on: test sets of others, which they name."""
    return _named_in(_EVALUATIONS)


def task_file(task: str) -> Path:
    """The YAML of a task, of either kind."""
    return _file_in(_EVALUATIONS if task in evaluations() else _TASKS, task)


def scale_file(task: str, scale: str) -> Path:
    """The YAML of a task at a scale, which need not be there."""
    return _file_in(_TASKS, f"{task}.{scale}")


def _folders() -> tuple[Path, ...]:
    """Where configurations are: those that are shipped, and those beside a user's own code."""
    return CONFIG_FOLDER, Path.cwd() / CONFIG_FOLDER.name


def _file_in(kind: str, name: str) -> Path:
    paths = [folder / kind / f"{name}.yaml" for folder in _folders()]
    return next((path for path in paths if path.is_file()), paths[0])


def _named_in(kind: str) -> list[str]:
    names = {path.stem for folder in _folders() for path in (folder / kind).glob("*.yaml")}
    return sorted(name for name in names if "." not in name)


def parse_flags(
    description: str, arguments: Sequence[str] | None = None, *, prog: str | None = None
) -> Options:
    """The options of a recipe; wrong ones end the program with exit code 2.

    `arguments` are those of the process by default, and so is `prog`, what help calls it.
    """
    parser = build_parser(description, prog)
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        parser.error(_unknown(parser, unknown[0]))
    _refuse_contradictions(parser, given)
    return Options(
        config_files=_config_files(given),
        settings=tuple(_settings(given)),
        assignments=tuple(given.assignments),
        resume=given.resume,
        dry_run=given.dry_run,
        ask=given.ask,
        rehearse=given.rehearse,
        planner_only=given.planner_only,
    )


def whole_sets(options: Options, size: int) -> tuple[Options, list[str]]:
    """The options with --num-samples and --batch-size rounded up to sets of `size` prompts.

    With them comes what was rounded, in words. A `key=value` is taken as it is.
    """
    settings = tuple(_rounded(setting, size) for setting in options.settings)
    said = [
        f"{old.flag} {old.value} is not a whole number of counterfactual sets of {size}: taking "
        f"{new.value}"
        for old, new in zip(options.settings, settings, strict=True)
        if old != new
    ]
    return replace(options, settings=settings), said


def _rounded(setting: Setting, size: int) -> Setting:
    if setting.flag not in _IN_SETS or not isinstance(setting.value, int) or setting.value < 1:
        return setting
    return replace(setting, value=-(-setting.value // size) * size)


def build_parser(description: str, prog: str | None = None) -> argparse.ArgumentParser:
    """The parser, for `--help` and for documentation."""
    called = (prog or f"uv run {sys.argv[0]}").replace("TASK", tasks()[0])
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=_EPILOG.replace("{called}", called.replace("%", "%%")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "assignments", nargs="*", metavar="key=value", help="any key of the configuration"
    )
    parser.add_argument("--version", action="version", version=f"equipoise {_version()}")
    _add_run_flags(parser.add_argument_group("the run"))
    _add_model_flags(parser.add_argument_group("the model"))
    _add_training_flags(parser.add_argument_group("data and training"))
    _add_engine_flags(parser.add_argument_group("where it runs"))
    _add_wandb_flags(parser.add_argument_group("Weights & Biases"))
    return parser


def _add_run_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help="a scale or a YAML of your own; may be repeated, later ones win "
        "(default: nemo_configs/local.yaml, or the scale that suits the model)",
    )
    group.add_argument(
        "--output-dir", metavar="DIR", help="where <task>/<run name> goes (equipoise.output_dir)"
    )
    group.add_argument("--run-name", metavar="NAME", help="default: the model with date and time")
    group.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    group.add_argument("--seed", type=int, metavar="S", help="grpo.seed")
    group.add_argument(
        "--dry-run", action="store_true", help="show what would run, and start nothing"
    )
    group.add_argument(
        "--ask",
        action="store_true",
        help="with --dry-run: ask every other model one question, as every run does",
    )
    group.add_argument(
        "--planner-only",
        action="store_true",
        help="make the index and the plans that the task's prompts need, and stop",
    )
    group.add_argument(
        "--rehearse",
        action="store_true",
        help="take the resolved configuration through NeMo-RL's real loop on this CPU, with a tiny "
        "model for a few steps; needs a checkout of NeMo-RL at NEMO_RL_PATH",
    )


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    model = group.add_mutually_exclusive_group()
    sizes = ", ".join(f"{size} = {name}" for size, (name, _) in MODEL_SIZES.items())
    model.add_argument(
        "--model-size",
        choices=MODEL_SIZES,
        help=f"{sizes}; without --config, small and base bring nemo_configs/small.yaml, "
        "large brings nemo_configs/large.yaml",
    )
    model.add_argument(
        "--model-name",
        metavar="NAME",
        help="a Hugging Face name, a folder or smollm2 (policy.model_name); without --config it "
        "brings nemo_configs/small.yaml",
    )
    group.add_argument(
        "--lora-rank", type=int, metavar="R", help="train a LoRA of this rank, alpha = 2 R"
    )


def _add_training_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--num-samples", type=int, metavar="N", help="prompts to make (equipoise.data.num_samples)"
    )
    group.add_argument(
        "--iterations", type=int, metavar="N", help="GRPO steps (grpo.max_num_steps)"
    )
    group.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="prompts per step (grpo.num_prompts_per_step); the update takes all their generations",
    )
    group.add_argument(
        "--learning-rate", type=float, metavar="LR", help="policy.optimizer.kwargs.lr"
    )


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine",
        choices=("auto", "local", "nemo_rl"),
        help="auto takes NeMo-RL where it is installed and CUDA is there, or where the "
        "configuration asks for several GPUs; local is TRL on a CPU or one GPU",
    )
    group.add_argument("--use-nemo", action="store_true", help="the same as --engine nemo_rl")
    group.add_argument("--device", choices=("cpu", "cuda"), help="of the local engine")


def _add_wandb_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--wandb-entity", metavar="NAME", help="turns tracking on")
    group.add_argument("--wandb-project", metavar="NAME", help="turns tracking on")
    group.add_argument("--no-wandb", action="store_true", help="turns tracking off")


def _version() -> str:
    """Of the installed package; NeMo-RL's Python has our folders without it."""
    try:
        return metadata.version("equipoise")
    except metadata.PackageNotFoundError:
        return "unknown (not installed as a package)"


def _unknown(parser: argparse.ArgumentParser, word: str) -> str:
    if word.replace("_", "-").startswith(_PUSH):
        return f"there is no {_PUSH}: `equipoise push RUN REPO_ID` pushes a finished run"
    return no_such_flag(
        word, (flag for action in parser._actions for flag in action.option_strings)
    )


def _refuse_contradictions(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.use_nemo and given.engine not in (None, "nemo_rl"):
        parser.error(f"--use-nemo contradicts --engine {given.engine}")
    if given.no_wandb and (given.wandb_entity or given.wandb_project):
        parser.error("--no-wandb contradicts --wandb-entity and --wandb-project")
    if given.planner_only and (given.dry_run or given.rehearse):
        parser.error("--planner-only asks the planner and stops: give it alone")
    if given.ask and not given.dry_run:
        parser.error("--ask is for --dry-run: a run asks anyway before it generates")
    if given.rehearse and given.dry_run:
        parser.error("--rehearse runs and --dry-run starts nothing: take one of them")
    if given.rehearse and given.engine == "local":
        parser.error("--rehearse is for NeMo-RL and contradicts --engine local")
    if given.resume and given.config:
        parser.error("--resume takes the configuration of the run and contradicts --config")


def _config_files(given: argparse.Namespace) -> tuple[Path, ...]:
    """The files of --config, or the one scale that suits the model."""
    if given.resume:
        return (given.resume / "config.yaml",)
    if given.config:
        return tuple(given.config)
    scale = _LOCAL_SCALE
    if given.model_size:
        scale = MODEL_SIZES[given.model_size][1]
    elif given.model_name:
        scale = _NAMED_MODEL_SCALE
    return (CONFIG_FOLDER / scale,)


def _settings(given: argparse.Namespace) -> Iterator[Setting]:
    """What the named flags that were given set."""
    named = {
        "--output-dir": ("equipoise.output_dir", given.output_dir),
        "--run-name": ("equipoise.run_name", given.run_name),
        "--seed": ("grpo.seed", given.seed),
        "--model-name": ("policy.model_name", given.model_name),
        "--num-samples": ("equipoise.data.num_samples", given.num_samples),
        "--iterations": ("grpo.max_num_steps", given.iterations),
        "--batch-size": ("grpo.num_prompts_per_step", given.batch_size),
        "--learning-rate": ("policy.optimizer.kwargs.lr", given.learning_rate),
        "--engine": ("equipoise.engine", given.engine),
        "--device": ("equipoise.device", given.device),
        "--wandb-entity": ("logger.wandb.entity", given.wandb_entity),
        "--wandb-project": ("logger.wandb.project", given.wandb_project),
    }
    for flag, (key, value) in named.items():
        if value is not None:
            yield Setting(flag, key, value)
    if given.model_size:
        yield Setting("--model-size", "policy.model_name", MODEL_SIZES[given.model_size][0])
    if given.use_nemo or given.rehearse:
        flag = "--use-nemo" if given.use_nemo else "--rehearse"
        yield Setting(flag, "equipoise.engine", "nemo_rl")
    if given.lora_rank is not None:
        yield Setting("--lora-rank", f"{_LORA}.enabled", True)
        yield Setting("--lora-rank", f"{_LORA}.dim", given.lora_rank)
        yield Setting("--lora-rank", f"{_LORA}.alpha", 2 * given.lora_rank)
    if given.batch_size is not None:
        product = "${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}"
        yield Setting("--batch-size", "policy.train_global_batch_size", product)
    if given.no_wandb:
        yield Setting("--no-wandb", "logger.wandb_enabled", False)
    elif given.wandb_entity or given.wandb_project:
        flag = "--wandb-entity" if given.wandb_entity else "--wandb-project"
        yield Setting(flag, "logger.wandb_enabled", True)
