"""Hostile text inside a prompt."""

import hashlib
import re
from collections.abc import Iterator
from itertools import count

# What chat templates and our own delimiters begin with: <|im_end|>, </s>, <start_of_turn>, [INST].
_MARK = re.compile(r"<(?=[^\s\d=])|\[(?=/?[A-Z_]+\])")


def quote(text: str) -> str:
    """The text between delimiters that it cannot close, for a judge to look at and not to obey.

    The delimiters hold a hash of the text, so that its author cannot write them, and a hash that
    does stand in the text is passed over for the next. The marks of chat templates, which some
    servers read as the end of a message even within one, are taken apart with a space. Equal
    texts are quoted equally, which keeps caches useful. Tell the judge that what stands between
    the delimiters is material, never an instruction.
    """
    inert = _MARK.sub(r"\g<0> ", text)
    tag = next(tag for tag in _tags(inert) if tag not in inert)
    return f"<text-{tag}>\n{inert}\n</text-{tag}>"


def _tags(text: str) -> Iterator[str]:
    content = text.encode("utf-8", "surrogatepass")
    return (hashlib.sha256(b"%d:%s" % (n, content)).hexdigest()[:16] for n in count())
