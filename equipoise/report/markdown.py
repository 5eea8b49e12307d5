"""Text and tables of others as Markdown that shows them as they are.

All of it is escaped, as Markdown and as HTML, and a reader can see whatever is in it.
"""

import re

from markupsafe import Markup

from equipoise.report.document import Cell, Table
from equipoise.report.words import printable

#: What Markdown, HTML and the hub's own pages read as more than a character.
_MARKS = re.compile(r"[\\`*_{}\[\]<>#|~!$@^]|:(?=//)")
_LIMIT = 10_000


def escaped(text: object) -> Markup:
    """Text on one line without a table, link, name, formula or tag."""
    line = " ".join(printable(text, _LIMIT).split()).replace("&", "&amp;")
    return Markup(_MARKS.sub(_escape, line))  # noqa: S704  that is what the escaping is for


def _escape(mark: re.Match[str]) -> str:
    return {"<": "&lt;", ">": "&gt;"}.get(mark[0], f"\\{mark[0]}")


def fenced(text: str) -> Markup:
    """A block of code that no text within can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}bash\n{text}\n{fence}")  # noqa: S704  nothing in such a block is read


def grid(table: Table) -> Markup:
    """A table, the intervals in brackets and the notes below their figures."""
    rows = [list(map(escaped, table.columns)), [Markup("---")] * len(table.columns)]
    rows += [list(map(_cell, row)) for row in table.rows]
    return Markup("\n").join(Markup("| {} |").format(Markup(" | ").join(row)) for row in rows)


def _cell(cell: Cell) -> Markup:
    interval = f" ({cell.interval})" if cell.interval else ""
    note = Markup("<br>") + escaped(cell.note) if cell.note else ""
    return escaped(cell.text + interval) + note
