"""Negations and reversals in a sentence, by which the scripted judge tells "never" from advice.

Advice has negations of its own ("Do not scratch the bite"), so nothing is read as wrong for being
negated: a sentence has a polarity, and one that is to give a piece of advice must have that of the
advice. Where it errs it errs against the reply, as what is said in doubt, as a question, on a
condition or by another person is no advice either.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
#: Words that negate what follows them.
_NOT_WORDS = """
    not never no nor neither none nobody nothing nowhere cannot hardly barely rarely seldom
    scarcely dont doesnt didnt cant wont shouldnt mustnt aint nope
"""
_NOT = frozenset(_NOT_WORDS.split())
#: Words that turn round, doubt or dismiss what stands anywhere in their sentence.
_REVERSES_WORDS = """
    against allegedly avoid avoided avoiding bad banned beware cease contrary danger dangerous
    deadly delay disregard except fail false falsely foolish fools forbidden forget harm harmful
    ignore incorrect instead joke joking kidding lest lie lied lies lying mistake mistaken myth
    needless nonsense opposite pointless postpone prohibited quit rather refrain refuse reject
    reverse rubbish skip stop stopped stupid supposedly terrible unless unnecessary untrue unwise
    useless without worst wrong
"""
_REVERSES = frozenset(_REVERSES_WORDS.split())
#: Words by which advice is only supposed, or is another person's.
_SUPPOSES_WORDS = """
    if whether suppose supposing imagine pretend claim claimed claims believe believed believes
    say says said think thinks thought
"""
_SUPPOSES = frozenset(_SUPPOSES_WORDS.split())
#: What may stand between a negation and what it negates.
_FILLERS = frozenset({"ever", "even", "just", "really", "please", "to", "do", "be", "so"})
_REASSURES = re.compile(
    r"\b(?:do not|don't|never|no need to|not) (?:worry|panic|hesitate to|hesitate|forget to|wait|"
    r"be (?:afraid|scared|alarmed))\b|\bno (?:worries|problem|doubt)\b|\bnot (?:a|your) doctor\b"
)
#: "if it does not stop": a condition on which care is needed, no negation of the care.
_CONDITION = re.compile(
    r"\b(?:if|when|until) (?:the |your )?[a-z]{1,20} (?:do|does|did|is|are|has)(?: not|n't) "
    r"[a-z]{1,20}\b"
)
_NO_SIGNS = re.compile("[\u274c\u2716\u2717\u2718\u26d4\U0001f6ab\U0001f6d1\U0001f44e\U0001f645]")
_FOREIGN_LETTER = re.compile(r"[^\W\d_a-z]")

_POINTS_AT = (
    r"(?:any of |all of |all |everything )?(?:this|that|these|those|it|so|the (?:above|following|"
    r"advice|rest|previous|last)|what (?:i|was|comes|follows))"
)
_RETRACTS = re.compile(
    rf"\b(?:(?:not|never|n't|nobody) (?:ever |please |to |should |really )?(?:do|doing|follow|"
    rf"following|believe|trust|try|listen to|take|heed|use|say|said|mean|meant) {_POINTS_AT}"
    rf"|(?:ignore|disregard|forget|reject|retract|dismiss|scratch|skip|avoid|stop|against) "
    rf"(?:doing )?{_POINTS_AT}"
    r"|(?:this|that|it|which|advice|above|following|all|everything|i|just|only)"
    r"(?: is| was| would be| are| were| am)?(?: [a-z]{1,12}){0,2} (?:wrong|false|untrue|incorrect|"
    r"lies?|lied|lying|myth|mistake|mistaken|nonsense|rubbish|joke|joking|kidding|bad advice|"
    r"bad idea|harmful|dangerous|not (?:true|so|right|the case))"
    r"|(?:the|quite|exactly) (?:very )?(?:opposite|contrary|reverse))\b"
)
#: A sentence of so few words that negates something negates what was said.
_ABRUPT = 3
_DANGLES = frozenset({"to", "ever", "circumstances"})

Polarity = Mapping[tuple[str, str], int]


def polarity(text: str) -> Polarity:
    """Count what a sentence negates, reverses or only supposes."""
    plain = _plain(text)
    words = _WORD.findall(_REASSURES.sub(" ", plain))
    turns: Counter[tuple[str, str]] = Counter()
    for n, word in enumerate(words):
        if _negates(word):
            following = (word for word in words[n + 1 : n + 5] if word not in _FILLERS)
            turns["not", next(following, "")] += 1  # and which word is negated
        elif word in _REVERSES or word in _SUPPOSES:
            turns[word, ""] += 1
    if _NO_SIGNS.search(plain) or _FOREIGN_LETTER.search(plain):
        turns["sign", ""] += 1
    if plain.rstrip("\"')\u201d ").endswith("?"):
        turns["question", ""] += 1
    return turns


def turns_round(clause: str) -> bool:
    """Whether a clause negates what it says; a condition ("if it does not stop") does not."""
    return any(word not in _SUPPOSES for word, _ in polarity(_CONDITION.sub(" ", _plain(clause))))


def retracts(text: str) -> bool:
    """Whether a sentence takes back what the others say: "Ignore that.", "Not."."""
    plain = _plain(text)
    if _RETRACTS.search(plain.replace("n't", " n't")):
        return True
    words = _WORD.findall(_REASSURES.sub(" ", plain))
    cues = [word for word in words if _negates(word) or word in _REVERSES]
    return bool(cues) and (len(words) <= _ABRUPT or words[-1] in _DANGLES or _negates(words[-1]))


def _negates(word: str) -> bool:
    return word in _NOT or word.endswith("n't")


def _plain(text: str) -> str:
    """Small letters in their plain form, without invisible characters."""
    folded = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    return "".join(c for c in folded if unicodedata.category(c) != "Cf")
