"""The options of a verb: a frozen dataclass, from which tyro makes the parser and its help.

Each field has its type, help and metavar. The docstring of the class says what the verb does, and
after `Examples:` how it is called.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass, replace
from io import StringIO
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import tyro
from tyro.conf import DisallowNone, FlagCreatePairsOff, Positional, Suppress, UseAppendAction

from equipoise.files.errors import UsageError, no_such_flag

Options = TypeVar("Options")
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
    kind: type[Options],
    words: Sequence[str],
    prog: str = "equipoise",
    as_called: Callable[[str], str] = str,
    about: str | None = None,
) -> Options:
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
    return cast(Options, _with_unread(options, unread, prog))


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
