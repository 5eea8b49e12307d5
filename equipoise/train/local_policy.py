"""The policy of a run on the local engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from equipoise.run.job import Job, Sample, Watch
from equipoise.run.policy import give_memory_back, load_trained, record_policy, sampler
from equipoise.run.sampling import LoadedModel


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A `Policy` in this process."""

    job: Job
    frozen: LoadedModel
    watch: Watch

    @property
    def steps(self) -> int:
        return self.job.steps if self.job.run.final_checkpoint.exists() else 0

    def sampler(self) -> Sample:
        model = self.frozen
        if self.steps:
            model = load_trained(model, self.job.run.final_checkpoint, model.model.device)
        return sampler(self.job, model)

    def train(self) -> None:
        # TRL takes seconds to import, and what comes before training needs none of it.
        from equipoise.train.local import train

        give_memory_back()
        train(self.job, self.frozen, self.watch)
        give_memory_back()


@contextmanager
def open_local(job: Job, frozen: LoadedModel, watch: Watch) -> Iterator[LocalPolicy]:
    """Open the policy of the local engine, whose model is loaded."""
    record_policy(job, frozen)
    yield LocalPolicy(job, frozen, watch)
    give_memory_back()  # before the last scoring
