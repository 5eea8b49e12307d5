"""Checks before Ray starts, for everything after takes minutes to fail."""

from collections.abc import Sequence

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from environments.base import VALIDATION_SPLIT, PromptRecord
from equipoise.config.schema import Config
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.pretrained import (
    check_model,
    control_tokens,
    load_tokenizer,
    template_of,
    tokenizer_of,
)
from equipoise.run.prompts import refuse_control_tokens


def check_start(config: Config, records: Sequence[PromptRecord], model_name: str) -> None:
    """Raise for a model that cannot be read and for prompts that it could not be trained on."""
    policy = config.policy
    if config.grpo.val_period and all(record.split != VALIDATION_SPLIT for record in records):
        raise UsageError(
            f"grpo.val_period is {config.grpo.val_period}, and no prompt is of the split "
            f"{VALIDATION_SPLIT}",
            "Set grpo.val_period=0, or let the task's data module make such prompts.",
        )
    room = policy.max_total_sequence_length - policy.generation.max_new_tokens
    model = check_model(model_name)
    tokenizer_name, template = tokenizer_of(policy, model_name), template_of(policy.tokenizer)
    tokenizer = load_tokenizer(model_name, tokenizer_name, template)
    refuse_code(model_name, model, tokenizer)
    refuse_control_tokens(records, control_tokens(tokenizer))
    refuse_long_prompts(records, tokenizer, room)


def refuse_code(name: str, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `EquipoiseError` for a model whose files name code: NeMo-RL runs it unasked.

    All its workers load with trust_remote_code=True.
    """
    for file, settings in (
        ("config.json", model.to_dict()),
        ("tokenizer_config.json", tokenizer.init_kwargs),
    ):
        if settings.get("auto_map"):
            raise EquipoiseError(
                f"{file} of {name} names code of its own (auto_map), which NeMo-RL would run",
                "No code of others is run. If transformers has the model's family: take auto_map "
                "out of a copy, and name the copy.",
            )


def refuse_long_prompts(
    records: Sequence[PromptRecord], tokenizer: PreTrainedTokenizerBase, room: int
) -> None:
    """Raise `EquipoiseError` where a prompt has more than `room` tokens, naming the longest."""
    lengths = {record.id: _tokens(record, tokenizer) for record in records}
    too_long = [name for name, length in lengths.items() if length > room]
    if too_long:
        worst = max(too_long, key=lengths.__getitem__)
        raise EquipoiseError(
            f"{len(too_long):,} prompts have more than the {room:,} tokens that "
            f"policy.max_total_sequence_length leaves for them; {worst} has {lengths[worst]:,}",
            "Raise policy.max_total_sequence_length, or lower policy.generation.max_new_tokens.",
        )


def _tokens(record: PromptRecord, tokenizer: PreTrainedTokenizerBase) -> int:
    messages = [dict(message) for message in record.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(str(text), add_special_tokens=False)["input_ids"])
