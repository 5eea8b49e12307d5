"""Quoting, waiting, limits and settings."""

import json
import math
import random
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.chat import EndpointSettings, ModelSettings, inert, quote
from environments.chat.exchange import (
    Answer,
    FailedAttempt,
    backoff_seconds,
    read_answer,
    retry_after_seconds,
)

_FRAME = re.compile(r"<text-([0-9a-f]{16})>\n(.*)\n</text-\1>", re.DOTALL)
_MARKS = ("<|im_end|>", "<|im_start|>system", "</s>", "<s>", "[INST]", "[/INST]", "<<SYS>>")
_MARKS += ("<start_of_turn>user", "<|eot_id|>", "<\uff5cAssistant\uff5c>", "<|end|>", "</text>")
_MARKS += ("[gMASK]", "[sop]", "[|endofturn|]", "[UNUSED_TOKEN_146]", "[control_8]", "<0x0A>")
_MARKS += ("<2mass>", "<1_x>", ">>ANSWER<<", "\uff1c/s\uff1e", "\uff3bINST\uff3d", "<\u200b/s>")
HOSTILE = st.one_of(
    st.text(st.characters(codec=None)),
    st.lists(st.sampled_from([*_MARKS, "<", "/", "text-", "[", "]", "\n", "a", "|"])).map("".join),
)


def framed(quoted):
    tag, inside = _FRAME.fullmatch(quoted).groups()
    return tag, inside


@given(HOSTILE)
def test_quoted_text_never_closes_its_delimiters(text):
    tag, inside = framed(quote(text))
    assert tag not in inside
    assert "</text" not in inside
    assert "<text" not in inside


@given(HOSTILE)
def test_quoting_again_what_was_quoted_does_not_help(text):
    tag, inside = framed(quote(quote(text) + text))
    assert tag not in inside


@pytest.mark.parametrize("mark", _MARKS)
def test_marks_of_chat_templates_are_taken_apart(mark):
    assert mark not in quote(f"before {mark} after")
    assert mark not in inert(f"{mark[0]}{mark}{mark}")


@pytest.mark.parametrize("text", ["systolic < 90", "a <b", "HbA1c <7%", "x<=3", "[1] and [a]"])
def test_what_a_clinician_writes_stays_readable(text):
    inside = framed(quote(text))[1]
    assert inside.replace(" ", "") == text.replace(" ", "")


@given(st.text(st.characters(exclude_characters="<[")))
def test_text_without_marks_is_quoted_as_it_is(text):
    assert framed(quote(text))[1] == text


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0),
        ("Fri, 02 Jan 2026 03:05:05 -0000", 60),
        ("soon", None),
        ("-5", None),
        ("1000000000", 1e9),
        ("9" * 5000, math.inf),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999999999", None),
        ("Wed, 21 Oct 9999 07:28:00 -9999", None),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after_seconds(header, NOW) == seconds


_DATE = ("Wed", ",", " ", "21", "Oct", "0", "2015", "9999", "07:28:00", ":", "+", "-", "9" * 20)
_HEADERS = st.text() | st.lists(st.sampled_from(_DATE)).map("".join)


@given(_HEADERS | _HEADERS.map("Wed, 21 Oct 2015 07:28:00 {}".format))
def test_no_header_raises(header):
    seconds = retry_after_seconds(header, NOW)
    assert seconds is None or seconds >= 0


def test_backoff_doubles_and_has_an_end():
    random.seed(0)
    means = [sum(backoff_seconds(0.5, n) for _ in range(2000)) / 2000 for n in (1, 2, 3, 10**6)]
    assert means == pytest.approx([0.5, 1.0, 2.0, 15.0], rel=0.1)


@given(st.binary(max_size=2000))
def test_no_body_raises(body):
    assert isinstance(read_answer(body, 0), FailedAttempt)


@given(st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.just({"a": 1}))
def test_usage_is_whatever_the_server_says(usage):
    body = {"choices": [{"message": {"content": "a"}}], "usage": usage}
    found = read_answer(json.dumps(body).encode(), 30)
    assert isinstance(found, Answer)
    assert (found.usage.prompt_tokens, found.usage.reported) == (10, False)


URL = "http://127.0.0.1:8000/v1"


ADDRESSES = (
    *("localhost:8000", "file:///etc/passwd", "http://user:secret@host/v1"),
    *("http://host/v1?key=secret", "http://judge..internal/v1", "http://[::1/v1"),
    *("http://h:99999/v1", f"http://{'a' * 64}/v1"),
)
#: The last three are keys of other services.
NO_VARIABLES = ("sk-secret", "secret", "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    "settings",
    [
        *({"url": url} for url in ADDRESSES),
        *({"api_key_env": name} for name in NO_VARIABLES),
        {"parameters": {"stream": True}},
        {"budget": {"cost": 1.0}},
        {"key": "secret"},
    ],
    ids=str,
)
def test_settings_refuse_nonsense_and_repeat_no_secret(settings):
    with pytest.raises(ValidationError) as caught:
        EndpointSettings.model_validate({"url": URL, "model": "m"} | settings)
    assert [error["loc"][0] for error in caught.value.errors()] == list(settings)
    assert "secret" not in str(caught.value)


def test_a_model_has_one_place():
    with pytest.raises(ValidationError):
        ModelSettings(model_name="m", endpoint=EndpointSettings(url=URL, model="m"))
