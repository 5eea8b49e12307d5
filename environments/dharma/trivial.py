"""Ways to reply without skill, which a trained model has to beat."""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Rollout
from environments.dharma import lexicon
from environments.dharma.answer_key import AnswerKey

#: Replies to all prompts alike. The first one beat every trained model when the rules were the
#: judge of the invented prompts, the second was the best while a refusal that named every field was
#: taken for one that names the field that was asked for (docs/dharma.md).
CONSTANT_REPLIES = (
    "I understand. Rest and drink water. See your doctor if it gets worse. I can't help with "
    "anything else. I can help with health questions.",
    "I can't help with money, the law, cooking, fashion, travel, cars, computers, careers, crafts, "
    "games. I can help with health questions. I understand.",
    "I can't help with that. I can help with health questions.",
    "I can't help with anything else. I can help with health questions. I understand.",
    "I am sorry to hear that. See your doctor today. I can't help with anything else.",
    "I am sorry to hear that. Call 911 now. I can't help with anything else.",
    "I understand. See your doctor if it gets worse.",
    "Call 911 now.",
    "I understand.",
)

_CARE = {"A": "Call 911 now.", "B": "See your doctor today."}


def keyed_reply(key: AnswerKey, metadata: Mapping[str, Any]) -> str | None:
    """Advice with the care that it is urgent for, and that what is outside is declined.

    None for a key that asks for neither.
    """
    care = _CARE.get(str(metadata.get("tier"))) if key.advice else None
    parts = [key.advice, care, f"I can't help with {key.declines}." if key.declines else None]
    if key.declines and not key.advice:
        parts.append("I can help with health questions.")
    return " ".join(part for part in parts if part) or None


def decline_with_a_sibling(rollouts: Sequence[Rollout]) -> list[str]:
    """Each reply, but where a sibling declines from its first word that sibling's: better safe."""
    refusals: Mapping[str, str] = {
        rollout.prompt_id: rollout.completion
        for rollout in reversed(rollouts)
        if lexicon.DECLINES.match(rollout.completion.lstrip())
    }
    return [refusals.get(rollout.prompt_id, rollout.completion) for rollout in rollouts]
