"""`--dry-run`: what would run, counted, without loading a model or training anything."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from environments.contract import Environment
from equipoise.config import LoadedConfig
from equipoise.config.dry_run import Row, dry_run_rows
from equipoise.config.schedule import probe_replies, total_generations, workload_of
from equipoise.config.schema import Config
from equipoise.config.task_code import set_size
from equipoise.files.console import Column, Reporter
from equipoise.files.disk import write_text
from equipoise.models.hub import refuse_missing_package
from equipoise.models.task_environment import make_environment, provide_models
from equipoise.run.directory import usable_folder
from equipoise.run.job import check_environment
from equipoise.run.prompts import check_steps, check_task, prepare_task, prompts_here

_SCRIPT = "containers/slurm/grpo.sbatch"
#: A longer run queues itself again.
_TIME = "4:00:00"


def dry_run(loaded: LoadedConfig, label: str, reporter: Reporter, *, ask: bool = False) -> None:
    """Print the arithmetic and write the resolved configuration; load no model, train nothing.

    With `ask` what prepares prompts and gives reward is asked one question.
    """
    settings = loaded.config.equipoise
    folder = Path(settings.output_dir) / settings.task
    usable_folder(folder, "--output-dir")
    refuse_missing_package(loaded.config.policy.model_name)
    prepare_task(loaded, reporter.say, dry_run=True, ask=ask)
    if ask:
        ask_environment(loaded, reporter)
    records = prompts_here(loaded)
    check_steps(loaded, records)
    scoring = loaded.env_settings
    blinds = loaded.environment_class.offers(Environment.blinded)
    size = set_size(loaded.environment_class, loaded.env_settings)
    workload = workload_of(records, size, scoring.reference_size, blinds=blinds)
    rows = dry_run_rows(loaded.config, loaded.engine, workload)
    generations = total_generations(loaded.config, loaded.engine, workload)
    scored = generations + probe_replies(loaded.config, workload)
    if calls := scoring.model_calls(records, scored):
        note = "of other models; equal ones are asked once"
        rows.append(Row("model calls", f"<= {calls:,}", note))
    rows += check_task(loaded, records)
    cells = [(row.label, row.value, row.note) for row in rows]
    columns = [Column(name, folds=True) for name in ("what", "figure", "note")]
    reporter.table("What would run", columns, cells)
    path = folder / f"{settings.run_name or label}.dry-run.yaml"
    write_text(path, loaded.to_yaml())
    reporter.say(f"resolved configuration: {path}")
    if loaded.engine == "nemo_rl":
        reporter.say(f"on Slurm: {sbatch_line(loaded.config, sys.argv)}")


def ask_environment(loaded: LoadedConfig, reporter: Reporter) -> None:
    """Ask what gives reward one question, and say that it answers."""
    environment = make_environment(loaded.environment_class, loaded.env_settings)
    provide_models(environment, loaded.config.equipoise.cache_dir)
    check_environment(environment, reporter)
    reporter.say("what gives reward answers")


def sbatch_line(config: Config, arguments: Sequence[str]) -> str:
    """Return a shell's line: the job of `arguments`, a recipe and its words, on the nodes it needs.

    Words that the job decides by itself are left out; a name and a folder become its variables.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--dry-run", "--dry_run", action="store_true")
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--run-name", "--run_name", dest="EQUIPOISE_RUN_NAME")
    parser.add_argument("--output-dir", "--output_dir", "--output", dest="EQUIPOISE_OUTPUT")
    flags, words = parser.parse_known_args(arguments)
    if Path(words[0]).stem in ("__main__", "equipoise"):  # `equipoise train TASK`
        task = config.equipoise.task
        own = [word for word in words[1:] if word not in ("train", task)]
        words = [f"recipes/grpo_{task}.py", *own]
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in vars(flags).items()
        if name.isupper() and value
    ]
    nodes, gpus = config.cluster.num_nodes, config.cluster.gpus_per_node
    resources = [f"--nodes={nodes}", f"--gpus-per-node={gpus}", f"--time={_TIME}"]
    command = ["sbatch", *resources, _SCRIPT, *words]
    return " ".join([*variables, shlex.join(command)])
