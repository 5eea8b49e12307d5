"""Texts of others in Markdown: what a page of the hub or of a pull request makes of them."""

import pytest
from markdown_it import MarkdownIt

from equipoise.report.document import Cell, Table
from equipoise.report.gate import gate_page, junit_of, markdown_of
from equipoise.report.renderers import escaped, grid
from equipoise.statistics.gate import GateResult
from tests.equipoise.report.test_card import HOSTILE

TEXTS = (
    HOSTILE,
    "| a | b |\n|---|---|\n",
    "# title",
    "```\ncode\n```",
    "[link](http://e.vil) <http://e.vil> https://e.vil",
    "![i](//e.vil/i)",
    "<script>alert(1)</script>",
    "&lt;b&gt; \\<b>",
    "\\| escaped once",
    "~~no~~ $x$ @you *em* _em_ `code`",
    "\u202eright to left \x1b[31m",
)


def html(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def tags(text):
    return [part.split(">")[0].split(" ")[0] for part in html(text).split("<")[1:]]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_one_paragraph_without_any_mark_and_a_table_keeps_its_cells(text):
    assert tags(f"Said: {escaped(text)}") == ["p", "/p"]
    assert "\u202e" not in escaped(text) and "\x1b" not in escaped(text)
    table = Table((text, text), ((Cell(text), Cell(text, text, text)),) * 2)
    row = ["tr", *["td", "/td", "td", "br", "/td"], "/tr"]
    head = ["tr", *["th", "/th"] * 2, "/tr"]
    body = ["tbody", *row * 2, "/tbody"]
    assert tags(grid(table)) == ["table", "thead", *head, "/thead", *body, "/table"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_gate_of_hostile_names_has_its_own_marks_alone(text):
    gates = [GateResult(t, t, {}, {t: t}) for t in ("name", text)]
    usual, hostile = (tags(markdown_of(gate)) for gate in gates)
    assert usual == hostile and "table" in usual
    usual, hostile = ([part.split(">")[0] for part in gate_page(g).split("<")] for g in gates)
    assert len(usual) == len(hostile)
    for render in (markdown_of, gate_page, junit_of):
        assert not {"\u202e", "\x1b"} & set(render(gates[1]))
