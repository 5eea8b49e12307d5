"""Folders of the recipes' tests."""

import pytest


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of the runs of a module's tests."""
    return tmp_path_factory.mktemp("results")
