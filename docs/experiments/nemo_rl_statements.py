r"""How many of NeMo-RL's statements a rehearsal runs, over all of its processes, by part.

    export NEMO_RL_PATH=/path/to/RL
    uv run --extra rehearse --with coverage python docs/experiments/nemo_rl_statements.py \
        recipes/grpo_dharma.py --rehearse --config nemo_configs/medium.yaml

Ray ends its workers without a word, so each process writes what it has run every two seconds.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import coverage

PARTS = {
    "set-up and loop": ("algorithms/grpo.py",),
    "losses": ("algorithms/loss/",),
    "advantages and the rest of algorithms": ("algorithms/",),
    "rollouts": ("experience/rollouts.py",),
    "data": ("data/",),
    "logger, checkpoint manager, timers": ("utils/",),
    "DTensor worker": ("models/policy/workers/dtensor_policy_worker_v2.py",),
    "Automodel": ("models/automodel/",),
    "lm_policy": ("models/policy/lm_policy.py",),
    "worker groups, cluster, placement": ("distributed/",),
    "VllmGeneration": ("models/generation/vllm/vllm_generation.py",),
    "vLLM's workers": ("models/generation/vllm/",),
    "Megatron": ("models/megatron/", "models/policy/workers/megatron_policy_worker.py"),
    "all else": ("",),
}
START = """
import threading, time
import coverage
running = coverage.Coverage(config_file={config!r})
running.start()
def write():
    while True:
        time.sleep(2)
        running.save()
threading.Thread(target=write, daemon=True).start()
"""


def main(words: list[str]) -> int:
    """Run the command with every process measured, and print the table."""
    root = Path(os.environ["NEMO_RL_PATH"]).resolve() / "nemo_rl"
    with TemporaryDirectory() as made:
        folder, config = Path(made), Path(made) / "coveragerc"
        config.write_text(
            f"[run]\nparallel = true\ndata_file = {folder / 'data'}\nsource = {root}\n"
            "disable_warnings = no-data-collected,module-not-imported\n"
        )
        (folder / "sitecustomize.py").write_text(START.format(config=str(config)))
        paths = (made, str(Path(coverage.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ended = subprocess.run([sys.executable, *words], env=environment, check=False)
        measured = coverage.Coverage(config_file=str(config))
        measured.combine([made])
        show(measured, root)
    return ended.returncode


def show(measured: coverage.Coverage, root: Path) -> None:
    """A table of Markdown; each file counts for the first part that it belongs to."""
    counts = {part: [0, 0] for part in PARTS}
    for path in sorted(root.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        name = path.relative_to(root).as_posix()
        part = next(part for part, starts in PARTS.items() if name.startswith(starts))
        counts[part][0] += len(statements)
        counts[part][1] += len(statements) - len(missing)
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    print("| part | statements | run | share |\n|---|---|---|---|")
    for part, (statements, run) in (*counts.items(), ("**in all**", total)):
        print(f"| {part} | {statements:,} | {run:,} | {run / statements:.0%} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
