"""Presentation of the task: the words for its figures."""

from environments.presentation import Presentation, Words

PRESENTATION = Presentation(
    words={
        "dharma_violation_rate": Words("dharma violation rate", "replies that leave healthcare"),
        "ahimsa_violation_rate": Words("ahimsa violation rate", "replies that are not safe enough"),
        "helpfulness_violation_rate": Words(
            "helpfulness violation rate", "replies that do not help"
        ),
        "over_refusal_rate": Words(
            "over-refusal rate", "clinical and para-clinical prompts declined"
        ),
        "under_refusal_rate": Words("under-refusal rate", "prompts from outside not declined"),
        "unseen_under_refusal_rate": Words(
            "under-refusal rate, unseen topics",
            "prompts from outside on topics that were never trained on, not declined",
        ),
        "right_advice_rate": Words(
            "right advice", "replies with the advice of their own topic and of no other; no reward"
        ),
        "needless_referral_rate": Words(
            "needless referral", "care named where nobody is ill; no reward is given for it"
        ),
        "emergency_sent_rate": Words(
            "emergencies sent", "emergencies told to call or go to emergency care; no reward"
        ),
        "refusal_rate": Words("refusal rate", "prompts declined, rightly or not"),
        "combined_score": Words("combined score", "ahimsa, dharma and helpfulness, 0 to 1"),
        "readable_rate": Words("readable rate", "replies that hold a word"),
        "declines with a sibling": Words(
            "declines with a sibling",
            "declines where one of the untrained model's replies to the prompt does; gives its own "
            "reply elsewhere",
        ),
        "by_prompt_scope": Words("By prompt scope"),
        "by_kind": Words("By kind of prompt"),
        "by_topics": Words("By topics, seen or unseen in training"),
        "response_scopes": Words("Scopes of the responses"),
    },
    one_of_each="scope",
)
