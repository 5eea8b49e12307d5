"""prompts.jsonl and its manifest: written, read back, and everything wrong with them reported."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.dharma.prompts import import_prompts
from data_prep.rag.index import read_corpus
from data_prep.rag.sources import read_questions
from environments.base import PromptRecord
from environments.yaml_file import SHOWN
from equipoise.files import records as module
from equipoise.files.records import (
    DataError,
    content_hash,
    json_lines,
    manifest_path,
    parse_json,
    read_prompts,
    read_unsealed,
    write_prompts,
)
from tests.refusals import refusal

TURNS = ({"role": "system", "content": "Sé breve."}, {"role": "user", "content": "a\u2028b\n"})
RECORDS = [
    PromptRecord("a/1", "toy", TURNS, "a", "train", {"n": 1, "gold": ["x", None]}),
    PromptRecord("a/2", "toy", TURNS, "a", "train", {}),
    PromptRecord("c", "toy", TURNS, "c", "control", {"deep": {"er": True}}),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "prompts.jsonl"
    write_prompts(path, RECORDS, {"made": "by hand"})
    return path


def rewrite(path, lines):
    """Other lines, with a manifest that matches them."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    manifest = json.loads(manifest_path(path).read_text())
    manifest["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest_path(path).write_text(json.dumps(manifest))


def test_what_is_written_is_read_back(path):
    assert read_prompts(path) == RECORDS


def test_the_content_hash_is_that_of_the_file_and_sees_every_field(path):
    assert content_hash(RECORDS) == hashlib.sha256(path.read_bytes()).hexdigest()
    others = [
        replace(RECORDS[0], **{field.name: value})
        for field, value in zip(
            fields(PromptRecord), ["b", "b", TURNS[:1], "b", "test", {}], strict=True
        )
    ]
    assert len({content_hash([record]) for record in [RECORDS[0], *others]}) == 7


def test_an_interrupted_write_is_noticed(path, monkeypatch):
    """The old manifest stands beside the new lines."""

    def fail(*_, **__):
        raise KeyboardInterrupt

    write = module.write_json
    monkeypatch.setattr(
        module, "write_json", lambda p, data: fail() if "manifest" in p.name else write(p, data)
    )
    with pytest.raises(KeyboardInterrupt):
        write_prompts(path, RECORDS[:1], {})
    with refusal("prompts.invalid-file", "hash is not the one"):
        read_prompts(path)


def test_a_number_that_json_lacks_is_not_written(path):
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_prompts(path, [replace(RECORDS[0], metadata={"x": float("nan")})], {})
    assert path.read_bytes() == before


GOOD = {
    "id": "x",
    "task": "toy",
    "messages": [{"role": "user", "content": "Hello"}],
    "set_id": "x",
    "split": "train",
    "metadata": {},
}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Invalid JSON"),
        ("[]", "object"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "split"}), "split"),
        (json.dumps(GOOD | {"spilt": "train"}), "spilt"),
        (json.dumps(GOOD | {"id": ""}), "id"),
        (json.dumps(GOOD | {"metadata": {"a": [math.nan]}}), "metadata"),
        (json.dumps(GOOD | {"metadata": {"a": 5}}).replace("5", "1e999"), "metadata"),
        (json.dumps(GOOD | {"messages": []}), "messages"),
        (json.dumps(GOOD | {"messages": [{"role": "doctor", "content": ""}]}), "messages.0.role"),
        (json.dumps(GOOD | {"id": "a"}), "id 'a' is that of line 1 too"),
    ],
)
def test_a_bad_line_is_named(path, line, said):
    rewrite(path, [json.dumps(GOOD | {"id": "a"}), line])
    with refusal("prompts.invalid-file", "line 2:", said) as error:
        read_prompts(path)
    assert "line 1: " not in str(error.value)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ('{"schema": 2}', "schema: "),
        ("{}", "sha256: "),
        ("[1]", "prompts.manifest.json: "),
        ("{", "prompts.manifest.json: "),
        ('{"schema": 1, "sha256": "00", "prompts": {}, "sets": 0, "about": {}}', "hash is not"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(path, manifest, said):
    manifest_path(path).write_text(manifest)
    with refusal("prompts.invalid-file", said):
        read_prompts(path)


def test_a_missing_file_is_named(path):
    manifest_path(path).unlink()
    with refusal("prompts.invalid-file", "manifest prompts.manifest.json cannot be read"):
        read_prompts(path)
    path.unlink()
    with refusal("prompts.unreadable-file", "No such file"):
        read_prompts(path)


@pytest.mark.parametrize("text", ["a\0", "\0", "a\ud800"])
@pytest.mark.parametrize("field", ["id", "set_id", "split"])
def test_a_name_that_numpy_or_utf_8_would_change_is_refused(path, field, text):
    rewrite(path, [json.dumps(json.loads(path.read_text().split("\n")[0]) | {field: text})])
    with refusal("prompts.invalid-file", "line 1"):
        read_prompts(path)


READERS: list[tuple[Callable[[Path], Any], str]] = [
    (read_unsealed, "prompt file"),
    (import_prompts, "file of prompts"),
    (read_questions, "file of questions"),
    (lambda path: list(read_corpus(path)), "corpus"),
]


@pytest.mark.parametrize(("read", "kind"), READERS)
def test_bad_lines_are_told_with_their_numbers_up_to_a_limit(tmp_path, read, kind):
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
def test_a_file_that_is_missing_is_told(tmp_path, read, kind):
    with pytest.raises(DataError, match=f"none.jsonl is not a valid {kind}:\n  "):
        read(tmp_path / "none.jsonl")


def test_only_a_line_feed_ends_a_line_of_json():
    faults: list[str] = []
    text = '\n{"a": "one\u2028two\x85three"}\r\n\n{\n7'
    assert list(json_lines(text, faults)) == [(2, {"a": "one\u2028two\x85three"}), (5, 7)]
    assert [fault.partition(":")[0] for fault in faults] == ["line 4"]
    assert list(json_lines("id,text\n1,a\n", faults)) == []
    assert len(faults) == 2  # a table is one fault


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 10_000, "[1,\n2", "", "\x00", "nul"], ids=len
)
def test_what_is_no_json_is_one_line_with_its_place(text):
    with pytest.raises(ValueError, match=r"^line \d+: ") as caught:
        parse_json(text)
    assert len(str(caught.value).splitlines()) == 1
