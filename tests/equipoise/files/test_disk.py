import itertools
import json
import math
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
from yaml import MarkedYAMLError

from environments.yaml_file import YamlFileError, read_tree
from equipoise.files import disk
from equipoise.files.disk import (
    DamagedFileError,
    TooMuchError,
    create_folder,
    finite,
    parse_yaml,
    read_json,
    read_jsonl,
    read_yaml,
    remove_abandoned,
    write_folder,
    write_json,
    write_jsonl,
    write_lines,
)
from tests.refusals import refusal


def broken_lines():
    yield "first\n"
    raise OSError("no space left")


def test_a_file_that_could_not_be_written_leaves_the_old_one_and_no_scratch(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old\n")
    with pytest.raises(OSError, match="no space"):
        write_lines(path, broken_lines())
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fill(folder):
        (folder / "half").write_text("x")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_folder(tmp_path / "model", fill)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_replaces_the_one_before_it(tmp_path):
    write_folder(tmp_path / "model", lambda folder: (folder / "a").touch())
    write_folder(tmp_path / "model", lambda folder: (folder / "b").touch())
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["b"]


def test_json_holds_null_for_what_it_cannot_hold(tmp_path):
    write_json(tmp_path / "x.json", {"a": [math.nan, 1.5], "b": {"c": math.inf}})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, 1.5], "b": {"c": None}}
    assert finite(("x", 2)) == ["x", 2]


def test_a_corrupt_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}, {"a": "é\u2028"}])
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": "é\u2028"}]
    path.write_text('{"a": 1}\n{"a": \n')
    with refusal("file.invalid-json", "rows.jsonl", "line 2"):
        list(read_jsonl(path))


def test_a_new_folder_is_never_put_over_another(tmp_path):
    (tmp_path / "empty").mkdir()
    create_folder(tmp_path / "empty", lambda folder: (folder / "a").touch())
    (tmp_path / "file").touch()
    for taken in ("empty", "file"):
        with pytest.raises(FileExistsError, match=taken):
            create_folder(tmp_path / taken, lambda folder: (folder / "b").touch())
    assert [file.name for file in (tmp_path / "empty").iterdir()] == ["a"]
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "file"}


def writer_of(path):
    """A process that is in the middle of filling the folder."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from equipoise.files.disk import create_folder\n"
        "def fill(folder):\n"
        "    (folder / 'half').touch(); print('half', flush=True); time.sleep(60)\n"
        "create_folder(Path(sys.argv[1]), fill)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"half\n"
    return process


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(tmp_path):
    path = tmp_path / "model"
    mine = tmp_path / ".model.backup"
    mine.mkdir()
    living = writer_of(path)
    create_folder(path, lambda folder: (folder / "a").touch())
    assert len(list(tmp_path.glob(".model.*.partial"))) == 1
    living.kill()
    living.wait()
    write_folder(path, lambda folder: (folder / "b").touch())
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", mine.name}


def test_what_a_killed_process_was_writing_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from equipoise.files.disk import write_lines\n"
        "def chunks():\n"
        "    yield 'x' * 100_000; print('half', flush=True); time.sleep(600)\n"
        "write_lines(Path(sys.argv[1]), chunks())"
    )
    backup = tmp_path / ".report.html.backup"
    backup.write_text("mine")
    command = [sys.executable, "-c", code, tmp_path / "report.html"]
    living = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert living.stdout.readline() == b"half\n"
    remove_abandoned(tmp_path)
    assert len(list(tmp_path.glob(".report.html.*.unfinished"))) == 1
    living.kill()
    living.wait()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [backup]


@pytest.mark.parametrize("text", ['{"cut', "[" * 100_000, "[NaN]", "[1e400]", "\xff"])
def test_a_damaged_json_file_is_named(text, tmp_path):
    (tmp_path / "provenance.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFileError, match=r"provenance\.json: "):
        read_json(tmp_path / "provenance.json")


def test_a_folder_that_gets_its_name_while_another_looks_at_it_is_no_error(tmp_path, monkeypatch):
    other = tmp_path / ".out.1.partial"
    other.mkdir()
    (other / "weights").touch()

    def named_meanwhile(_descriptor, _operation):
        if other.exists():
            other.rename(tmp_path / "other")
        return True

    monkeypatch.setattr(disk, "_lock", named_meanwhile)
    with disk.scratch_folder(tmp_path / "out") as scratch:
        assert scratch.is_dir()
    assert (tmp_path / "other" / "weights").is_file()


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-" + "9" * 5_000, "1e999", "NaN"])
def test_a_number_that_no_float_can_hold_is_refused(tmp_path, number):
    path = tmp_path / "comparison.json"
    path.write_text(f'{{"difference": {number}}}')
    with pytest.raises(DamagedFileError, match="not a finite number"):
        read_json(path)


def levels(number, *, merged=False):
    """Each level holds nine times the one above: 9**number values in a few hundred bytes."""
    lines = ["a: &a {x: 1}" if merged else "a: &a [1]"]
    for previous, name in itertools.pairwise(string.ascii_lowercase[: number + 1]):
        many = f"[{','.join([f'*{previous}'] * 9)}]"
        lines.append(f"{name}: &{name} {{<<: {many}}}" if merged else f"{name}: &{name} {many}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [levels(7), levels(20), levels(7, merged=True), "a: &a [*a]", "a: &a {b: {c: *a}}"],
    ids=["7 levels", "20 levels", "merge keys", "a list in itself", "a section in itself"],
)
def test_aliases_without_end_are_refused_at_once(text):
    started = time.process_time()
    with pytest.raises(TooMuchError, match="aliases"):
        parse_yaml(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", ["", "a: 1", levels(4), levels(4, merged=True), "a: &a 1\nb: *a"])
def test_aliases_that_end_soon_are_allowed(text):
    parse_yaml(text)


@pytest.mark.parametrize("deep", ["[" * 5_000, "{a: " * 5_000, "- " * 5_000])
def test_nesting_without_end_is_refused(deep):
    with pytest.raises(TooMuchError, match="nested"):
        parse_yaml(deep)


def test_a_file_without_end_is_refused():
    with pytest.raises(TooMuchError, match="longer than"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    "value",
    [
        *("!!bool maybe", "!!timestamp abc", "2026-02-30", "!!int x", "!!float y", "!!null [1]"),
        *("!!binary é", "{[1]: 2}"),
    ],
)
def test_a_value_that_is_not_its_tag_s_is_named(tmp_path, value):
    path = tmp_path / "some.yaml"
    path.write_text(f"a: 1\nb: {value}\n")
    for read in (read_yaml, read_tree):
        with pytest.raises((MarkedYAMLError, YamlFileError)) as refused:
            read(path)
        assert "line 2" in str(refused.value)
