"""The reply: reasoning, then one word, each in its tags; the format and the reader of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from environments.replies import UnreadableError, answer_of, has_words, without_fence

#: The answers of PubMedQA, in the order of every table.
Label = Literal["yes", "no", "maybe"]
LABELS: tuple[Label, ...] = get_args(Label)

#: The tags of a reply in their order.
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

#: What a prompt says of the reply; `{options}` are the words that may be the answer.
FORMAT_TEXT = """\
Reply in exactly this form, with nothing before it and nothing after it:
<reasoning>"the finding that decides, word for word" and what it says about the question</reasoning>
<answer>{options}</answer>"""

_REASONING_ENDS, _ANSWER_STARTS, _ANSWER_ENDS = 1, 2, 3
_RANK = {tag: rank for rank, tag in enumerate(TAGS)}
_TAG = re.compile(f"({'|'.join(map(re.escape, TAGS))})")
#: What may be around the word of an answer: white space, a full stop, quotes, Markdown.
_AROUND_A_WORD = " \t\r\n.!\"'*_`"


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed completion.

    `answer` is None where none can be read, and `problem` then says why. `tags_in_place` counts
    0 to 4; with all four the reply keeps the format.
    """

    answer: Label | None
    problem: str
    tags_in_place: int
    reasoning: str

    @property
    def keeps_format(self) -> bool:
        """Whether every tag is in its place."""
        return self.tags_in_place == len(TAGS)


def reply_text(reasoning: str, answer: str) -> str:
    """The reply in the form that was asked for."""
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>"


def parse_reply(completion: str, options: Sequence[Label] = LABELS) -> Reply:
    """Read a completion; never raises, and takes time linear in its length.

    Reasoning that a model sets apart before its reply, and a code fence around it, are no part of
    it. The answer is that of the last `<answer>` element with no other tag in it. It must be one of
    `options`, whole and in any letter case; nothing is searched for in it and nothing is guessed.
    """
    try:
        text = without_fence(answer_of(completion, own_tag="reasoning"))
    except UnreadableError as error:
        return Reply(None, str(error), 0, "")
    texts_and_tags = _TAG.split(text)
    texts, ranks = texts_and_tags[::2], [_RANK[tag] for tag in texts_and_tags[1::2]]
    answer, problem = _last_answer(texts, ranks, options)
    in_place = sum(_in_place(texts, ranks, rank, options) for rank in range(len(TAGS)))
    reasoning = texts[_REASONING_ENDS] if in_place == len(TAGS) else ""
    return Reply(answer, problem, in_place, reasoning)


def _last_answer(
    texts: Sequence[str], ranks: Sequence[int], options: Sequence[Label]
) -> tuple[Label | None, str]:
    """The last answer, or None and what is wrong with it; `texts[i]` comes before tag i."""
    for index in range(len(ranks) - 1, 0, -1):
        if ranks[index - 1] == _ANSWER_STARTS and ranks[index] == _ANSWER_ENDS:
            word = _word(texts[index])
            answer = next((option for option in options if option == word), None)
            return answer, "" if answer else "the answer is none of the options"
    return None, "no <answer> element"


def _in_place(
    texts: Sequence[str], ranks: Sequence[int], rank: int, options: Sequence[Label]
) -> bool:
    """Whether a tag occurs once, in its order among the others, after what belongs before it."""
    if ranks.count(rank) != 1:
        return False
    index = ranks.index(rank)
    in_order = max(ranks[:index], default=-1) < rank < min(ranks[index + 1 :], default=len(TAGS))
    return in_order and _fits(rank, texts[index], texts[-1], options)


def _fits(rank: int, before: str, ending: str, options: Sequence[Label]) -> bool:
    """Whether what comes before a tag belongs there.

    Nothing comes before `<reasoning>`, words before `</reasoning>`, nothing between that and
    `<answer>`, one of the options before `</answer>`, and nothing more after it.
    """
    if rank == _REASONING_ENDS:
        return has_words(before)
    if rank == _ANSWER_ENDS:
        return _word(before) in options and not ending.strip()
    return not before.strip()


def _word(text: str) -> str:
    """The text without what may be around it, in lower case."""
    # `lower`, not `casefold`: the latter would take the long s of "ye\u017f" for an s.
    return text.strip(_AROUND_A_WORD).lower()
