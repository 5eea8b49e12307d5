"""The reference for a row's decisions: that of its model's plain row, or its own.

With the plain one a row's figures say what its way of asking moves. Where too little of it can be
read there is nothing to compare with, and the row is held against what it decides itself.
"""

from collections.abc import Sequence
from functools import partial

from environments.base import CONTROL_SPLIT, UNPARSEABLE, PromptRecord, Rollout
from equipoise.evaluate.plan import Row
from equipoise.evaluate.turns import Turn, in_thread
from equipoise.evaluate.variants import PLAIN, Ask
from equipoise.evaluate.writers import Writer
from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import check_part
from equipoise.run.provenance import update_provenance
from equipoise.run.rollouts import read_rollouts
from equipoise.train.stages.around_training import REFERENCE, Sample, keep_reference, take_reference
from equipoise.train.stages.job import Job


def take_row_reference(
    job: Job, row: Row, plain: RunDirectory, writer: Writer, ask: Ask
) -> Turn[None]:
    """Take the reference of a row, where its task needs one; `plain` is its model's plain row."""
    if not job.environment.reference_generations:
        return
    little = row.variant != PLAIN and _says_too_little(job, plain)
    # What a yardstick moves is told by its own prompts: the plain ones have the attribute.
    own_reference = little or bool(row.variant.yardstick)
    update_provenance(job.run.provenance, {"audit": {"own_reference": own_reference}})
    sample = writer.reference(job, row.variant if own_reference else PLAIN)
    if little:
        job.reporter.warn(
            f"{row.name}: too few plain replies can be read to compare with: this row's reference "
            "is its own"
        )
    if own_reference:
        sample = _apply_ask(sample, ask)
    if job.run.reference.exists() or writer.stop is None:
        take_reference(job, sample, None if own_reference else writer.identity)
        return
    generations = job.environment.reference_generations
    with job.timed(REFERENCE):
        drawing = partial(sample, job.records, generations, REFERENCE)
        rollouts = yield from in_thread(job.meter, drawing, writer.stop)
        keep_reference(job, rollouts)


def _apply_ask(sample: Sample, ask: Ask) -> Sample:
    """Draws of the row's prompts; what is recorded of them is that of the plain ones."""

    def draw(records: Sequence[PromptRecord], generations: int, stage: str) -> list[Rollout]:
        return sample(list(map(ask, records)), generations, stage)

    return draw


def _says_too_little(job: Job, plain: RunDirectory) -> bool:
    """Whether so many sets have nothing to compare with that the row could not be scored."""
    check_part(plain.reference)
    reference = read_rollouts(plain.reference)
    variants = [rollout for rollout in reference if rollout.split != CONTROL_SPLIT]
    job.environment.set_reference(reference)
    scores = job.environment.score(variants)
    readable = {
        rollout.set_id
        for rollout, score in zip(variants, scores, strict=True)
        if UNPARSEABLE not in score.evidence
    }
    sets = {rollout.set_id for rollout in variants}
    return len(sets - readable) > job.config.equipoise.max_failure_rate * len(sets)
