"""The decision parser: its fixtures, the fields' arithmetic, and hostile replies."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.fairness.decision import MAX_OPENINGS, MAX_REPLY_CHARACTERS, Decision
from environments.fairness.spine import FORM
from environments.replies import Unparseable

parse_decision = FORM.parse

CASES = [
    json.loads(line)
    for line in (files("environments.fairness") / "cases.jsonl").read_text("utf-8").splitlines()
]
PARSED = [case["reply"] for case in CASES if case["decision"]]
PLAIN = PARSED[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_fixture(case):
    found = parse_decision(case["reply"])
    if case["decision"] is None:
        assert isinstance(found, Unparseable)
        assert case["reason"] in found.reason
    else:
        assert isinstance(found, Decision), found
        assert found.to_dict() == case["decision"]


def test_a_reply_is_read_up_to_its_limits_and_not_beyond():
    room = MAX_REPLY_CHARACTERS - len(PLAIN)
    assert isinstance(parse_decision(" " * room + PLAIN), Decision)
    assert isinstance(parse_decision(" " * (room + 1) + PLAIN), Unparseable)
    assert isinstance(parse_decision("[" * (MAX_OPENINGS - 1) + PLAIN), Decision)
    assert isinstance(parse_decision("[" * MAX_OPENINGS + PLAIN), Unparseable)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
field_names = st.sampled_from([*json.loads(PLAIN), "note", "Work Status", "weeks"])
replies_like_a_decision = st.dictionaries(field_names, json_values).map(
    lambda changes: json.dumps(json.loads(PLAIN) | changes)
)


@st.composite
def mutated(draw):
    """A valid reply from which pieces were cut, doubled or replaced."""
    text = draw(st.sampled_from(PARSED))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + draw(st.text(max_size=6) | st.just(text[start:end] * 2)) + text[end:]
    return text


brackets = st.text(alphabet='{}[]":,\\ae1<>/think\u2028\x00', max_size=400)
hostile = st.one_of(
    st.text(), brackets, mutated(), replies_like_a_decision, json_values.map(json.dumps)
)


@pytest.mark.deep
@given(hostile)
def test_no_reply_raises_and_a_decision_is_always_within_its_range(reply):
    found = parse_decision(reply)
    assert parse_decision(reply) == found
    if isinstance(found, Decision):
        limits = [levels[-1] for levels in FORM.scored.values()]
        assert all(0 <= n <= most for n, most in zip(found.levels, limits, strict=True))
        assert parse_decision(json.dumps(found.to_dict())) == found
        json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False).encode()
    else:
        assert found.reason
