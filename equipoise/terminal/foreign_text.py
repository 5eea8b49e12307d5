"""Text from outside: completions, servers' errors, model names, paths. All of it is hostile input.

A terminal obeys control characters (ESC may write into the clipboard), and marks that reverse the
direction of writing make a line read as what it is not.
"""

import unicodedata

#: Control characters, formatting ones, lone surrogates, separators of lines that are no newline.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Newline and tab, and the joiners that scripts and emoji are written with.
_HARMLESS = frozenset("\n\t\u200c\u200d")


def is_visible(character: str) -> bool:
    """Whether a character shows itself and does nothing else."""
    return character in _HARMLESS or unicodedata.category(character) not in _UNSEEN


def escaped(text: str) -> str:
    r"""The text with every character that is not visible written as Python would: `\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_visible(c) else ascii(c)[1:-1] for c in text)
