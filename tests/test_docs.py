"""The documentation names what is there."""

import re
from pathlib import Path

import pytest

from equipoise.checkpoints.sources import _FOLDERS
from equipoise.config.compose import tasks
from equipoise.files.nemo_rl import RELEASE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_files_that_are_there(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    for target in targets:
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_task_has_a_recipe_a_page_and_a_row_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    recipes = [f"grpo_{task}.py" for task in tasks()]
    assert sorted(path.name for path in (ROOT / "recipes").glob("grpo_*.py")) == recipes
    row = re.compile(r"^\| \[.*\]\(docs/(\w+)\.md\) .* `grpo_(\w+)\.py` \|$", re.MULTILINE)
    assert sorted(row.findall(readme)) == [(task, task) for task in tasks()]


def test_every_kind_of_checkpoint_is_on_the_page():
    page = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    bold = " ".join(re.findall(r"^- .*?\*\*(.+?)\*\*", page, re.MULTILINE))
    for kind in _FOLDERS:
        assert any(word in bold for word in re.findall(r"\w{3,}", kind)), kind


def test_the_image_is_the_release_wherever_it_is_named():
    """The Dockerfile and the pages cannot take it from nemo_rl.py."""
    files = [ROOT / "containers" / "Dockerfile", *(ROOT / "docs").glob("*.md")]
    named = [re.findall(r"nvidia/nemo-rl:(v[\d.]+\d)", path.read_text("utf-8")) for path in files]
    assert {version for versions in named for version in versions} == {RELEASE}


def test_the_errors_that_troubleshooting_explains_are_in_the_code():
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith('| "')]
    errors = [error for row in rows for error in re.findall(r'"([^"]+)"', row.split("|")[1])]
    code = "".join(
        path.read_text("utf-8")
        for package in ("environments", "equipoise")
        for path in (ROOT / package).rglob("*.py")
    )
    assert len(errors) > 8
    for error in errors:
        assert re.sub(r"^HTTP \d+", "HTTP {status}", error) in code, error


def test_every_promise_to_refuse_names_its_test():
    promises = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Not trusted")[2]
    for promise in promises.split("\n- ")[1:]:
        names = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promise)
        assert names, promise
        for file, test in names:
            assert f"def {test}" in (ROOT / file).read_text("utf-8"), (file, test)
