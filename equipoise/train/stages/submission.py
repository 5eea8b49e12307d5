"""The line that puts a run into Slurm's queue."""

import argparse
import math
import shlex
from collections.abc import Sequence

from equipoise.config.schema import Config

_SCRIPT = "containers/slurm/grpo.sbatch"
#: The job ends its step ten minutes before its time is up, and estimates may be too low.
_MARGIN = 1.25
#: A longer run queues itself again; partitions seldom allow more.
_LONGEST_HOURS = 24


def sbatch_line(config: Config, arguments: Sequence[str], hours: float | None = None) -> str:
    """Return a shell's line: the job of `arguments`, a recipe and its words, on the nodes it needs.

    Its time is that of `hours`, an estimate, and a margin; without one it is the partition's.
    Words that the job decides by itself are left out; a name and a folder become its variables.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--dry-run", "--dry_run", action="store_true")
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--run-name", "--run_name", dest="EQUIPOISE_RUN_NAME")
    parser.add_argument("--output-dir", "--output_dir", "--output", dest="EQUIPOISE_OUTPUT")
    flags, words = parser.parse_known_args(arguments)
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in vars(flags).items()
        if name.isupper() and value
    ]
    nodes, gpus = config.cluster.num_nodes, config.cluster.gpus_per_node
    resources = [f"--nodes={nodes}", f"--gpus-per-node={gpus}", *_time(hours)]
    command = ["sbatch", *resources, _SCRIPT, *words]
    return " ".join([*variables, shlex.join(command)])


def _time(hours: float | None) -> list[str]:
    if hours is None:
        return []
    return [f"--time={min(math.ceil(hours * _MARGIN), _LONGEST_HOURS)}:00:00"]
