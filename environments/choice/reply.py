"""The reply: free text, and a line with the option that the model chooses."""

import re
from collections.abc import Sequence

from environments.replies import Unparseable, UnreadableError, answer_of, without_fence

#: What a prompt says of the reply; `{labels}` are those of its options.
FORMAT_TEXT = 'End with a line of its own: "Answer: " and one of {labels}, and nothing more.'

#: A line with an answer, in Markdown or not, and what is on it after the colon.
_ANSWER = re.compile(r"[ \t*_#>`]{0,8}answer[ \t*_]{0,4}:(.*)", re.IGNORECASE | re.ASCII)
_AROUND = " \t\r\n*_`\"'.()[]"
_AFTER_LABEL = ".):"


def format_text(labels: Sequence[str]) -> str:
    """The sentence that a prompt ends with."""
    return FORMAT_TEXT.format(labels=", ".join(labels))


def parse_choice(completion: str, labels: Sequence[str], texts: Sequence[str]) -> int | Unparseable:
    """The number of the option that is chosen; never raises, and takes time linear in its length.

    The reply has a line `Answer: LABEL`, alone or with the option's own text after it. Several
    such lines have to agree. Nothing else in the reply is looked at, and nothing is guessed.
    """
    try:
        reply = without_fence(answer_of(completion))
    except UnreadableError as error:
        return Unparseable(str(error))
    answers = [match[1] for line in reply.split("\n") if (match := _ANSWER.fullmatch(line.strip()))]
    if not answers:
        return Unparseable("no line that begins with Answer:")
    choices = {_option(answer, labels, texts) for answer in answers}
    if len(choices) > 1:
        return Unparseable("several answers")
    (option,) = choices
    return Unparseable("the answer is none of the options") if option is None else option


def _option(answer: str, labels: Sequence[str], texts: Sequence[str]) -> int | None:
    """The option that the words after the colon are: its label, or that with its text."""
    words = answer.strip(_AROUND).lower()
    for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
        if words == label.lower():
            return number
        tail = words.removeprefix(label.lower())
        if tail != words and tail[:1] in _AFTER_LABEL and _plain(tail[1:]) == _plain(text):
            return number
    return None


def _plain(text: str) -> str:
    return text.strip(_AROUND).lower()
