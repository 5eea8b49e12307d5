"""A chat template and control tokens: rendered in one place, refused before they spoil a run.

Imports no torch: NeMo-RL's actor renders too.
"""

import hashlib
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import TemplateError

from environments.base import Message, PromptRecord
from equipoise.files.errors import EquipoiseError

#: Exceptions that an untrusted template may raise.
_ERRORS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
#: The function by which a template reads the clock, and the variable with which some let it be set.
_CLOCK, _DATE = "strftime_now", "date_string"
_OTHER_CLOCK = "{% macro strftime_now(form) %}another day{% endmacro %}"
#: Time limit of one prompt, which takes milliseconds.
_MOST_SECONDS, _MOST_BYTES = 20, 10**9
_OUT_OF_MEMORY = 3
_FOLDED = (
    "the model's chat template has no system role: the system's text stands in front of the first "
    "user turn"
)


def render(tokenizer: Any, messages: Sequence[Message], **how: Any) -> str:
    """Write messages in the chat template, ready for the reply unless `how` says otherwise.

    Where the template refuses the role system, its text goes in front of the first user turn.
    Raises `EquipoiseError` for messages that the template refuses all the same.
    """
    try:
        return _apply(tokenizer, messages, how)
    except _ERRORS as error:
        try:
            return _apply(tokenizer, without_system(messages), how)
        except _ERRORS:
            roles = ", ".join(message["role"] for message in messages)
            raise EquipoiseError(
                "tokenizer.refused-messages",
                f"the chat template of {tokenizer.name_or_path} refuses the roles {roles}: {error}",
                "Take another model, or a template that takes them: "
                "policy.tokenizer.chat_template=FILE.jinja.",
            ) from error


def _apply(tokenizer: Any, messages: Sequence[Message], how: dict[str, Any]) -> str:
    chat = [dict(message) for message in messages]
    settings = {"tokenize": False, "add_generation_prompt": True, **how}
    return str(tokenizer.apply_chat_template(chat, **settings))


def _render_with_limits(tokenizer: Any, messages: Sequence[Message]) -> None:
    """Render once in a process of limited time and memory: nested loops may never end.

    Raises `EquipoiseError` for a template that exceeds them; other errors show later.
    """
    import psutil  # NeMo-RL's actor does not need it

    # Linux alone knows how much of the memory is data, and limits that.
    held = getattr(psutil.Process().memory_info(), "data", 0)
    child = os.fork()
    if child == 0:
        status = 0
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 1))
            if held:
                resource.setrlimit(resource.RLIMIT_DATA, (held + _MOST_BYTES,) * 2)
            _apply(tokenizer, messages, {})
        except MemoryError:
            status = _OUT_OF_MEMORY
        finally:
            os._exit(status)  # what else it raises is raised again by the parent
    _, ending = os.waitpid(child, 0)
    if os.WIFSIGNALED(ending) or os.WEXITSTATUS(ending) == _OUT_OF_MEMORY:
        raise EquipoiseError(
            "tokenizer.endless-template",
            f"the chat template of {tokenizer.name_or_path} takes more than {_MOST_SECONDS} s or "
            f"{_MOST_BYTES / 1e9:.0f} GB for one prompt",
            "Take another one: policy.tokenizer.chat_template=FILE.jinja.",
        )


def template_hash(tokenizer: Any) -> str:
    """SHA-256 of the chat template, which decides what a model reads."""
    return hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()


def control_tokens(tokenizer: Any) -> list[str]:
    """List what a tokenizer reads as a special token anywhere in a text.

    A single character is left out: it is a sign that some model pads with, and ordinary text has.
    """
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(token for token in added | set(tokenizer.all_special_tokens) if len(token) > 1)


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system's text in front of the first user turn; other messages are as they are."""
    if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
        return list(messages)
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{"role": "user", "content": text}, *messages[2:]]


def check_template(tokenizer: Any, records: Iterable[PromptRecord]) -> str:
    """Render a prompt of each form, and return a warning for the user, if any.

    Raises `EquipoiseError` for a template that refuses one, or that writes today's date into it:
    the baseline, a resumed run and the final evaluation would read different prompts.
    """
    note = ""
    prompts = {tuple(m["role"] for m in r.messages): r.messages for r in records}
    for messages in prompts.values():
        _render_with_limits(tokenizer, messages)
    for messages in prompts.values():
        text = render(tokenizer, messages)
        template = str(tokenizer.chat_template)
        # transformers 5.24 passes a template data only, no functions.
        another_day = {"chat_template": _OTHER_CLOCK + template}
        if _CLOCK in template and render(tokenizer, messages, **another_day) != text:
            raise EquipoiseError(
                "tokenizer.dated-template",
                f"the chat template of {tokenizer.name_or_path} writes today's date into every "
                "prompt, so the model would read other prompts tomorrow",
                f"Set policy.tokenizer.chat_template_kwargs.{_DATE}='26 Jul 2024'."
                if _DATE in template
                else "Write a fixed date in place of strftime_now into a copy of the template: "
                "policy.tokenizer.chat_template=FILE.jinja.",
            )
        if messages[0]["role"] == "system":
            folded = render(tokenizer, without_system(messages))
            note = note or (_FOLDED if folded == text else "")
    return note
