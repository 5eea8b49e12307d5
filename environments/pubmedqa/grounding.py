"""How much of the reasoning is in the abstract: a share of its content words and numbers."""

import re
from functools import lru_cache

# A word of four letters or more is a content word unless it is one of these; a number keeps its
# decimals, so that 0.5 is not found in 0.53.
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]{4,}")
_FUNCTION_WORDS = frozenset(
    """about after also although among because been before being between both could does during
    each from further have hence however into less more most much only other over same shall should
    since some such than that their them then there therefore these they this those through thus
    very were what when where whether which while whose will with within without would""".split()  # noqa: SIM905
)


def grounding(reasoning: str, context: str) -> float:
    """The share, 0 to 1, of the distinct content words and numbers of `reasoning` in `context`.

    0 where the reasoning has none. It counts words, not what is said with them: it is a guard
    against invented numbers, not a proof that the reasoning follows.
    """
    said = _content(reasoning)
    return len(said & _context_content(context)) / len(said) if said else 0.0


@lru_cache(maxsize=1024)  # the generations of a prompt share their abstract
def _context_content(context: str) -> frozenset[str]:
    return _content(context)


def _content(text: str) -> frozenset[str]:
    return frozenset(_TOKEN.findall(text.lower())) - _FUNCTION_WORDS
