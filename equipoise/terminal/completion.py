"""Shell completion for `equipoise`: the verbs and their flags."""

from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from io import StringIO
from itertools import groupby
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from equipoise.terminal.options import PARSING

SHELLS = ("bash", "zsh")


def completion(shell: str, verbs: Mapping[str, type[Any]]) -> str:
    """The script for a shell, from the options of each verb."""
    script = StringIO()
    with redirect_stdout(script), suppress(SystemExit):
        tyro.cli(
            _tree(verbs),
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
