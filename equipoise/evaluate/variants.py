"""Other ways to ask a model the same: each is a row beside the plain one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_prep.splits import seeded_digest
from environments.base import TRAIN_SPLIT, Message, PromptRecord, Yardstick
from environments.contract import Environment
from equipoise.errors import UsageError

Ask = Callable[[PromptRecord], PromptRecord]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to ask: a text for the system message, examples, blinded, held to a JSON schema.

    With a `yardstick` the variants of a set differ in that and in nothing else.
    """

    name: str
    system: str = ""
    shots: int = 0
    blinded: bool = False
    constrained: bool = False
    yardstick: Yardstick | None = None


PLAIN = Variant("plain")


def unsuited(variant: Variant, environment: type[Environment], *, endpoint: bool) -> str:
    """Why a task or a model has no such variant; empty where it has."""
    if variant.blinded and not environment.offers(Environment.blinded):
        return f"{environment.name} knows nothing in its prompts that must not decide"
    if variant.yardstick and not environment.offers(Environment.reworded):
        return f"{environment.name} has no counterfactual sets in which something means nothing"
    if variant.shots and not environment.offers(Environment.example_reply):
        return f"{environment.name} knows no good reply to show as an example"
    if variant.constrained and not environment.offers(Environment.reply_schema):
        return f"the replies of {environment.name} are no JSON, so there is no schema for them"
    if variant.constrained and not endpoint:
        return "only an endpoint is held to a JSON schema"
    return ""


def schema_of(variant: Variant, environment: Environment) -> Mapping[str, Any] | None:
    """The schema that the replies are held to."""
    return environment.reply_schema() if variant.constrained else None


def make_ask(
    variant: Variant, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> Ask:
    """Return the function from a plain prompt to the variant's. Raises `UsageError`.

    Examples are drawn from the training prompts among `records`, and from nothing else.
    """
    examples = _examples(variant.shots, environment, records, seed)
    version = _versions(records) if variant.yardstick else {}

    def ask(record: PromptRecord) -> PromptRecord:
        messages = record.messages
        if variant.yardstick:
            first, number = version[record.id]
            messages = environment.reworded(first, variant.yardstick, number)
        if variant.blinded:
            messages = environment.blinded(record)
        if variant.system:
            messages = _with_system(messages, variant.system)
        return replace(record, messages=_with_examples(messages, examples))

    return ask


def _versions(records: Sequence[PromptRecord]) -> dict[str, tuple[PromptRecord, int]]:
    """Each prompt's id -> the first variant of its set, which stands for all, and its own place."""
    first: dict[str, PromptRecord] = {}
    size: Counter[str] = Counter()
    version = {}
    for record in records:
        version[record.id] = first.setdefault(record.set_id, record), size[record.set_id]
        size[record.set_id] += 1
    return version


def _examples(
    shots: int, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> list[Message]:
    """So many prompts of different sets, each followed by a good reply."""
    if not shots:
        return []
    one_of_each = {r.set_id: r for r in reversed(records) if r.split == TRAIN_SPLIT}
    names = sorted(one_of_each, key=lambda name: seeded_digest(seed, name))
    messages: list[Message] = []
    for record in map(one_of_each.__getitem__, names):
        if (reply := environment.example_reply(record)) is None:
            continue
        messages += (message for message in record.messages if message["role"] != "system")
        messages.append({"role": "assistant", "content": reply})
        if sum(message["role"] == "assistant" for message in messages) == shots:
            return messages
    raise UsageError(
        f"there are no {shots} training prompts with a known good reply",
        "Ask for fewer with --few-shot, or make more prompts with equipoise.data.num_samples.",
    )


def _with_system(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The text as the system message, or after the one that is there."""
    first, remaining = messages[0], messages[1:]
    if first["role"] != "system":
        return ({"role": "system", "content": text}, *messages)
    return ({"role": "system", "content": f"{first['content']}\n\n{text}"}, *remaining)


def _with_examples(messages: Sequence[Message], examples: Sequence[Message]) -> tuple[Message, ...]:
    """The examples between the system message, if any, and the question."""
    start = 1 if messages[0]["role"] == "system" else 0
    return (*messages[:start], *examples, *messages[start:])
