"""A prompt's text and tokens, as NeMo-RL reads and trains on them."""

from typing import Any

from environments.base import PromptRecord


def templated(record: PromptRecord, tokenizer: Any) -> tuple[str, Any]:
    """Return the prompt in the tokenizer's chat template, and its tokens, a tensor [length]."""
    text = tokenizer.apply_chat_template(
        [dict(message) for message in record.messages],
        tokenize=False,
        add_generation_prompt=True,
        add_special_tokens=False,
    )
    return text, tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
