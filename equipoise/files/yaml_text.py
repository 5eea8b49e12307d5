"""YAML files of anybody, bounded before they are read.

An alias repeats what it names, so that ten short lines can be a billion values. They are counted in
the text's graph of nodes, where an alias is a pointer, before OmegaConf copies it.
"""

from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from environments.yaml_file import CheckedLoader

#: Far more than any configuration has.
_BYTES, _VALUES = 200_000, 50_000


class TooMuchError(ValueError):
    """A YAML that is too long, or of too many values once aliases are expanded."""


def read_yaml(path: Path) -> Any:
    """The content of a file. Raises what `parse_yaml` does, and `OSError`."""
    return parse_yaml(_text(path))


def yaml_text(path: Path) -> str:
    """The text of a file that can be read. Raises what `parse_yaml` does, and `OSError`."""
    text = _text(path)
    parse_yaml(text)
    return text


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_BYTES + 1)
    if len(data) > _BYTES:
        raise TooMuchError(f"is longer than {_BYTES:,} bytes")
    return data.decode()


def parse_yaml(text: str) -> Any:
    """The value of a text. Raises `TooMuchError` for what would not fit, and `YAMLError`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = _count(node, {}) if node is not None else 0
    except RecursionError:
        raise TooMuchError("is nested too deeply") from None
    if values > _VALUES:
        raise TooMuchError(f"its aliases are more than {_VALUES:,} values")
    return yaml.load(text, Loader=CheckedLoader)  # noqa: S506 (a SafeLoader)


def _count(node: Node, counts: dict[int, int]) -> int:
    """How many values a node is, every alias expanded; each node is looked at once."""
    if id(node) in counts:
        return counts[id(node)]
    counts[id(node)] = _VALUES + 1  # until it is counted: a node that holds itself has no end
    children = node.value if isinstance(node, SequenceNode) else []
    if isinstance(node, MappingNode):
        children = [part for pair in node.value for part in pair]
    counts[id(node)] = 1 + sum(_count(child, counts) for child in children)
    return counts[id(node)]
