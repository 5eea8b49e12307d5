"""Prompts of one seed are made once: half a second each, in most of these tests."""

from functools import cache

import pytest

from data_prep.dharma import invented


@pytest.fixture(scope="session", autouse=True)
def _pools_of_a_seed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invented, "_pools", cache(invented._pools))
        yield
