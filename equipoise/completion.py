"""What completes the words of `equipoise` in a shell: the verbs' flags, and those of training."""

from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import field, make_dataclass
from io import StringIO
from itertools import groupby
from typing import Annotated, Any, Literal, Union, get_type_hints

import tyro
from tyro.conf import Positional, subcommand

from equipoise.config.flags import build_parser, tasks
from equipoise.terminal.options import PARSING, option

SHELLS = ("bash", "zsh")


def completion(shell: str, verbs: Mapping[str, type[Any] | None]) -> str:
    """The script for a shell. Of a verb it takes the options; None has those of training alone."""
    script = StringIO()
    with redirect_stdout(script), suppress(SystemExit):
        tyro.cli(
            _tree({name: _completed(kind) for name, kind in verbs.items()}),
            prog="equipoise",
            args=("--tyro-write-completion", shell, "-"),
            config=PARSING,
        )
    return script.getvalue()


def _tree(verbs: Mapping[str, type[Any]]) -> Any:
    """One of the verbs, of which some have two words."""
    branches = []
    for first, names in groupby(verbs, lambda name: name.partition(" ")[0]):
        kinds = [
            Annotated[verbs[name], subcommand(name.removeprefix(f"{first} "))] for name in names
        ]
        branches.append(
            kinds[0] if first in verbs else Annotated[_one_of(kinds), subcommand(first)]
        )
    return _one_of(branches)


def _one_of(kinds: list[Any]) -> Any:
    return Union[tuple(kinds)]  # noqa: UP007  of as many as there are


def _completed(kind: type[Any] | None) -> type[Any]:
    """The options with the flags of training, where a verb takes those."""
    if kind is not None and "training" not in get_type_hints(kind):
        return kind
    task = Annotated[Literal[tuple(tasks())], Positional]  # type: ignore[valid-type]
    task_field = [("task", task)] if kind is None else []
    bases = (kind,) if kind else ()
    return make_dataclass("Training", [*task_field, *_training_flags()], bases=bases, frozen=True)


def _training_flags() -> Iterator[tuple[str, Any, Any]]:
    for action in build_parser("")._actions:
        if action.option_strings and action.dest not in ("help", "version"):
            values = Literal[tuple(action.choices)] if action.choices else str
            kind: Any = bool if action.nargs == 0 else values | None
            described = Annotated[kind, option(str(action.help))]
            yield action.dest, described, field(default=False if kind is bool else None)
