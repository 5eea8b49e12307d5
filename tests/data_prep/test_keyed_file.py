"""Results by key in a file that may be killed at any byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.rag.plans import KeyedFile, content_key


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    file = KeyedFile(tmp_path / "kept.jsonl")
    assert file.read() == {}
    file.append({"a": 1, "b": [2]})
    file.append({"a": {"x": "\u2028"}})
    assert file.read() == {"a": {"x": "\u2028"}, "b": [2]}


def test_a_file_cut_off_at_any_byte_loses_only_what_is_cut(tmp_path: Path) -> None:
    whole = KeyedFile(tmp_path / "whole.jsonl")
    whole.append({"a": 1})
    first = whole.path.stat().st_size
    whole.append({"b": "\u00e9\u00e9"})
    data = whole.path.read_bytes()
    for size in range(len(data)):
        cut = KeyedFile(tmp_path / "cut.jsonl")
        cut.path.write_bytes(data[:size])
        kept = cut.read()
        assert kept == ({"a": 1} if size >= first - 1 else {}) | (
            {"b": "\u00e9\u00e9"} if size >= len(data) - 1 else {}
        )
        cut.append({"c": 3})
        assert cut.read() == kept | {"c": 3}


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b'{"key": "x"}', b"\xff", b"[" * 9_999, b"", b'{"value": 1}']
)
def test_a_line_that_is_none_is_passed_over(tmp_path: Path, line: bytes) -> None:
    file = KeyedFile(tmp_path / "kept.jsonl")
    file.append({"a": 1})
    with file.path.open("ab") as lines:
        lines.write(line + b"\n")
    file.append({"b": 2})
    assert file.read() == {"a": 1, "b": 2}


def test_a_line_that_was_changed_is_no_result(tmp_path: Path) -> None:
    file = KeyedFile(tmp_path / "kept.jsonl")
    file.append({"a": "ask for the dose"})
    whole, other = file.path.read_bytes(), KeyedFile(tmp_path / "changed.jsonl")
    for place in range(len(whole) - 1):
        other.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert other.read() == {}, place


@given(st.text(), st.text())
def test_keys_differ_with_any_part(first: str, second: str) -> None:
    assert content_key(first, second) == content_key(first, second)
    assert content_key(first, second) != content_key(first + second, "") or not second
    assert content_key(first) != content_key([first])
