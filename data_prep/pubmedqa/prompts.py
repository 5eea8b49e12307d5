"""The prompt of an item: what is asked, the abstract with its sections' labels, the question."""

from collections.abc import Sequence

from data_prep.pubmedqa.fitting import estimate_tokens, fit_sections
from data_prep.pubmedqa.items import Item, Section
from environments.base import Message, PromptRecord
from environments.pubmedqa import FORMAT_TEXT

TASK = "pubmedqa"

_QUESTION = "Question: "
_INSTRUCTION = (
    "You answer a question of biomedical research from the abstract of a study, which is given "
    "without its conclusion. Weigh the study's own findings and numbers. Answer {options}."
)
_OPTIONS = {
    2: ("yes or no", "yes or no"),
    3: ("yes, no, or, where the findings do not settle the question, maybe", "yes, no or maybe"),
}
#: The tokens of a chat template around two messages.
_TEMPLATE_TOKENS = 20


def prompt_record(item: Item, split: str, classes: int, budget: int) -> PromptRecord:
    """The record of an item whose whole prompt is estimated at `budget` tokens at most.

    Raises `ValueError` if the question leaves no room for an abstract.
    """
    system = system_prompt(classes)
    left = budget - _TEMPLATE_TOKENS - estimate_tokens(system) - estimate_tokens(_user("", item))
    if left < 1:
        raise ValueError(
            f"the question of {item.id} alone fills the prompt: raise prompt_tokens above "
            f"{budget - left:,}"
        )
    context = context_text(fit_sections(item.sections, left))
    messages: tuple[Message, ...] = (
        {"role": "system", "content": system},
        {"role": "user", "content": _user(context, item)},
    )
    metadata = {"gold": item.gold, "context": context}
    return PromptRecord(item.id, TASK, messages, item.id, split, metadata)


def system_prompt(classes: int) -> str:
    """What is asked, with the words that may be answered."""
    meant, written = _OPTIONS[classes]
    return f"{_INSTRUCTION.format(options=meant)}\n{FORMAT_TEXT.format(options=written)}"


def context_text(sections: Sequence[Section]) -> str:
    """The abstract, a line for each section."""
    return "\n".join(f"{s.label}: {s.text}" if s.label else s.text for s in sections)


def question_of(record: PromptRecord) -> str:
    """The question of a prompt: its last line."""
    return record.messages[-1]["content"].rpartition("\n")[2].removeprefix(_QUESTION)


def _user(context: str, item: Item) -> str:
    return f"Context:\n{context}\n\n{_QUESTION}{item.question}"
