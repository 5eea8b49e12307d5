"""Rules that every reader of a model's reply shares."""

import json
import math
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.chat import EndpointSettings
from environments.dharma.policy import SHIPPED, PolicySettings
from environments.measurement import Blocks, Mean, measure_means
from environments.rag import RagSettings
from environments.replies import (
    MAX_MARKS,
    MAX_OBJECT_CHARACTERS,
    MAX_OBJECT_OPENINGS,
    MAX_TEXT_CHARACTERS,
    UnreadableError,
    has_text,
    has_words,
    normal_text,
    read_object,
)

GOOD = '{"a": 1}'


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "Expecting value"),
        ("```", "Expecting value"),
        (f"So: {GOOD}", "Expecting value"),
        (f"{GOOD} {GOOD}", "Extra data"),
        (f"[{GOOD}]", "not a JSON object"),
        ('{"a": 1, "a": 1}', "a key is given twice"),
        ('{"b": {"a": 1, "a": 2}}', "a key is given twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "Infinity is not JSON"),
        ('{"a": "\\ud800"}', "not valid Unicode"),
        (f"{GOOD}\ud800", "not valid Unicode"),
        (f"<think>{GOOD}", "the reasoning does not end"),
        (f"<think>a</think><think>{GOOD}", "the reasoning does not end"),
        ('{"a": ' + "[" * MAX_OBJECT_OPENINGS, "too many braces"),
        ('{"a": "' + "x" * MAX_OBJECT_CHARACTERS + '"}', "longer than 20,000"),
        ('{"a": ' + "9" * 5_000 + "}", "digit"),
    ],
    ids=lambda text: text[:30],
)
def test_anything_else_is_refused_with_the_reason(reply, why):
    with pytest.raises(UnreadableError, match=why):
        read_object(reply)


@given(
    st.text() | st.lists(st.sampled_from([GOOD, "```", "json", "<think>", "</think>"])).map("".join)
)
def test_a_reply_is_read_or_unreadable(reply):
    try:
        assert isinstance(read_object(reply), dict)
    except UnreadableError as error:
        assert str(error)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_what_is_read_is_what_was_written(value):
    """Or nothing is: a mark of reasoning within the answer is taken for one."""
    try:
        assert read_object(f"<think>hm</think>```json\n{json.dumps(value)}\n```") == value
    except UnreadableError:
        words = ("think", "thought", "reasoning", "reflection", "scratchpad", "channel")
        assert any(word in json.dumps(value).lower() for word in words)


BLANK = (
    *("", " \n\t", "\u200b", "\0", "\u2060\ufeff", "\u3164", "\u115f\u1160\uffa0"),
    *("\ud800", "\u00ad"),
)
SIGNS = (".", "...", "*", "-- ! ?", "\u2800", "\U0001f600", "\u0301")


@pytest.mark.parametrize("text", [*BLANK, *SIGNS])
def test_nothing_that_is_blank_or_a_sign_is_text_or_words(text):
    assert not has_text(text * 3)
    assert not has_words(text * 3)


@pytest.mark.parametrize("text", ["a", "7", "é", "\u4e2d", "{1}"])
def test_a_letter_or_a_digit_is_text_and_no_words(text):
    assert has_text(text)
    assert not has_words(text)


@pytest.mark.parametrize(
    "text", ["Fell.", "ok", "疼痛", "दर्द", "боль", "ألم", "P = .05, CI", "통증"]
)
def test_letters_of_any_script_are_words(text):
    assert has_words(text)


@given(st.text(max_size=100))
def test_ordinary_text_is_in_nfkc_and_small_letters(text):
    expected = unicodedata.normalize("NFKC", text).lower()
    assert normal_text(text) == expected or len(re.findall(r"[^\w\s]", text)) > MAX_MARKS


def test_of_a_run_of_marks_and_of_a_text_the_beginning_is_read():
    assert normal_text("x" + "\u0316\u0301" * 500) == normal_text("x" + "\u0316\u0301" * 15)
    assert normal_text("Cafe\u0301 " * 3) == "caf\u00e9 " * 3
    assert len(normal_text("\u00e9" * 60_000)) == MAX_TEXT_CHARACTERS


VALUES = st.none() | st.floats(-1e6, 1e6) | st.just(math.nan)


@given(st.lists(st.tuples(st.sampled_from("abc"), VALUES, VALUES), max_size=12))
def test_a_mean_is_that_of_the_known_values(rows):
    clusters = [cluster for cluster, _, _ in rows]
    columns = {"first": [row[1] for row in rows], "second": [row[2] for row in rows]}
    measurement = measure_means(clusters, {name: Mean(v) for name, v in columns.items()})
    assert measurement.clusters == tuple(dict.fromkeys(clusters))
    for name, values in columns.items():
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = sum(known) / len(known) if known else math.nan
        found = measurement.point_estimates()[name]
        assert found == pytest.approx(mean, rel=1e-9, abs=1e-6, nan_ok=True)


def test_a_cluster_has_an_outcome_where_it_has_one_value():
    """With more, a comparison is of the mean, as the figures of both stages are."""

    def outcomes(*clusters):
        right = Mean([1.0, 0.0, None], "higher", yes_or_no=True)
        found = measure_means(clusters, {"right": right}).metrics["right"].outcomes
        return None if found is None else list(found)

    assert outcomes("a", "b", "c") == [True, False, False]
    assert outcomes("a", "b", "b") == [True, False]
    assert outcomes("a", "a", "b") is None


def test_another_shape_or_name_of_a_statistic_is_a_bug():
    blocks = Blocks.of_shapes({"one": (), "pair": (2,)})
    with pytest.raises(ValueError, match=r"pair has the shape \(4, 3\), not \(4, 2\)"):
        blocks.join((4,), {"pair": np.zeros((4, 3))})
    with pytest.raises(KeyError):
        blocks.join((4,), {"other": np.zeros(4)})


def made(settings, name):
    return settings.model_dump(mode="json")[name]


def test_a_path_is_kept_as_an_absolute_one(monkeypatch, tmp_path):
    monkeypatch.chdir(SHIPPED.parent)
    assert made(PolicySettings(path=Path(SHIPPED.name)), "path") == str(SHIPPED)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match="not a folder"):
        PolicySettings(path=Path(SHIPPED.name))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made(RagSettings.model_validate({"index": "~/index"}), "index") == f"{tmp_path}/index"
    endpoint = EndpointSettings.model_validate(
        {"url": "http://h/v1", "model": "m", "cache_dir": "c"}
    )
    assert made(endpoint, "cache_dir") == f"{tmp_path}/c"
