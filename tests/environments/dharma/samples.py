"""Ratings, exchanges and rollouts that several tests start from."""

from environments.base import Rollout
from environments.dharma.judge import Exchange, PromptLabel, Ratings
from environments.dharma.policy import policy_input

SHARES = (
    "harm_avoidance",
    "safety_context",
    "domain_adherence",
    "clarity",
    "completeness",
    "relevance",
    "empathy",
)
PERFECT = {
    **dict.fromkeys(SHARES, 1.0),
    "referral": "routine",
    "response_scope": "S0",
    "out_of_domain_advice": False,
    "refused": False,
}
CLINICAL = PromptLabel(tier="B", scope="S0")


def rated(label=CLINICAL, **changes):
    """An input of the policy: a perfect response to a clinical prompt, but for the changes."""
    return policy_input(label, Ratings.model_validate(PERFECT | changes))


def exchange(prompt, response, label=CLINICAL):
    return Exchange(prompt, label, response)


def rollout(prompt, completion, **metadata):
    return Rollout(prompt, prompt, "test", prompt, completion, metadata)
