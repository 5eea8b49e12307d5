"""Keys that are gone, and names of other programs, say what to use."""

import re

import pytest

from equipoise.commands.main import VERBS, options_of
from equipoise.config.gone import FOREIGN_OPTIONS, FOREIGN_VERBS, KEYS, replacement
from equipoise.config.schema import Config
from equipoise.config.validate import known_keys, suggest, whole_schema
from equipoise.config.words import flags_of


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_gone_says_what_to_use(key):
    if key in known_keys(Config):
        pytest.skip("it goes in a later commit")
    assert suggest(Config, key.split("."), "") == KEYS[key]


def test_a_key_within_a_section_that_is_gone_says_it_too():
    key = next(iter(KEYS))
    assert replacement(f"{key}.0") == KEYS[key]
    assert not replacement("grpo.max_num_steps")


def test_other_programs_names_lead_to_keys_flags_and_verbs_that_there_are():
    keys = {*known_keys(whole_schema()), "env.TASK"}
    flags = {flag for verb in VERBS for flag in flags_of(options_of(verb))}
    texts = {*FOREIGN_OPTIONS.values(), *FOREIGN_VERBS.values()}
    for text in texts:
        named = re.findall(
            r"(?<![/-])\b(?:grpo|policy|loss_fn|data|cluster|logger|equipoise)\.[\w.]*\w", text
        )
        assert {*named} <= keys, text
        assert {*re.findall(r"(?<= )--[a-z-]+", text)} <= flags, text
        assert {*re.findall(r"`equipoise ([a-z-]+)", text)} <= {*VERBS}, text
    assert not FOREIGN_VERBS.keys() & VERBS.keys()
