"""Whatever reads data of others refuses it in one form, with as many faults as a person reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.dharma.prompts import import_prompts
from data_prep.rag.index import read_corpus
from data_prep.rag.sources import read_questions
from data_prep.records import DataError, json_lines, parse_json, read_unsealed
from environments.yaml_file import SHOWN

READERS: list[tuple[Callable[[Path], Any], str]] = [
    (read_unsealed, "prompt file"),
    (import_prompts, "file of prompts"),
    (read_questions, "file of questions"),
    (lambda path: list(read_corpus(path)), "corpus"),
]


@pytest.mark.parametrize(("read", "kind"), READERS)
def test_bad_lines_are_told_with_their_numbers_up_to_a_limit(tmp_path, read, kind) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("{\n" * (SHOWN + 3))
    with pytest.raises(DataError) as caught:
        read(path)
    head, *faults, rest = str(caught.value).splitlines()
    assert head == f"{path} is not a valid {kind}:"
    assert len(faults) == SHOWN
    for number, fault in enumerate(faults, start=1):
        assert f"line {number}: " in fault
        assert "json" in fault.lower()
    assert rest == "  and 3 more"


@pytest.mark.parametrize(("read", "kind"), READERS)
def test_a_file_that_is_missing_is_told(tmp_path, read, kind) -> None:
    with pytest.raises(DataError, match=f"none.jsonl is not a valid {kind}:\n  "):
        read(tmp_path / "none.jsonl")


def test_only_a_line_feed_ends_a_line_of_json() -> None:
    faults: list[str] = []
    text = '\n{"a": "one\u2028two\x85three"}\r\n\n{\n7'
    assert list(json_lines(text, faults)) == [(2, {"a": "one\u2028two\x85three"}), (5, 7)]
    assert [fault.partition(":")[0] for fault in faults] == ["line 4"]
    assert list(json_lines("id,text\n1,a\n", faults)) == []
    assert len(faults) == 2  # a table is one fault


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 10_000, "[1,\n2", "", "\x00", "nul"], ids=len
)
def test_what_is_no_json_is_one_line_with_its_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: ") as caught:
        parse_json(text)
    assert len(str(caught.value).splitlines()) == 1
