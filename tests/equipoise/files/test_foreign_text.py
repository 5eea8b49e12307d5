"""Text from outside does nothing to a terminal."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.files.console import escaped

#: Clears the screen, sets the title, writes the clipboard, begins a sequence in eight bits, hides
#: what stood there, deletes, turns the direction, shows nothing, half a character, begins a line.
HOSTILE = ("\x1b[2J", "\x1b]0;pwn\x07", "\x1b]52;c;cm0gLXJmIH4=\x07", "\x9b2J", "all\rwell")
HOSTILE += ("abc\b\b\b", "\u202etxet", "\u2067txet", "in\u200bvisible \ufeff\U000e0041", "\ud800")
HOSTILE += ("a\u2028b",)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_visible_character_is_spelt_out(text):
    assert escaped(text).isprintable()
    assert "\\" in escaped(text)


@pytest.mark.parametrize("text", ["Größe: 1,2 µg", "שלום", "नमस्ते", "👩\u200d⚕️", "a\tb\nc", ""])
def test_what_people_write_stays(text):
    assert escaped(text) == text


@given(st.text())
def test_nothing_but_newlines_and_tabs_controls(text):
    controls = {c for c in escaped(text) if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
    assert controls <= {"\n", "\t"}
    escaped(text).encode()  # no half of a character is left


@pytest.mark.parametrize(
    "quote",
    [
        "logging.getLogger('library').warning('said: %s', text)",
        "warnings.warn(text)",
        "guarded(lambda reporter: {}[text])",
    ],
    ids=["log", "warning", "traceback"],
)
def test_logs_warnings_and_tracebacks_are_escaped_too(quote):
    lines = [
        "import logging, warnings",
        "from equipoise.files.exits import guarded",
        "guarded(lambda reporter: None)",
        r"text = 'no \x1b]52;c;eA==\x07 model'",
        quote,
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert r"no \x1b]52;c;eA==\x07 model" in printed
    assert "\x1b" not in printed
