"""What must not reach a log or a tracker."""

import pytest

from equipoise.config.secrets import redacted, redacted_tree

KEY = "sk-0123456789"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    monkeypatch.setenv("OTHER_API_KEY", f"{KEY}-and-more")
    monkeypatch.setenv("SHORT_TOKEN", "none")
    monkeypatch.setenv("EDITOR", "a-common-editor")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for Bearer {KEY}", "401 for Bearer ***"),
        (f"{KEY}-and-more, {KEY}", "***, ***"),
        ("none is a-common-editor", "none is a-common-editor"),
        ("http://me:pass@host/v1 and a@b.c", "http://***@host/v1 and a@b.c"),
        ("https://token@host, http://host/@x", "https://***@host, http://host/@x"),
    ],
)
def test_keys_and_passwords_are_blotted_out_and_nothing_else(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_tree_loses_what_its_names_call_secret() -> None:
    tree = {
        "endpoint": {"api_key_env": "JUDGE_API_KEY", "url": "http://u:p@h", "api_key": "short"},
        "list": [{"password": "x"}, KEY, 3, None, True],
        "max_new_tokens": 5,
        "kl_token": 7,
    }
    assert redacted_tree(tree) == {
        "endpoint": {"api_key_env": "JUDGE_API_KEY", "url": "http://***@h", "api_key": "***"},
        "list": [{"password": "***"}, "***", 3, None, True],
        "max_new_tokens": 5,
        "kl_token": 7,
    }
