"""The command `equipoise`: a verb for each thing that a person does.

    equipoise train TASK --config nemo_configs/local.yaml
    equipoise evaluate all --model NAME
    equipoise VERB --help

A verb is imported when it runs, so that help is printed at once.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from equipoise.files.console import Reporter


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line: its help, and the function of a module that runs it."""

    help: str
    module: str
    function: str = "run"


VERBS: Mapping[str, Verb] = {
    "train": Verb(
        "train a model on a task, and evaluate it before and after", "equipoise.commands.train"
    ),
    "probe": Verb(
        "find what a reward pays to trivial replies", "equipoise.commands.train", "probe"
    ),
    "prepare": Verb("make a task's prompts without a run", "equipoise.commands.prepare", "prepare"),
    "seal": Verb("check your own prompts", "equipoise.commands.prepare", "seal"),
    "evaluate": Verb("evaluate models without training", "equipoise.commands.evaluate", "evaluate"),
    "compare": Verb("compare runs and models in pairs", "equipoise.commands.compare", "compare"),
    "gate": Verb(
        "test whether a new model is worse than the old one", "equipoise.commands.compare", "gate"
    ),
    "runs": Verb("list runs", "equipoise.commands.compare", "runs"),
    "view": Verb("open the report of a run", "equipoise.commands.compare", "view"),
    "calibrate": Verb("measure the errors of a judge", "equipoise.commands.compare", "calibrate"),
    "convert": Verb("convert a checkpoint into a model that loads", "equipoise.commands.convert"),
    "export gym": Verb("export a task for NeMo Gym", "equipoise.commands.export.task", "gym"),
    "export verifiers": Verb(
        "export a task for verifiers", "equipoise.commands.export.task", "verifiers"
    ),
    "doctor": Verb("find what would stop a run", "equipoise.commands.doctor.command"),
}
_HELP = ("-h", "--help")
#: What NeMo-RL's Python lacks; containers/nemo_rl.sh installs it beside.
BESIDE = ("bm25s", "regopy", "tyro", "docstring_parser", "typeguard")


def main(arguments: Sequence[str] | None = None, about: str | None = None) -> None:
    """Run the verb of the first words, and exit: 0, 1 for a failure, 2 for wrong usage.

    A recipe names its task as the second word, and describes itself in `about`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or [_HELP[0]]
    if words[0] in _HELP:
        sys.stdout.write(_usage())
        sys.exit(0)
    name = next((name for name in VERBS if words[: name.count(" ") + 1] == name.split()), None)
    if name is None:
        sys.stderr.write(f"error: {_no_such_verb(words[0])}\n")
        sys.exit(2)
    words = words[name.count(" ") + 1 :]
    script = Path(sys.argv[0])
    recipe = script.parent.name == "recipes"
    prog = f"uv run recipes/{script.name}" if recipe else f"equipoise {name}"
    if "--offline" in words:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the Hub's client is imported
    try:
        sys.exit(_start(name, words, prog, about))
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: this Python has no {error.name}\n"
            f"Start it with `uv run {prog.removeprefix('uv run ')}`, which installs what is needed."
        )


def options_of(name: str) -> type[Any]:
    """The options that a verb takes."""
    kind: type[Any] = get_type_hints(_function_of(name))["options"]
    return kind


def _function_of(name: str) -> Any:
    return getattr(import_module(VERBS[name].module), VERBS[name].function)


def _start(name: str, words: Sequence[str], prog: str, about: str | None) -> int:
    from dotenv import load_dotenv

    from equipoise.files.exits import guarded

    # Before a verb is imported: the hub's client reads HF_HOME when it is.
    load_dotenv(Path.cwd() / ".env")

    if missing := [package for package in BESIDE if find_spec(package) is None]:
        from equipoise.files.nemo_rl import complete_packages

        return guarded(lambda _: complete_packages(missing))
    from equipoise.config.words import read_options

    kind, run, task = options_of(name), _function_of(name), ""
    read, typed = kind, f"equipoise {name}"
    if about:  # of a recipe, which takes the words after its task
        task, *words = words
        read, typed = get_type_hints(kind)["training"], f"{typed} TASK"

    def as_called(examples: str) -> str:
        from equipoise.config.compose import tasks

        return examples.replace(typed, prog).replace("TASK", task or tasks()[0])

    def act(reporter: "Reporter") -> None:
        options = read_options(read, words, prog, as_called, about)
        run(kind(task, options) if about else options, reporter)

    return guarded(act)


def _no_such_verb(word: str) -> str:
    """Say what to use in place of an unknown verb, or else which verbs there are."""
    from equipoise.config.gone import FOREIGN_VERBS, normalized
    from equipoise.config.gone import VERBS as GONE

    if actions := [verb for verb in VERBS if verb.startswith(f"{word} ")]:
        return f"say what to {word}: {' or '.join(actions)}"
    if text := GONE.get(word) or FOREIGN_VERBS.get(normalized(word)):
        return f"there is no verb {word}: {text}"
    near = get_close_matches(word, VERBS, n=1)
    meant = f", did you mean {near[0]}?" if near else f"\n{_usage()}"
    return f"there is no verb {word}{meant}"


def _usage() -> str:
    width = max(map(len, VERBS)) + 2
    verbs = "".join(f"  {name:{width}}{verb.help}\n" for name, verb in VERBS.items())
    return f"usage: equipoise VERB ...\n\n{verbs}\nequipoise VERB --help shows the words of one\n"
