"""A document as one self-contained HTML page, all text of which the template escapes."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from equipoise.report.document import Document

_MARKS = {
    **dict.fromkeys(("worse", "guard lost"), "\N{BALLOT X}"),
    **dict.fromkeys(("better", "guard kept"), "\N{CHECK MARK}"),
    "changed": "\N{LEFT RIGHT ARROW}",
    "no evidence": "\N{EN DASH}",
    "guard not shown": "?",
}


def page(document: Document) -> str:
    """The page. The same document gives the same bytes."""
    environment = templates()
    environment.filters["marked"] = marked
    return environment.get_template("template.html.j2").render(document=document) + "\n"


def templates(**options: Any) -> Environment:
    """The templates beside this file; what they show is escaped."""
    return Environment(
        loader=PackageLoader("equipoise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def marked(text: str) -> str:
    """A verdict, or the outcome of a guard, with a mark, so that no reader depends on colour."""
    mark = next((mark for word, mark in _MARKS.items() if text.startswith(word)), "")
    return f"{mark} {text}".lstrip()
