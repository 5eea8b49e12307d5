"""A stub of the warm start that several tasks' tests of their local model share."""

import pytest


@pytest.fixture
def warm_starts(monkeypatch, tmp_path):
    """The arguments of every warm start, of which none is done; its model is `tmp_path`/model."""
    from data_prep import tiny_model  # imports torch, which few of these tests need

    calls: list[tuple[object, ...]] = []

    def warm_start(*given):
        calls.append(given)
        return tmp_path / "model"

    monkeypatch.setattr(tiny_model, "warm_start", warm_start)
    return calls
