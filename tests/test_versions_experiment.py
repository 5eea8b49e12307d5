"""The table of versions in docs/nemo-rl.md is what docs/experiments/nemo_rl_versions.py writes."""

import os
import sys
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.assumptions import ASSUMPTIONS, TRIED
from equipoise.config.nemo_rl.checkout import read_keys
from equipoise.config.nemo_rl.schema import versions

DOCS = Path(__file__).resolve().parents[1] / "docs"
CHECKOUT = Path(os.environ.get("NEMO_RL_PATH", ""))
is_here = (CHECKOUT / "nemo_rl").is_dir()


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "experiments"))
    import nemo_rl_versions

    yield nemo_rl_versions
    del sys.modules["nemo_rl_versions"]


@pytest.fixture
def page(script):
    """The cells of the page's rows, and its heads first."""
    heads = f"| file of NeMo-RL | what | need | {' | '.join(script.columns())} |\n"
    below = heads + (DOCS / "nemo-rl.md").read_text("utf-8").split(heads)[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in below.splitlines()]


def test_every_assumption_has_its_row_and_what_was_seen_of_v0_8_0(script, page):
    rows = [(*script.row(assumption), script.listed(assumption)) for assumption in ASSUMPTIONS]
    assert [(*cells[:3], cells[-1]) for cells in page[2:]] == rows


def test_what_was_seen_is_assumed(script):
    assert {*script.LISTED, *script.ABSENT} <= {assumption.file for assumption in ASSUMPTIONS}


@pytest.mark.skipif(not is_here, reason="NEMO_RL_PATH names no checkout of NeMo-RL")
def test_the_column_of_a_version_is_what_its_checkout_has(script, page):
    keys = read_keys(CHECKOUT)
    (name,) = (name for name in TRIED if versions()[name] == keys)
    column = page[0].index(name)
    states = [script.read(CHECKOUT, assumption) for assumption in ASSUMPTIONS]
    assert [cells[column] for cells in page[2:]] == states
