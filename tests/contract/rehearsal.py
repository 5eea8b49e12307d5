"""Contracts with NeMo-RL: what their tests need, and the least that a rehearsal trains."""

import os
from importlib.util import find_spec

import pytest

from equipoise.config.nemo_rl.installation import PATH_VARIABLE

needs_checkout = pytest.mark.skipif(
    PATH_VARIABLE not in os.environ, reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL"
)


def needs_extra(*packages: str) -> pytest.MarkDecorator:
    """Skip where the extra rehearse, with these packages of it, is not installed."""
    missing = [name for name in ("ray", "hydra", "torchdata", *packages) if not find_spec(name)]
    return pytest.mark.skipif(bool(missing), reason=f"the extra rehearse is needed: {missing}")


#: Words of its command: what it evaluates is small, too.
SMALL = (
    "--num-samples=160",
    "equipoise.local_model.steps=150",
    "equipoise.evaluation.bootstrap_draws=200",
    "equipoise.evaluation.permutations=100",
    "env.fairness.reference_generations=2",
    "equipoise.max_failure_rate=1.0",
)
