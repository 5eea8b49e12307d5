"""Train a local task by several methods, and measure other ways on the same test items beside them.

    uv run docs/experiments/methods.py --seeds 301 302 303
    uv run docs/experiments/methods.py pubmedqa --seeds 301 --only GRPO "expert iteration"

Every way of a seed has the same prompts, split, local model and reference; a seed has its own of
each. What is finished is not repeated, so that a longer night goes on where a short one ended. The
table goes to methods.md in the output folder, the figures beside it.
"""

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
from seeds import fixed_work

from environments.base import TEST_SPLIT, TRAIN_SPLIT, Message, PromptRecord, Rollout, Score
from environments.fairness.decision import Decision
from equipoise.config import LoadedConfig, load_config
from equipoise.config.words import parse_flags
from equipoise.files.console import Reporter
from equipoise.files.disk import read_json, write_folder, write_json
from equipoise.files.hub import prepare_torch
from equipoise.run.directory import Evaluation, NewRun, RunDirectory
from equipoise.run.job import statistics_settings
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts
from equipoise.run.seals import seal
from equipoise.statistics.evaluation import estimates_of
from equipoise.statistics.intervals import Interval
from equipoise.statistics.seeds import OverSeeds, over_seeds
from equipoise.statistics.trivial import best_of_n

#: Yields TRL's trainers, each to be trained before the next is asked for.
Trainers = Callable[..., Iterator[Any]]
ROOT = Path(__file__).resolve().parents[2]
#: CPU seconds of training, as multiples of the fixed piece of work of seeds.py.
WORK = "fixed_work.json"
#: Of the supervised row, which trains a LoRA; how often each prompt is dealt a reply.
RATE, BATCH, DEALT = 5e-3, 64, 16
#: Of expert iteration: own replies to a prompt, of which the best is imitated, and how often; the
#: rounds of the row with several.
OWN, PASSES, ROUNDS = 8, 3, 4
#: The prompt that asks. The local model has no such words; a real one has.
ASKING = "Decide by the findings alone. The patient's race must make no difference."


def trained_by(trainers: Trainers, job: Any, loaded: Any, _watch: Any) -> None:
    """Train with others of TRL's trainers than GRPO's, and save the final checkpoint."""
    from datasets import disable_progress_bars
    from transformers import PrinterCallback, set_seed

    from equipoise.train.local import trainable

    disable_progress_bars()
    set_seed(job.config.grpo.seed)
    model, policy = trainable(loaded, job.config), job.config.policy
    with tempfile.TemporaryDirectory() as unused:
        common = {
            "output_dir": unused,
            "num_train_epochs": 1,
            "per_device_train_batch_size": BATCH,
            "learning_rate": (
                RATE if policy.dtensor_cfg.lora_cfg.enabled else policy.optimizer.kwargs["lr"]
            ),
            "lr_scheduler_type": "cosine",
            "max_length": None,
            "seed": job.config.grpo.seed,
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 50,
        }
        for training in trainers(job, model, loaded, common):
            training.remove_callback(PrinterCallback)
            training.train()

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)

    write_folder(job.run.final_checkpoint, save)
    seal(job.run, job.run.final_checkpoint)


def supervised(job: Any, model: Any, loaded: Any, common: Mapping[str, Any]) -> Iterator[Any]:
    """Imitate the frozen model's own replies, dealt out over the races."""
    yield imitation(dealt_replies(job, DEALT), model, loaded, common)


def expert_iteration(
    job: Any, model: Any, loaded: Any, common: Mapping[str, Any], rounds: int = 1
) -> Iterator[Any]:
    """Imitate the best paid of the model's own replies to each prompt, in each round anew."""
    from equipoise.run.policy import sampling_of
    from equipoise.run.sampling import sample

    records, batch = job.training_prompts, job.config.equipoise.evaluation.batch_size
    for n in range(rounds):
        sampling = sampling_of(job.config, OWN, batch, job.config.grpo.seed + 1 + n)
        current = replace(loaded, model=model)
        rollouts = sample(current, records, sampling, lambda _: None, lambda *_: None)
        best = best_of_n(rollouts, job.environment.score(rollouts))
        pairs = [(record, best[record.id]) for record in records if record.id in best]
        yield imitation(pairs, model, loaded, {**common, "num_train_epochs": PASSES})


def imitation(
    pairs: Iterable[tuple[PromptRecord, str]], model: Any, loaded: Any, settings: Mapping[str, Any]
) -> Any:
    """Make TRL's trainer of replies to prompts, by the cross entropy of their tokens."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = [
        {"prompt": as_dicts(record.messages), "completion": as_reply(reply)}
        for record, reply in pairs
    ]
    return SFTTrainer(
        model=model,
        args=SFTConfig(**settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
    )


def dealt_replies(job: Any, passes: int) -> Iterator[tuple[PromptRecord, str]]:
    """Deal the frozen model's readable replies out to the races of their set, `passes` times.

    In each pass the prompts of a set are shown one reply to each race, so every race is shown the
    set's blind mixture.
    """
    parse, rng = job.environment.design.form.parse, np.random.default_rng(job.config.grpo.seed)
    replies: dict[str, list[str]] = {}
    for rollout in read_rollouts(job.run.reference):
        if isinstance(parse(rollout.completion), Decision):
            replies.setdefault(rollout.prompt_id, []).append(rollout.completion)
    sets: dict[str, list[PromptRecord]] = {}
    for record in job.training_prompts:
        sets.setdefault(record.set_id, []).append(record)
    orders = {name: rng.permutation(texts) for name, texts in replies.items()}
    for n in range(passes):
        for members in sets.values():
            if all(member.id in replies for member in members):
                for source, member in zip(rng.permutation(len(members)), members, strict=True):
                    order = orders[members[source].id]
                    yield member, str(order[n % len(order)])


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Copy the messages for a data set."""
    return [dict(message) for message in messages]


def as_reply(text: str) -> list[dict[str, str]]:
    """Wrap a text as the assistant's message."""
    return [{"role": "assistant", "content": text}]


GRPO, EXPERT = "GRPO", "expert iteration"
#: None is the local run.
_BOTH: Mapping[str, Trainers | None] = {
    GRPO: None,
    EXPERT: expert_iteration,
    f"{EXPERT}, {ROUNDS} rounds": partial(expert_iteration, rounds=ROUNDS),
}
#: Replies are dealt out over the races, which other tasks have not.
METHODS = {**_BOTH, "supervised": supervised}
UNTRAINED, ASKED, CLASSIFIER = "untrained", "a prompt that asks", "bag of words"
#: The trained model at temperature 0.
LIKELIEST = "GRPO, greedy"


def run_method(case: "Case", name: str, seed: int, folder: Path) -> RunDirectory:
    """Run the local recipe, trained in this way; the run that is there is taken."""
    loaded = configuration(case, seed, folder, probe=name == GRPO)
    root = folder / "runs" / case.task / re.sub(r"\W+", "-", name)
    return timed_run(loaded, RunDirectory(root), case.methods[name])


def timed_run(
    loaded: LoadedConfig, run: RunDirectory, trainers: Trainers | None = None
) -> RunDirectory:
    """Run the recipe and keep what its training took; a finished run is taken as it is."""
    from equipoise.commands.stages import run_pipeline
    from equipoise.train import local as training

    if run.comparison.exists():
        return run
    if run.root.exists():
        shutil.rmtree(run.root)  # of a night that ended in the middle
    prepare_torch(loaded.config.equipoise.threads)
    train = partial(trained_by, trainers) if trainers else training.train
    unit, seconds = fixed_work(), [0.0]

    def timed(*arguments: Any) -> None:
        started = time.process_time()
        train(*arguments)
        seconds[0] = time.process_time() - started

    with patch.object(training, "train", timed):
        new = NewRun(run.root.parent, run.root.name, run.root.name, datetime.now(UTC))
        run_pipeline(loaded, new, Reporter(), lambda _: None)
    write_json(run.root / WORK, seconds[0] / unit)
    return run


def configuration(case: "Case", seed: int, folder: Path, *, probe: bool) -> LoadedConfig:
    """The local run's, with the models and references of the seed in one cache."""
    words = [
        *("--config", str(ROOT / "nemo_configs" / "local.yaml"), "--seed", str(seed), "--no-wandb"),
        f"equipoise.cache_dir={folder / 'cache'}",
        *(() if probe else ("equipoise.probe.prompts=0",)),
        # The interval of a run is not used: seeds have theirs. Nor has it guards to keep.
        "equipoise.evaluation.generations=8",
        *("equipoise.evaluation.bootstrap_draws=400", "equipoise.evaluation.permutations=100"),
    ]
    return load_config(case.task, parse_flags("methods", words))


def measure_seed(case: "Case", seed: int, output: Path, only: Sequence[str]) -> None:
    """Write a file of figures for each row of a seed that has none yet."""
    folder = output / str(seed)
    first = run_method(case, GRPO, seed, folder)

    def row(name: str, path: Path, work: float = 0.0) -> None:
        write_row(folder, name, lambda: measured(first, *read_scored_rollouts(path)), work)

    row(UNTRAINED, first.rollouts("baseline"))
    row(LIKELIEST, first.greedy, read_json(first.root / WORK))
    for name, file in case.policies.items():
        row(name, first.probe / f"{file}.jsonl")
    if case.task == "pubmedqa":
        write_row(folder, CLASSIFIER, lambda: classified_row(first))
    for name in case.methods:
        if name in only:
            run = run_method(case, name, seed, folder)
            row(name, run.rollouts("final"), read_json(run.root / WORK))
    if case.task == "fairness":
        write_row(folder, ASKED, lambda: measured(first, ask(case, first, seed, folder), ()))


def write_row(
    folder: Path, name: str, make: Callable[[], Mapping[str, Any]], work: float = 0.0
) -> None:
    """The figures of a row, once."""
    path = folder / "rows" / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"fixed_work": work, **make()})


def measured(
    run: RunDirectory, rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> dict[str, Any]:
    """Return evaluation.json of these replies, with the reference of `run`, and the mean reward."""
    task = run.root.parent.name
    loaded = load_config(task, parse_flags("methods", ["--config", str(run.config)]))
    environment = loaded.environment_class(loaded.env_settings)
    if environment.reference_generations:
        environment.set_reference(read_rollouts(run.reference))
    scores = scores or environment.score(rollouts)
    values = [score.value for score in scores if score.value is not None]
    statistics = statistics_settings(loaded.config)
    metrics, breakdowns = estimates_of(environment.measure(rollouts, scores), statistics)
    evaluation = Evaluation(metrics=metrics, breakdowns=breakdowns)
    return evaluation.model_dump(exclude_unset=True) | {
        "replies": {"reward": {"value": fmean(values)}}
    }


def ask(case: "Case", run: RunDirectory, seed: int, folder: Path) -> list[Rollout]:
    """Draw the replies of the untrained model, asked to be fair."""
    from equipoise.run.policy import open_policy, sampling_of
    from equipoise.run.sampling import sample
    from equipoise.run.task import read_records

    loaded = configuration(case, seed, folder, probe=False)
    evaluation = loaded.config.equipoise.evaluation
    records = read_records(run.prompts)
    name = str(next((folder / "cache").glob("*/config.json")).parent)
    model = open_policy(loaded.config, records, name)
    asked = [with_request(r) for r in records if r.split == evaluation.split]
    size, stream = evaluation.batch_size, evaluation.seed + 2
    sampling = sampling_of(loaded.config, evaluation.generations, size, stream)
    return sample(model, asked, sampling, lambda _: None, lambda *_: None)


def with_request(record: PromptRecord) -> PromptRecord:
    """The prompt with the request behind it; the local model's template has no system message."""
    *others, last = record.messages
    content = f"{last['content']} {ASKING}"
    return replace(record, messages=(*others, {"role": last["role"], "content": content}))


def classified_row(run: RunDirectory) -> dict[str, Any]:
    """Return the figures of the classifier, with the work of fitting it."""
    unit, started = fixed_work(), time.process_time()
    rollouts = classified(run)
    work = (time.process_time() - started) / unit
    return measured(run, rollouts, ()) | {"fixed_work": work}


def classified(run: RunDirectory) -> list[Rollout]:
    """Answer test questions by logistic regression on the words of question and nearest finding.

    It is fitted to the labels of the training questions. Each reply quotes the finding that shares
    most words with its question.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from environments.pubmedqa.reply import closeness, reply_text, sentences_of_findings
    from equipoise.run.task import read_records

    def nearest(record: PromptRecord) -> str:
        question = str(record.metadata["question"])
        findings = sentences_of_findings(str(record.metadata["context"]))
        return max(findings, key=lambda finding: closeness(finding, question))

    def texts(records: Sequence[PromptRecord]) -> list[str]:
        return [f"{record.metadata['question']} {nearest(record)}" for record in records]

    records = read_records(run.prompts)
    shown = [record for record in records if record.split == TRAIN_SPLIT]
    tested = [record for record in records if record.split == TEST_SPLIT]
    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=2000))
    model.fit(texts(shown), [record.metadata["gold"] for record in shown])
    return [
        Rollout(r.id, r.set_id, r.split, "", reply_text(f'"{nearest(r)}"', answer), r.metadata)
        for r, answer in zip(tested, model.predict(texts(tested)), strict=True)
    ]


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """A figure of a row: a metric, as it is or as the change from that of the untrained model."""

    title: str
    metric: str
    section: str = "metrics"
    key: str = ""
    change: str = ""  # "share", "points"

    def of(self, row: Mapping[str, Any], untrained: Mapping[str, Any]) -> float | None:
        """The figure; None where it is not defined."""
        if self.metric == "fixed_work":
            return float(row[self.metric])
        value, before = (self._at(each) for each in (row, untrained))
        if value is None or (self.change and before is None):
            return None
        if self.change == "share":
            return 100 * (value / before - 1)
        return 100 * (value - before) if self.change == "points" else value

    def _at(self, row: Mapping[str, Any]) -> float | None:
        section = row[self.section]
        return (section[self.key] if self.key else section)[self.metric]["value"]


_WORK = ColumnOf("times the fixed work", "fixed_work")
_REWARD = ColumnOf("reward", "reward", "replies")
_DISTANCES = (
    ColumnOf("distance", "blind_distance"),
    ColumnOf("what race makes of it", "race_distance"),
    ColumnOf("named", "blind_distance", "by_cue", "named"),
    ColumnOf("implied", "blind_distance", "by_cue", "implied"),
)
_KEPT = (
    ColumnOf("severity, %", "clinical_slope", change="share"),
    ColumnOf("occupation, %", "occupation_effect", change="share"),
    ColumnOf("age, %", "age_effect", change="share"),
    ColumnOf("emergencies, points", "emergency_surgery", change="points"),
    ColumnOf("spread, %", "decision_spread", change="share"),
    ColumnOf("parse rate", "parse_rate"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A task with its ways and the columns of its table.

    `policies` are ways without training: row -> file in the probe of a seed's run of GRPO.
    """

    task: str
    methods: Mapping[str, Trainers | None]
    policies: Mapping[str, str]
    columns: Sequence[ColumnOf]

    @property
    def rows(self) -> Sequence[str]:
        """All that its table can have, in its order."""
        return (UNTRAINED, ASKED, *self.policies, CLASSIFIER, *self.methods, LIKELIEST)


_CHEAP = {"best constant": "constant", "vote": "vote", "untrained, greedy": "greedy"}
_BLIND = {"blinded": "blinded", "random race": "random-race"}
CASES: Mapping[str, Case] = {
    "fairness": Case(
        "fairness",
        METHODS,
        _BLIND,
        (
            *_DISTANCES,
            ColumnOf("new injury", "blind_distance", "by_hold_out", "new injury"),
            ColumnOf("another race told", "names_other_race"),
            ColumnOf("contradicts the prompt", "contradicts_prompt"),
            *_KEPT,
            _WORK,
        ),
    ),
    "pubmedqa": Case(
        "pubmedqa",
        _BOTH,
        _CHEAP,
        (
            ColumnOf("accuracy", "accuracy"),
            _REWARD,
            ColumnOf("grounded", "grounded_rate"),
            ColumnOf("made-up quotes", "false_quote_rate"),
            _WORK,
        ),
    ),
    "rag": Case(
        "rag",
        _BOTH,
        _CHEAP,
        (ColumnOf("accuracy", "accuracy"), _REWARD, ColumnOf("recall", "retrieval_recall"), _WORK),
    ),
    "dharma": Case(
        "dharma",
        _BOTH,
        _CHEAP,
        (
            ColumnOf("combined", "combined_score"),
            _REWARD,
            ColumnOf("violations", "dharma_violation_rate"),
            ColumnOf("right advice", "right_advice_rate"),
            ColumnOf("needless referrals", "needless_referral_rate"),
            _WORK,
        ),
    ),
}


def table(case: Case, output: Path, seeds: Sequence[int]) -> str:
    """The figures as Markdown: the mean over seeds, in brackets its 95% interval."""
    rows = {
        name: [read_json(output / str(s) / "rows" / f"{name}.json") for s in there]
        for name in case.rows
        if (there := [s for s in seeds if (output / str(s) / "rows" / f"{name}.json").exists()])
    }
    untrained = {s: read_json(output / str(s) / "rows" / f"{UNTRAINED}.json") for s in seeds}
    head = ["way", "trained", "seeds", *(column.title for column in case.columns)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, read in rows.items():
        there = [s for s in seeds if (output / str(s) / "rows" / f"{name}.json").exists()]
        cells = [
            cell([column.of(row, untrained[s]) for s, row in zip(there, read, strict=True)], column)
            for column in case.columns
        ]
        trained = "yes" if name in (CLASSIFIER, LIKELIEST, *case.methods) else "no"
        lines.append(f"| {name} | {trained} | {len(read)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def cell(values: Sequence[float | None], column: ColumnOf) -> str:
    """One figure over the seeds; a dash where a seed has none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    digits = 0 if column.change or column.metric == "fixed_work" else 3
    told = over(known)
    if told.interval is None or column.metric == "fixed_work":
        return f"{told.mean:.{digits}f}"
    ends = f"{told.interval.low:.{digits}f} to {told.interval.high:.{digits}f}"
    return f"{told.mean:.{digits}f} ({ends})"


def over(values: Sequence[float]) -> OverSeeds:
    """Each seed has test items of its own, so the spread over seeds holds that of items too."""
    none = [Interval(value, value) for value in values]
    return over_seeds(values, none, confidence=0.95, same_items=False)


def main() -> None:
    """Train what is missing, then write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("case", nargs="?", choices=CASES, default="fairness")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "methods")
    options = parser.parse_args()
    case, output = CASES[options.case], options.output / options.case
    for seed in options.seeds:
        measure_seed(case, seed, output, options.only)
    text = table(case, output, options.seeds)
    (output / "methods.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
