"""Chat templates that refuse a role, or that write the date."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from environments.base import PromptRecord
from equipoise.files import template
from equipoise.files.template import check_template, render
from tests.refusals import refusal

CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"})
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
#: Gemma-2's and Llama-3.2's, in short.
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}" + TURNS
)
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }}" + TURNS
)


def tokenizer(text):
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0})))
    made.chat_template = text
    return made


def prompt(*messages):
    return PromptRecord("p", "toy", messages, "p", "train")


def test_a_system_text_goes_in_front_of_the_first_user_turn_where_its_role_is_refused():
    refusing = tokenizer(NO_SYSTEM)
    assert render(refusing, CHAT) == "<user>Be brief.\n\nWhy?"
    assert "no system role" in check_template(refusing, [prompt(*CHAT)])
    assert render(tokenizer(TURNS), CHAT) == "<system>Be brief.<user>Why?"
    assert check_template(tokenizer(TURNS), [prompt(*CHAT)]) == ""


@pytest.mark.parametrize("refusing", ["{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ a.b.c }}"])
def test_a_template_that_refuses_every_chat_is_one_error(refusing):
    with refusal("tokenizer.refused-messages", "system, user"):
        check_template(tokenizer(refusing), [prompt(*CHAT)])
    with refusal("tokenizer.refused-messages", "the roles user"):
        render(tokenizer(refusing), CHAT[1:])


@pytest.mark.parametrize(
    "endless",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
    ],
)
def test_a_template_without_an_end_is_refused(endless, monkeypatch):
    monkeypatch.setattr(template, "_MOST_SECONDS", 1)
    with refusal("tokenizer.endless-template"):
        check_template(tokenizer(endless + TURNS), [prompt(*CHAT)])


def test_a_template_that_writes_the_date_is_refused_until_it_is_pinned():
    dated = tokenizer(DATED)
    with refusal("tokenizer.dated-template", "chat_template_kwargs.date_string"):
        check_template(dated, [prompt(*CHAT)])
    check_template(tokenizer(f"{{% set date_string = '26 Jul 2024' %}}{DATED}"), [prompt(*CHAT)])
    with refusal("tokenizer.dated-template", "chat_template=FILE.jinja"):
        check_template(tokenizer("{{ strftime_now('%Y-%m-%d') }}" + TURNS), [prompt(*CHAT)])
