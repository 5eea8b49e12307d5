"""The words of a command line, read by tyro: those of any verb, and those of training.

The options of a verb are a frozen dataclass. Each field has its type, help and metavar; the
docstring says what the verb does, and after `Examples:` how it is called.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import metadata
from io import StringIO
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import tyro
from tyro.conf import (
    DisallowNone,
    FlagCreatePairsOff,
    Positional,
    Suppress,
    UseAppendAction,
    arg,
    create_mutex_group,
)

from equipoise.config.compose import CONFIG_FOLDER, Options, Setting, tasks
from equipoise.config.gone import no_such_flag
from equipoise.files.errors import UsageError

Kind = TypeVar("Kind")
#: Flags as they are, without a --no- for each; None is not a word.
PARSING = (FlagCreatePairsOff, DisallowNone)
_SAYS_NOTHING = frozenset({"", "None", "False", "True"})
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: What tyro says of a word that is not a number, and of the choices, in any order and with None.
_NO_NUMBER = re.compile(r"no type matching (\S+) could be instantiated from \[(.*?)\]")
_CHOICES = re.compile(r"(?<=Expected one of \()[^)]*")


def option(help: str, metavar: str | None = None) -> object:  # noqa: A002
    """Describe a field. Its default is shown where that says something."""
    return tyro.conf.arg(
        help=help,
        metavar=metavar,
        help_behavior_hint=lambda value: "" if value in _SAYS_NOTHING else f"(default: {value})",
    )


RunFolder = Annotated[Path, Positional, option("the folder of a run", "RUN")]
Destination = Annotated[Path, Positional, option("a new folder for the model", "DEST")]
DryRun = Annotated[bool, option("show what would be done, and do nothing")]
OwnCode = Annotated[
    str | None, option("a module of yours that scores, where a run names one", "MODULE")
]
#: A flag that may be given several times.
Repeated = Annotated[tuple[str, ...], UseAppendAction]
Files = Annotated[tuple[Path, ...], UseAppendAction]
#: They may stand between flags.
Assignments = Annotated[
    tuple[str, ...], Positional, option("any key of the configuration", "key=value")
]


def read_options(
    kind: type[Kind],
    words: Sequence[str],
    prog: str = "equipoise",
    as_called: Callable[[str], str] = str,
    about: str | None = None,
) -> Kind:
    """Read the words of a verb. Raises `UsageError`; --help is printed and raises `SystemExit`.

    `prog` is what a user has called, and `as_called` puts the examples in that user's words.
    `about` is said in place of the docstring's first lines.
    """
    first, _, details = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    complaint = StringIO()
    try:
        with redirect_stderr(complaint):
            options, unread = tyro.cli(
                kind,
                prog=prog,
                description=about or first,
                args=list(words),
                return_unknown_args=True,
                config=PARSING,
            )
    except SystemExit as ended:
        if ended.code:
            raise UsageError(
                "options.invalid", _unboxed(complaint.getvalue()), _see_help(prog)
            ) from None
        text, heading, examples = details.rpartition("Examples:\n")
        sys.stdout.write(f"\n{text}{heading.lower()}{as_called(examples)}\n")
        raise
    if flags := [word for word in unread if word.startswith("-")]:
        raise UsageError("options.unknown-flag", no_such_flag(flags[0], flags_of(kind)), "")
    return cast(Kind, _with_unread(options, unread, prog))


def _with_unread(options: Any, unread: Sequence[str], prog: str) -> Any:
    """The options with the words that tyro left, where a field takes them."""
    if not unread:
        return options
    if hasattr(options, "training"):
        return replace(options, training=_with_unread(options.training, unread, prog))
    if not hasattr(options, "assignments"):
        raise UsageError(
            "options.extra-word", f"there is a word too many: {unread[0]}", _see_help(prog)
        )
    return replace(options, assignments=(*options.assignments, *unread))


def flags_of(kind: Any) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if is_dataclass(group := getattr(hints[field.name], "__origin__", None)):
            yield from flags_of(group)
        elif not {*getattr(hints[field.name], "__metadata__", ())} & {Positional, Suppress}:
            yield f"--{'no-' if field.default is True else ''}{field.name.replace('_', '-')}"


def _unboxed(text: str) -> str:
    """Join what tyro's box says between its title and the next rule."""
    lines = [line.strip("│ ") for line in _ANSI.sub("", text).splitlines()[1:]]
    message = dropwhile(_is_rule, lines)
    sentence = " ".join(takewhile(lambda line: not _is_rule(line), message)).replace(" .", ".")
    sentence = _NO_NUMBER.sub(
        lambda match: f"invalid {match[1].lower()} value: {match[2]}", sentence
    )
    return _CHOICES.sub(
        lambda match: ", ".join(sorted({*match[0].split(", ")} - {"'None'"})), sentence
    )


def _is_rule(line: str) -> bool:
    return not line.strip("─-")


def _see_help(prog: str) -> str:
    return f"{prog} --help shows the words."


# --- Training -------------------------------------------------------------------------------------
# Every verb that loads a run's configuration has these words. A named flag is a short way to set
# one key, or a few that belong together.

#: --model-size -> the model, and the scale that suits it unless --config names another.
MODEL_SIZES = {
    "small": ("Qwen/Qwen2.5-0.5B-Instruct", "small.yaml"),
    "base": ("Qwen/Qwen2.5-1.5B-Instruct", "small.yaml"),
    "large": ("meta-llama/Llama-3.3-70B-Instruct", "large.yaml"),
}
_SIZES = ", ".join(f"{size} = {name}" for size, (name, _) in MODEL_SIZES.items())
_LORA = "policy.dtensor_cfg.lora_cfg"
_MODEL = create_mutex_group(required=False, title="the model")


def sets(key: str, metavar: str | None = None, help: str = "") -> tuple[object, ...]:  # noqa: A002
    """Describe a flag that sets a key, which its help names."""
    return key, option(f"{help} ({key})" if help else key, metavar)


@dataclass(frozen=True, slots=True)
class TrainingWords:
    """Train a model on a task, and evaluate it before and after.

    what wins:
      nemo_configs/base.yaml, the scale, nemo_configs/tasks/<task>.yaml, tasks/<task>.<scale>.yaml
      where there is one, your own --config files in their order, then the named flags, then
      key=value. A YAML of your own needs only the keys that it changes.

    keys:
      the task's own are equipoise.data.* (its prompts) and env.<name>.* (its reward), with their
      meaning in docs/<task>.md; docs/configuration.md has the others. A key that does not exist is
      answered with the nearest one.

    Examples:
        equipoise train TASK    # the small local model on this machine
        equipoise train TASK --config nemo_configs/small.yaml    # a 0.5B model on one GPU
        equipoise train TASK --config nemo_configs/small.yaml --config mine.yaml --run-name mine
        equipoise train TASK --iterations 20 --seed 1 grpo.num_generations_per_prompt=16
        equipoise train TASK --config nemo_configs/large.yaml --dry-run
        equipoise train TASK --resume results/TASK/RUN
    """

    assignments: Assignments = ()
    version: Annotated[bool, option("show the version of Equipoise")] = False
    config: Annotated[
        Files,
        option(
            "a scale or a YAML of your own; may be repeated, later ones win "
            "(default: nemo_configs/local.yaml, or the scale that suits the model)",
            "FILE",
        ),
    ] = ()
    output_dir: Annotated[
        str | None, *sets("equipoise.output_dir", "DIR", "where <task>/<run name> goes")
    ] = None
    run_name: Annotated[
        str | None, *sets("equipoise.run_name", "NAME", "default: the model with date and time")
    ] = None
    resume: Annotated[Path | None, option("continue the run in this folder", "DIR")] = None
    seed: Annotated[int | None, *sets("grpo.seed", "S")] = None
    dry_run: Annotated[bool, option("show what would run, and start nothing")] = False
    ask: Annotated[
        bool, option("with --dry-run: ask every other model one question, as every run does")
    ] = False
    planner_only: Annotated[
        bool, option("make the index and the plans that the task's prompts need, and stop")
    ] = False
    rehearse: Annotated[
        bool,
        option(
            "take the resolved configuration through NeMo-RL's real loop on this CPU, with a tiny "
            "model for a few steps; needs a checkout of NeMo-RL at NEMO_RL_PATH"
        ),
    ] = False
    model_size: Annotated[
        Literal[tuple(MODEL_SIZES)] | None,  # type: ignore[valid-type]
        _MODEL,
        option(
            f"{_SIZES}; without --config, small and base bring nemo_configs/small.yaml, "
            "large brings nemo_configs/large.yaml",
            "SIZE",
        ),
    ] = None
    model_name: Annotated[
        str | None,
        _MODEL,
        *sets(
            "policy.model_name",
            "NAME",
            "a Hugging Face name, a folder or smollm2; without --config it brings "
            "nemo_configs/small.yaml",
        ),
    ] = None
    lora_rank: Annotated[int | None, option("train a LoRA of this rank, alpha = 2 R", "R")] = None
    num_samples: Annotated[
        int | None, *sets("equipoise.data.num_samples", "N", "prompts to make")
    ] = None
    iterations: Annotated[int | None, *sets("grpo.max_num_steps", "N", "GRPO steps")] = None
    batch_size: Annotated[
        int | None,
        *sets(
            "grpo.num_prompts_per_step",
            "N",
            "prompts per step; the update takes all their generations",
        ),
    ] = None
    learning_rate: Annotated[float | None, *sets("policy.optimizer.kwargs.lr", "LR")] = None
    engine: Annotated[
        Literal["auto", "local", "nemo_rl"] | None,
        *sets(
            "equipoise.engine",
            "NAME",
            "local is TRL on a CPU or one GPU; auto takes nemo_rl where it is installed and CUDA "
            "is there, or where the configuration asks for several GPUs",
        ),
    ] = None
    use_nemo: Annotated[bool, option("the same as --engine nemo_rl")] = False
    device: Annotated[
        Literal["cpu", "cuda"] | None, *sets("equipoise.device", help="of the local engine")
    ] = None
    wandb_entity: Annotated[
        str | None, *sets("logger.wandb.entity", "NAME", "turns tracking on")
    ] = None
    wandb_project: Annotated[
        str | None, *sets("logger.wandb.project", "NAME", "turns tracking on")
    ] = None
    no_wandb: Annotated[bool, option("turns tracking off")] = False

    def as_options(self) -> Options:
        """Translate them to options. Raises `UsageError` where two contradict."""
        if self.version:
            version = "unknown (not installed as a package)"  # as in NeMo-RL's Python
            with suppress(metadata.PackageNotFoundError):
                version = metadata.version("equipoise")
            sys.stdout.write(f"equipoise {version}\n")
            sys.exit(0)
        if contradiction := next(self._contradictions(), ""):
            raise UsageError("config.contradictory-flags", contradiction, "")
        scale = "small.yaml" if self.model_name else "local.yaml"
        if self.model_size:
            scale = MODEL_SIZES[self.model_size][1]
        files = self.config or (CONFIG_FOLDER / scale,)
        return Options(
            config_files=(self.resume / "config.yaml",) if self.resume else files,
            settings=tuple(self._settings()),
            assignments=self.assignments,
            resume=self.resume,
            dry_run=self.dry_run,
            ask=self.ask,
            rehearse=self.rehearse,
            planner_only=self.planner_only,
        )

    def _contradictions(self) -> Iterator[str]:
        if self.use_nemo and self.engine not in (None, "nemo_rl"):
            yield f"--use-nemo contradicts --engine {self.engine}"
        if self.no_wandb and (self.wandb_entity or self.wandb_project):
            yield "--no-wandb contradicts --wandb-entity and --wandb-project"
        if self.planner_only and (self.dry_run or self.rehearse):
            yield "--planner-only asks the planner and stops: give it alone"
        if self.ask and not self.dry_run:
            yield "--ask is for --dry-run: a run asks anyway before it generates"
        if self.rehearse and self.dry_run:
            yield "--rehearse runs and --dry-run starts nothing: take one of them"
        if self.rehearse and self.engine == "local":
            yield "--rehearse is for NeMo-RL and contradicts --engine local"
        if self.resume and self.config:
            yield "--resume takes the configuration of the run and contradicts --config"

    def _settings(self) -> Iterator[Setting]:
        """Yield the flags' settings."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            key = next((part for part in hint.__metadata__ if isinstance(part, str)), None)
            if key and getattr(self, name) is not None:
                yield Setting(f"--{name.replace('_', '-')}", key, getattr(self, name))
        if self.model_size:
            yield Setting("--model-size", "policy.model_name", MODEL_SIZES[self.model_size][0])
        if self.use_nemo or self.rehearse:
            flag = "--use-nemo" if self.use_nemo else "--rehearse"
            yield Setting(flag, "equipoise.engine", "nemo_rl")
        if self.lora_rank is not None:
            yield Setting("--lora-rank", f"{_LORA}.enabled", True)
            yield Setting("--lora-rank", f"{_LORA}.dim", self.lora_rank)
            yield Setting("--lora-rank", f"{_LORA}.alpha", 2 * self.lora_rank)
        if self.batch_size is not None:
            product = "${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}"
            yield Setting("--batch-size", "policy.train_global_batch_size", product)
        if self.no_wandb:
            yield Setting("--no-wandb", "logger.wandb_enabled", False)
        elif self.wandb_entity or self.wandb_project:
            flag = "--wandb-entity" if self.wandb_entity else "--wandb-project"
            yield Setting(flag, "logger.wandb_enabled", True)


#: Their flags are those of the verb that has them.
Training = Annotated[TrainingWords, arg(name="")]
#: None where the first word is missing, see `check_task`.
Task = Annotated[str | None, Positional, option(f"one of {', '.join(tasks())}", "TASK")]


def parse_flags(description: str, words: Sequence[str]) -> Options:
    return read_options(TrainingWords, words, about=description).as_options()
