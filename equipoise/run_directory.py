"""The run directory: one place for everything that a run leaves behind.

results/<task>/<name>/
  config.yaml  provenance.json  prompts.jsonl  reference.jsonl
  baseline/  final/         rollouts.jsonl, evaluation.json
  comparison.json           before against after, metric by metric
  training_history.csv      one row per step
  checkpoints/              to resume from
  final_checkpoint/         the trained model or adapter
  report.html
"""

from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import UsageError


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths of one run; nothing is created by asking for one."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.yaml"

    @property
    def provenance(self) -> Path:
        """Command, commit, versions, seeds, hashes, seconds."""
        return self.root / "provenance.json"

    @property
    def prompts(self) -> Path:
        """The prompt records, all splits."""
        return self.root / "prompts.jsonl"

    @property
    def reference(self) -> Path:
        """The frozen model's rollouts that an environment compares with."""
        return self.root / "reference.jsonl"

    @property
    def comparison(self) -> Path:
        """Baseline against final; a run that has it is finished."""
        return self.root / "comparison.json"

    @property
    def modes(self) -> Path:
        """Yardsticks beside both stages, of a task that has them."""
        return self.root / "modes.json"

    @property
    def agreement(self) -> Path:
        """How far the judge agrees with others, where that was measured."""
        return self.root / "judge_agreement.json"

    @property
    def history(self) -> Path:
        """One row per training step."""
        return self.root / "training_history.csv"

    @property
    def checkpoints(self) -> Path:
        """What training resumes from."""
        return self.root / "checkpoints"

    @property
    def final_checkpoint(self) -> Path:
        """The trained model or adapter in Hugging Face's format."""
        return self.root / "final_checkpoint"

    @property
    def report(self) -> Path:
        """The report; an unfinished run that stopped has one too, which says so."""
        return self.root / "report.html"

    def generations(self, stage: str) -> Path:
        """What was generated in a stage that is not scored yet."""
        return self.root / stage / "generations.jsonl"

    def rollouts(self, stage: str) -> Path:
        """Scored rollouts of the stage "baseline" or "final"."""
        return self.root / stage / "rollouts.jsonl"

    def evaluation(self, stage: str) -> Path:
        """Metrics of the stage "baseline" or "final"."""
        return self.root / stage / "evaluation.json"


def create_run_directory(output_dir: Path, task: str, name: str) -> RunDirectory:
    """A new directory `output_dir/task/name`; a name that is taken is never reused silently."""
    root = output_dir / task / name
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            f"the run {root} exists already",
            f"Continue it with --resume {root}, or choose another --run-name.",
        )
    root.mkdir(parents=True, exist_ok=True)
    return RunDirectory(root)


def open_run_directory(root: Path) -> RunDirectory:
    """The directory of a run that `--resume` continues."""
    run = RunDirectory(root)
    if not run.config.is_file():
        raise UsageError(
            f"{root} is no run directory: it has no config.yaml",
            "Name the folder of a run, for example results/fairness/local.",
        )
    return run
