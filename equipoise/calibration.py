"""How far a judge can be trusted: its agreement with labelled prompts, and with a run's judge.

    uv run recipes/calibrate_judge.py --judge rules --prompts labelled.jsonl
    uv run recipes/calibrate_judge.py --judge judge.yaml --run results/dharma/<run name>

`judge.yaml` holds the keys of `env.dharma.judge`. With a run, its final rollouts are rated again,
what its own judge said is taken from the file, and the report shows the result.
"""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_prep.dharma.sources import import_prompts
from data_prep.faults import DataError
from data_prep.files import write_json
from environments.base import Failure, Rollout, Score
from environments.dharma.agreement import Verdict, confusion, judge_agreement, label_agreement
from environments.dharma.environment import JudgeSettings, make_judge, question
from environments.dharma.judge import Exchange, Judge, ModelJudge
from environments.dharma.policy import Decision, PolicySettings, load_policy, policy_input
from environments.dharma.ratings import SCOPES, TIERS, PromptLabel, Ratings
from environments.measurement import Measurement
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluation.evaluate import evaluation_dict
from equipoise.evaluation.statistics import StatisticsSettings
from equipoise.report import write_report
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.stages.summary import interval, number
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

SCHEMA = 1
RULES = "rules"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    judge: str
    prompts: Path | None
    run: Path | None
    limit: int
    output: Path | None


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", default=RULES, metavar="FILE", help="rules, or a YAML file")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL with tier and scope")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a run of the dharma task")
    parser.add_argument("--limit", type=int, default=400, metavar="N", help="replies to rate again")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: judge_agreement.json")
    options = Options(**vars(parser.parse_args(arguments)))
    if not (options.prompts or options.run) or options.limit < 1:
        parser.error("--prompts or --run is needed, and a --limit of at least 1")
    return options


def calibrate(options: Options, reporter: Reporter) -> None:
    """Ask the judge, then print and write the agreement."""
    judge = open_judge(options.judge)
    result: dict[str, Any] = {"schema": SCHEMA, "judge": judge.identity}
    result["confidence"] = StatisticsSettings().confidence
    if options.prompts:
        result["labels"] = with_labels(judge, options.prompts)
    if options.run:
        result["judges"] = with_run(judge, RunDirectory(options.run), options.limit)
    for part in ("labels", "judges"):
        if part in result:
            _print(reporter, result[part])
    path = options.output or RunDirectory(options.run or Path()).agreement
    write_json(path, result)
    reporter.say(f"\nagreement: {path}")
    if options.run and path.parent == options.run:
        reporter.say(f"report: {write_report(options.run)}")


def open_judge(name: str) -> Judge:
    """The rules, or the judge that a YAML file describes. Raises `EquipoiseError`."""
    try:
        values = {} if name == RULES else yaml.safe_load(read_yaml(Path(name)))
        settings = JudgeSettings.model_validate(values)
        judge = make_judge(settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{name}: {place}: {first['msg']}", "See docs/dharma.md.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"no judge from {name}: {error}", "See docs/dharma.md.") from None
    if judge is None:
        from equipoise.models.chat import HuggingFaceChatModel  # imports torch

        return ModelJudge(HuggingFaceChatModel(str(settings.model)))
    return judge


# --- with labels ---------------------------------------------------------------------------------


def with_labels(judge: Judge, path: Path) -> dict[str, Any]:
    """The judge's labels of the prompts of a file beside those that the file gives."""
    try:
        records = [r for r in import_prompts(path) if {"tier", "scope"} <= r.metadata.keys()]
    except DataError as error:
        raise EquipoiseError(str(error), "Mend the file.") from None
    if not records:
        raise EquipoiseError(f"{path} labels no prompt", 'Give its lines "tier" and "scope".')
    found = judge.label([str(record.metadata["question"]) for record in records])
    known = [(r, f) for r, f in zip(records, found, strict=True) if isinstance(f, PromptLabel)]
    if not known:
        raise EquipoiseError(f"the judge labelled no prompt: {_first_reason(found)}", "Mend it.")
    labels = [PromptLabel(tier=r.metadata["tier"], scope=r.metadata["scope"]) for r, _ in known]
    judged = [label for _, label in known]
    return {
        "of": f"labels of {path.name}",
        "n": len(known),
        "failed": len(found) - len(known),
        "metrics": _figures(label_agreement([r.id for r, _ in known], labels, judged)),
        "confusion": {
            "scope": confusion([a.scope for a in labels], [b.scope for b in judged], SCOPES),
            "tier": confusion([a.tier for a in labels], [b.tier for b in judged], TIERS),
        },
    }


# --- with a run's judge --------------------------------------------------------------------------


def with_run(judge: Judge, run: RunDirectory, limit: int) -> dict[str, Any]:
    """The judge's ratings of a run's final replies beside those of the run's own judge."""
    pairs = _sampled(*read_scored_rollouts(run.rollouts("final")), limit)
    if not pairs:
        raise EquipoiseError(f"{run.root} has no rated reply", "Name a run of the dharma task.")
    labels = [PromptLabel.model_validate(score.evidence["label"]) for _, score in pairs]
    found = judge.rate(
        [
            Exchange(question(rollout), label, rollout.completion)
            for (rollout, _), label in zip(pairs, labels, strict=True)
        ]
    )
    verdicts = _decide(labels, found)
    both = [
        (rollout.prompt_id, _recorded(score), verdict)
        for (rollout, score), verdict in zip(pairs, verdicts, strict=True)
        if verdict is not None
    ]
    if not both:
        raise EquipoiseError(f"the judge rated no reply: {_first_reason(found)}", "Mend it.")
    names, first, second = (list(column) for column in zip(*both, strict=True))
    return {
        "of": "the judge of the run",
        "n": len(both),
        "failed": len(found) - len(both),
        "metrics": _figures(judge_agreement(names, first, second)),
        "confusion": {
            "response_scope": confusion(
                [v.ratings.response_scope for v in first],
                [v.ratings.response_scope for v in second],
                SCOPES,
            )
        },
    }


def _sampled(
    rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int
) -> list[tuple[Rollout, Score]]:
    """The rated replies with the smallest hashes, different ones of a prompt alone."""
    rated = {
        (rollout.prompt_id, rollout.completion): (rollout, score)
        for rollout, score in zip(rollouts, scores, strict=True)
        if {"label", "ratings", "decision"} <= score.evidence.keys()
    }
    ranked = sorted(rated, key=lambda key: hashlib.sha256(repr(key).encode()).digest())
    return [rated[key] for key in ranked[:limit]]


def _recorded(score: Score) -> Verdict:
    return Verdict(
        Ratings.model_validate(score.evidence["ratings"]),
        Decision.model_validate(score.evidence["decision"]),
    )


def _decide(
    labels: Sequence[PromptLabel], found: Sequence[Ratings | Failure]
) -> list[Verdict | None]:
    """What the shipped policy makes of the ratings; None where there is none."""
    rated = [(a, r) for a, r in zip(labels, found, strict=True) if isinstance(r, Ratings)]
    decisions = iter(load_policy(PolicySettings()).decide([policy_input(*r) for r in rated]))
    verdicts: list[Verdict | None] = []
    for ratings in found:
        if not isinstance(ratings, Ratings):
            verdicts.append(None)
            continue
        decision = next(decisions)
        verdicts.append(Verdict(ratings, decision) if isinstance(decision, Decision) else None)
    return verdicts


def _first_reason(found: Sequence[object]) -> str:
    return next((f.text for f in found if isinstance(f, Failure)), "no reason given")


# --- figures -------------------------------------------------------------------------------------


def _figures(measurement: Measurement) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = evaluation_dict(
        measurement,
        task="dharma",
        split="",
        model="",
        n_prompts=len(set(measurement.clusters)),
        n_rollouts=len(measurement.clusters),
        failures={},
        settings=StatisticsSettings(),
    )["metrics"]
    return found


def _print(reporter: Reporter, part: Mapping[str, Any]) -> None:
    rows = [
        (name, number(found["value"]), interval(found)) for name, found in part["metrics"].items()
    ]
    failed = f", {part['failed']:,} failed" if part["failed"] else ""
    title = f"Agreement with {part['of']}: {part['n']:,} judged{failed}"
    columns = (Column("measure", folds=True), Column("value"), Column("95% interval"))
    reporter.table(title, columns, rows, all_in="judge_agreement.json")
