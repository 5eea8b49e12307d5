"""How text fits a width: words, figures and names stay whole, and tables keep every figure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

_WORD = re.compile(r"^\s+|\S+\s*")
#: A part of a name such as parse_rate or of a path, with what joins it to the next one.
_PART = re.compile(r"[^\s_/]*[\s_/]+|[^\s_/]+")
#: Longer parts than this are cut where a table is narrow: paths and names of models, no figure.
_LONGEST_PART = 24
#: What rich draws around a column, and at a table's edge.
_AROUND, _EDGE = 3, 1


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: text, which may fold, or figures, which are never cut.

    A narrow table does without the `spare` columns, the one with the highest number first.
    """

    name: str
    folds: bool = False
    spare: int = 0


def words(text: str) -> list[str]:
    """The words of a line, each with the space after it."""
    return _WORD.findall(text)


def fill(parts: Sequence[str], width: int, indent: str = "") -> list[str]:
    """Lines of whole parts, all but the first indented; a part that is too long stays whole."""
    lines = [""]
    for part in parts:
        if lines[-1].strip() and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append(indent)
        lines[-1] += part
    return [line.rstrip() for line in lines]


def fold(text: str, width: int) -> str:
    """The text in lines of at most `width`, broken between words and within long names."""
    return "\n".join(
        line
        for paragraph in text.split("\n")
        for line in fill(
            [p for part in _PART.findall(paragraph) for p in _chopped(part, width)], width
        )
    )


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns that are shown, by their place, and how wide; empty where no table fits."""
    cells = [[row[index] for row in rows] for index in range(len(columns))]
    narrowest = [_least(column, texts) for column, texts in zip(columns, cells, strict=True)]
    natural = [_longest([c.name, *texts]) for c, texts in zip(columns, cells, strict=True)]
    visible = list(range(len(columns)))
    while (room := width - _EDGE - sum(narrowest[i] + _AROUND for i in visible)) < 0:
        last = max(visible, key=lambda i: columns[i].spare)
        if not columns[last].spare:
            return {}
        visible.remove(last)
    widths = {index: narrowest[index] for index in visible}
    for index in sorted(visible, key=lambda i: not columns[i].folds):
        more = min(room, max(0, natural[index] - narrowest[index]))
        widths[index] += more
        room -= more
    return widths


def _least(column: Column, cells: Sequence[str]) -> int:
    """How narrow a column may be: its names and words fold, its figures do not."""
    texts = (column.name, *cells) if column.folds else (column.name,)
    parts = [part.rstrip() for text in texts for part in _PART.findall(text)]
    folded = min(_LONGEST_PART, _longest(parts))
    return folded if column.folds else max(folded, _longest(cells))


def _longest(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _chopped(part: str, width: int) -> list[str]:
    return chop_cells(part, width) if cell_len(part.rstrip()) > width else [part]
