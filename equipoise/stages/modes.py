"""The final step of a task that has yardsticks: its modes side by side."""

from data_prep.files import write_json
from environments.base import HasYardsticks
from equipoise.evaluation.modes import modes_dict
from equipoise.run.kept_files import record_files
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.stages.job import Job
from equipoise.stages.summary import print_modes

_STAGES = ("baseline", "final")


def keep_modes(job: Job) -> None:
    """Write modes.json: the yardsticks of the final evaluation's prompts beside both stages."""
    environment = job.environment
    if not isinstance(environment, HasYardsticks) or job.run.modes.exists():
        return
    stages = {stage: read_scored_rollouts(job.run.rollouts(stage)) for stage in _STAGES}
    with job.timed("modes"), job.reporter.progress("answering in other ways"):
        yardsticks = environment.yardsticks(stages["final"][0])
    modes = dict(yardsticks.modes) | {
        environment.stage_modes[stage]: environment.measure(*scored)
        for stage, scored in stages.items()
    }
    found = modes_dict(modes, yardsticks, job.config.equipoise.evaluation.statistics)
    write_json(job.run.modes, found)
    record_files(job.run, job.run.modes)
    print_modes(job.reporter, found)
