"""A job on a toy task, without a model, and a browser for pages."""

from collections.abc import Iterator

import numpy as np
import pytest

from environments.base import PromptRecord, Score
from environments.contract import Environment
from environments.measurement import Measurement, Metric
from equipoise.commands.stages import display_of
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.console import Reporter, printing_notes
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Job
from equipoise.run.ledger import Meter, Provenance
from tests.equipoise.report.browser import Browser

SPLITS = ("train", "train", "validation", "test", "test")
RECORDS = [
    PromptRecord(f"p{i}", "toy", ({"role": "user", "content": f"Q{i}"},), f"p{i}", split)
    for i, split in enumerate(SPLITS)
]


class Toy(Environment):
    """Wants an A; compares with a reference that it must have been given."""

    name, scope = "toy", "rollout"
    reference_generations = 2

    def __init__(self):
        self.reference = None

    def set_reference(self, rollouts):
        self.reference = list(rollouts)

    def score(self, rollouts):
        assert self.reference
        return [Score(float("A" in r.completion)) for r in rollouts]

    def measure(self, rollouts, scores):
        sums = np.array([[s.value, 1.0] for s in scores])
        rate = Metric(lambda total: total[..., 0] / total[..., 1], "higher")
        return Measurement(tuple(r.prompt_id for r in rollouts), sums, {"accuracy": rate})


@pytest.fixture
def job(tmp_path):
    words = ("equipoise.evaluation.generations=3", "equipoise.evaluation.batch_size=4")
    own = (f"equipoise.cache_dir={tmp_path / 'cache'}", "grpo.val_period=1")
    loaded = load_config("fairness", parse_flags("x", (*words, *own)))
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    run.ledger.create(Provenance())
    reporter = Reporter()
    with printing_notes(reporter):
        yield Job(loaded, run, RECORDS, Toy(), "tiny", Meter(), display_of(reporter))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.end()
