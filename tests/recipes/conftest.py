"""Folders of the recipes' tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of a module's tests."""
    return tmp_path_factory.mktemp("results")
