"""The stages before and after training, the same on both engines: reference, baseline, final.

An engine says how a model writes, as a `Sample`. What is drawn is kept before it is scored, so that
what scores it may fail.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from data_prep.files import hash_file, write_json, write_text
from data_prep.records import content_hash
from environments.base import HasExports, NeedsReference, PromptRecord, Rollout
from equipoise.errors import EquipoiseError
from equipoise.evaluation.evaluate import evaluation_dict, presentation_of
from equipoise.evaluation.learning_signal import learning_signal
from equipoise.run.kept_files import record_files
from equipoise.run.ownership import confirm_owner
from equipoise.run.provenance import read_provenance, record_hash, update_provenance
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts, write_rollouts
from equipoise.run.seals import is_whole, seal_file
from equipoise.stages.failures import refuse_failures
from equipoise.stages.job import Job
from equipoise.stages.summary import print_evaluation

#: Records, completions of each, the stage -> their rollouts, siblings adjacent.
Sample = Callable[[Sequence[PromptRecord], int, str], list[Rollout]]

REFERENCE, BASELINE, FINAL = "reference", "baseline", "final"

_NO_SIGNAL = (
    "Name a model that writes what the task asks for, let it write more "
    "(policy.generation.max_new_tokens), or let its generations differ "
    "(policy.generation.temperature). equipoise.stop_without_signal=false trains all the same."
)


def before_training(job: Job, frozen: Sample, identity: str | None) -> None:
    """The reference, where the environment needs one, and the baseline; each only once.

    Both are of the `frozen` model. `identity` says what decides the reference besides the prompts
    and how many completions they have: runs in which all of that is equal share one. Without it,
    where nobody can say that, a run has its own.
    """
    environment = job.environment
    if isinstance(environment, NeedsReference) and not job.run.reference.exists():
        with job.timed(REFERENCE):
            draw = partial(_draw_reference, job, frozen, environment.reference_generations)
            if identity is None:
                draw(job.run.reference)
            else:
                parts = (identity, content_hash(job.records), environment.reference_generations)
                cached = _cached(job, "\n".join(map(str, parts)), draw)
                confirm_owner(job.run.root)
                write_text(job.run.reference, cached.read_text(encoding="utf-8"))
        record_files(job.run, job.run.reference)
    use_reference(job)
    evaluate(job, BASELINE, frozen)


def _draw_reference(job: Job, frozen: Sample, generations: int, path: Path) -> None:
    job.reporter.heading("Reference: what the frozen model decides")
    rollouts = frozen(job.records, generations, REFERENCE)
    confirm_owner(job.run.root)
    write_rollouts(path, rollouts)


def _cached(job: Job, what: str, draw: Callable[[Path], None]) -> Path:
    """The cache's file, drawn where there is none or it is damaged."""
    key = hashlib.sha256(what.encode()).hexdigest()[:16]
    path = Path(job.config.equipoise.cache_dir).expanduser() / f"reference-{key}.jsonl"
    if not is_whole(path):
        draw(path)
        seal_file(path)
    return path


def use_reference(job: Job) -> None:
    """Hand the run's reference, where it has one, to the environment of this process."""
    path, environment = job.run.reference, job.environment
    if isinstance(environment, NeedsReference) and path.exists():
        record_hash(job.run.provenance, REFERENCE, hash_file(path))
        environment.set_reference(read_rollouts(path))


def begin_training(job: Job, steps: int) -> None:
    """Say what the baseline promises of training, and that it begins or goes on.

    Raises `EquipoiseError` when there is nothing to learn from, unless the configuration wants to
    go on.
    """
    signal = learning_signal(*read_scored_rollouts(job.run.rollouts(BASELINE)))
    examples = "".join(f"\n  {reply}" for reply in signal.commonest)
    told = f"{signal}. The commonest replies:{examples}"
    if signal.none and job.config.equipoise.stop_without_signal:
        raise EquipoiseError(f"there is nothing to learn from: {told}", _NO_SIGNAL)
    if signal.none or signal.little:
        amount = "nothing" if signal.none else "little"
        job.reporter.warn(f"there is {amount} to learn from: {told}")
    else:
        job.reporter.say(f"signal: {signal}")
    job.reporter.heading(f"GRPO training, {steps} steps")


def evaluate(job: Job, stage: str, sample: Sample) -> None:
    """Sample the evaluation split, score it and write the result; what is there is taken as it is.

    Raises `EquipoiseError` when too many rollouts could not be scored.
    """
    if job.run.evaluation(stage).exists():
        return
    drawn = job.run.generations(stage)
    with job.timed(stage):
        if drawn.exists():
            job.reporter.say(f"scoring what was generated before: {drawn}")
        else:
            generate(job, stage, sample)
        score(job, stage)


def generate(job: Job, stage: str, sample: Sample) -> None:
    """Sample the evaluation split and write the rollouts, with what that took."""
    job.reporter.heading(f"{stage} evaluation")
    evaluation = job.config.equipoise.evaluation
    started, tokens = time.perf_counter(), dict(job.meter.tokens)
    rollouts = sample(job.split(evaluation.split), evaluation.generations, stage)
    account: dict[str, float] = {n: count - tokens[n] for n, count in job.meter.tokens.items()}
    account["generation_time_seconds"] = round(time.perf_counter() - started, 2)
    update_provenance(job.run.provenance, {"generation": {stage: account}})
    confirm_owner(job.run.root)
    write_rollouts(job.run.generations(stage), rollouts)


def score(job: Job, stage: str) -> None:
    """Score what `generate` wrote, and write it again with the scores and the metrics.

    evaluation.json is written last, so that a stage that has it is finished.
    """
    drawn = job.run.generations(stage)
    rollouts = read_rollouts(drawn)
    started = time.perf_counter()
    with job.reporter.progress(f"scoring {len(rollouts):,} replies"):
        scores = job.environment.score(rollouts)
    refuse_failures(scores, job.config.equipoise.max_failure_rate, f"the {stage} evaluation")
    account = dict(read_provenance(job.run.provenance)["generation"][stage])
    account["scoring_time_seconds"] = round(time.perf_counter() - started, 2)
    confirm_owner(job.run.root)
    write_rollouts(job.run.rollouts(stage), rollouts, scores)
    with job.reporter.progress("measuring"):
        measurement = job.environment.measure(rollouts, scores)
        evaluation = evaluation_dict(
            measurement,
            task=job.environment.name,
            split=job.config.equipoise.evaluation.split,
            model=job.model_name if stage == BASELINE else str(job.run.final_checkpoint),
            n_prompts=len({rollout.prompt_id for rollout in rollouts}),
            n_rollouts=len(rollouts),
            failures=Counter(score.error.kind for score in scores if score.error),
            settings=job.config.equipoise.evaluation.statistics,
            presentation=presentation_of(job.environment),
        )
    if isinstance(job.environment, HasExports):
        for name, document in job.environment.exports(rollouts, scores).items():
            write_json(job.run.evaluation(stage).with_name(name), document)
    write_json(job.run.evaluation(stage), evaluation | account)
    drawn.unlink()
    record_files(job.run, job.run.evaluation(stage).parent)
    print_evaluation(job.reporter, evaluation)
