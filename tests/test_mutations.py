"""The defects that mutations.py puts back: each entry fits today's code, and the script tells."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.mended import MENDED, Mended
from tests.mutations import ROOT, main, no_longer_fits

DEFECTS = [one.defect for one in MENDED]


@pytest.mark.parametrize("one", MENDED, ids=DEFECTS)
class TestAnEntry:
    def test_fits_the_code(self, one: Mended) -> None:
        assert not no_longer_fits(one, ROOT)

    def test_leaves_a_file_that_can_be_read(self, one: Mended) -> None:
        """A defect that breaks the import would be caught by any test."""
        text = (ROOT / one.file).read_text("utf-8").replace(one.text, one.defective)
        if one.file.endswith(".py"):
            compile(text, one.file, "exec")
        else:
            assert yaml.safe_load(text)

    def test_names_tests_that_there_are(self, one: Mended) -> None:
        assert one.tests
        for test in one.tests:
            path, *names = test.partition("[")[0].split("::")
            assert names_of(ROOT / path, tuple(names)), test


def names_of(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a test file has a class or a function of that name, within one another."""
    body = ast.parse(path.read_text("utf-8")).body
    for name in names:
        found = [n for n in body if getattr(n, "name", None) == name]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def test_no_defect_is_named_twice() -> None:
    assert [name for name, times in Counter(DEFECTS).items() if times > 1] == []


class TestTheScript:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """A function and its one test, as git knows them; what it ignores stays behind."""
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / "area.py").write_text("def area(a, b):\n    return a * b\n")
        test = "from area import area\ndef test_area():\n    assert area(2, 2) == 4\n"
        (tree / "test_area.py").write_text(test)
        (tree / "pytest.ini").write_text("[pytest]\n")
        (tree / ".gitignore").write_text("conftest.py\n__pycache__\n")
        (tree / "conftest.py").write_text("raise RuntimeError\n")
        subprocess.run(["git", "init", "--quiet", tree], check=True)
        return tree

    @pytest.mark.parametrize(
        ("defective", "code", "verdict"), [("a - b", 0, "test_area"), ("a + b", 1, "NOTHING")]
    )
    def test_a_defect_is_caught_or_survives(self, defective, code, verdict, tree, capsys) -> None:
        one = Mended("no area", "area.py", "a * b", defective, ("test_area.py::test_area",))
        assert main([], tree, [one]) == code
        (row,) = [line for line in capsys.readouterr().out.splitlines() if "no area" in line]
        assert row.endswith(f"| test_area.py::test_area | {verdict} |")
        assert (tree / "area.py").read_text().endswith("a * b\n")

    def test_code_that_moved_is_told_before_anything_runs(self, tree, capsys) -> None:
        one = Mended("no area", "area.py", "return b * a", "return 0", ("test_area.py",))
        assert main([], tree, [one]) == 2
        said = capsys.readouterr()
        assert "'no area' 0 times: the code moved: mend this entry" in said.err
        assert not said.out

    def test_a_word_that_no_entry_has_runs_nothing(self, tree, capsys) -> None:
        assert main(["volume"], tree, [Mended("no area", "area.py", "a * b", "0", ())]) == 2
        assert capsys.readouterr().err == "error: no entry has volume\n"

    def test_tests_that_fail_anyway_prove_nothing(self, tree, capsys) -> None:
        (tree / "area.py").write_text("def area(a, b):\n    return a * b + 1\n")
        one = Mended("no area", "area.py", "a * b", "0", ("test_area.py",))
        assert main([], tree, [one]) == 1
        assert "without any defect the tests fail already" in capsys.readouterr().err

    def test_a_file_that_cannot_be_imported_is_no_catch(self, tree, capsys) -> None:
        one = Mended("no area", "area.py", "def area", "def areas", ("test_area.py",))
        assert main([], tree, [one]) == 1
        assert "pytest left with" in capsys.readouterr().out
