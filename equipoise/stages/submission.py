"""The line that puts a run into Slurm's queue."""

import argparse
import shlex
from collections.abc import Sequence

from equipoise.config.schema import Config

_SCRIPT = "containers/slurm/grpo.sbatch"


def sbatch_line(config: Config, arguments: Sequence[str]) -> str:
    """What a shell takes: the job of `arguments`, a recipe and its words, on the nodes it needs.

    Words that the job decides by itself are left out; a name and a folder become its variables.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--run-name", dest="EQUIPOISE_RUN_NAME")
    parser.add_argument("--output-dir", dest="EQUIPOISE_OUTPUT")
    given, words = parser.parse_known_args(arguments)
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in vars(given).items()
        if name.isupper() and value
    ]
    nodes, gpus = config.cluster.num_nodes, config.cluster.gpus_per_node
    command = ["sbatch", f"--nodes={nodes}", f"--gpus-per-node={gpus}", _SCRIPT, *words]
    return " ".join([*variables, shlex.join(command)])
