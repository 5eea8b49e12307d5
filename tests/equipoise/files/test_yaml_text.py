"""A YAML that would expand without end is refused before it is expanded."""

import itertools
import string
import time
from pathlib import Path

import pytest
from yaml import MarkedYAMLError

from environments.yaml_file import YamlFileError, read_tree
from equipoise.files.disk import TooMuchError, parse_yaml, read_yaml


def levels(number, *, merged=False):
    """Each level holds nine times the one above: 9**number values in a few hundred bytes."""
    lines = ["a: &a {x: 1}" if merged else "a: &a [1]"]
    for below, name in itertools.pairwise(string.ascii_lowercase[: number + 1]):
        many = f"[{','.join([f'*{below}'] * 9)}]"
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
