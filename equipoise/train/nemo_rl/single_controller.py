"""Training of a run's prompts by NeMo-RL's Single Controller: `python -m` this, and the run.

The controller has no validation. So the run gives its prompts and the frozen model's replies, and
its model is trained anew, in a folder of the run's own; checkpoints are converted and evaluated by
commands. NeMo-RL's older asynchronous GRPO is not in the same process: hooks.py is not loaded.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from data_prep.files import write_text
from environments.base import TRAIN_SPLIT
from equipoise.config import LOCAL_MODEL, LoadedConfig, Options, load_config
from equipoise.config.nemo_rl.installation import Installation, find_installation
from equipoise.config.schedule import total_steps
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory, open_run_directory
from equipoise.run.prompts import record_prompts
from equipoise.terminal.console import Reporter
from equipoise.terminal.exits import guarded
from equipoise.train.nemo_rl.configuration import single_controller_config
from equipoise.train.nemo_rl.engine import prepare_process, register, run_script

FOLDER = "single_controller"


def main(words: list[str] | None = None) -> int:
    """Read the command line and train; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m equipoise.train.nemo_rl.single_controller",
        description="Train on a run's prompts with NeMo-RL's Single Controller, in whole sets.",
    )
    parser.add_argument("run", type=Path, help="a run directory of the engine nemo_rl")
    parser.add_argument(
        "--max-staleness-versions",
        type=int,
        choices=range(100),
        metavar="N",
        default=1,
        help="steps that the weights of a reply may be old; 0: as synchronous GRPO",
    )
    parser.add_argument("--write-only", action="store_true", help="write the configuration alone")
    options = parser.parse_args(words)
    return guarded(partial(train, options.run, options.max_staleness_versions, options.write_only))


def train(folder: Path, staleness: int, write_only: bool, reporter: Reporter) -> None:
    """Write the configuration, and run NeMo-RL's own script with it."""
    installation = find_installation(("run", "controller"))
    run = open_run_directory(folder)
    loaded = load_config(run.ledger.read()["task"], Options((run.config,)))
    check_run(loaded, run)
    path = write_config(loaded, run, installation, staleness)
    reporter.say(f"configuration: {path}")
    if write_only:
        return
    installation.make_importable()
    prepare_process()
    register(loaded.environment_class.name)
    run_script(installation.single_controller, path)


def check_run(loaded: LoadedConfig, run: RunDirectory) -> None:
    """Raise for a run that the Single Controller cannot train on."""
    async_grpo = loaded.config.grpo.async_grpo
    if async_grpo and async_grpo.enabled:
        raise UsageError(
            "single-controller.asynchronous-run",
            f"{run.root} is a run of asynchronous GRPO (grpo.async_grpo.enabled), which is another "
            "way to train on whole sets",
            "Take a run without it, or continue this one with --resume.",
        )
    if loaded.config.policy.model_name == LOCAL_MODEL:
        raise UsageError(
            "single-controller.local-model",
            "policy.model_name is local: the Single Controller trains on GPUs alone",
            "Take a run of a scale that has a model, such as nemo_configs/medium.yaml.",
        )
    if loaded.env_settings.round:
        raise UsageError(
            "single-controller.mixture",
            f"{run.root} trains a mixture, and the Single Controller's sampler counts sets of one "
            "size",
            "Train it with its recipe.",
        )
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    if environment.reference_generations and not run.reference.exists():
        raise EquipoiseError(
            "single-controller.no-reference",
            f"{run.root} has no {run.reference.name}: what the frozen model writes, to which the "
            "reward compares",
            "Start the run with its recipe, which draws it before the first step.",
        )


def write_config(
    loaded: LoadedConfig, run: RunDirectory, installation: Installation, staleness: int
) -> Path:
    """nemo_rl.yaml in the run's folder for the controller, where its checkpoints are, too."""
    own = RunDirectory(run.root / FOLDER)
    base, model = installation.single_controller_config, loaded.config.policy.model_name
    config = single_controller_config(loaded, base, run, model, staleness)
    train = [record for record in record_prompts(run) if record.split == TRAIN_SPLIT]
    config["grpo"]["max_num_steps"] = total_steps(len(train), loaded.config)
    config["checkpointing"]["checkpoint_dir"] = str(own.checkpoints.resolve())
    config["checkpointing"]["metric_name"] = None  # it would be of a validation
    config["logger"]["log_dir"] = str((own.root / "logs").resolve())
    path = own.root / "nemo_rl.yaml"
    own.root.mkdir(exist_ok=True)
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(config)))
    return path


if __name__ == "__main__":
    sys.exit(main())
