"""Plan of an audit: its rows, the prompts of each, and what they would take."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_prep.files import read_json, write_json
from data_prep.splits import seeded_digest
from environments.base import CONTROL_SPLIT, PromptRecord
from environments.contract import Environment
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.flags import Setting
from equipoise.errors import UsageError
from equipoise.evaluate.subjects import PLAIN, Subject, Variant, endpoint_settings, unsuited
from equipoise.run.directory import RunDirectory
from equipoise.run.prompts import prepare_task, prompts_here
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

FILE = "audit.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit as requested. `limit` is the most prompts, in whole sets; None for all."""

    tasks: tuple[str, ...]
    subjects: tuple[Subject, ...]
    variants: tuple[Variant, ...] = (PLAIN,)
    limit: int | None = None
    config_files: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, Any], ...] = ()  # flag, key, value
    assignments: tuple[str, ...] = ()
    unsealed: bool = False  # whether files of runs are accepted without their seals
    schema: int = _SCHEMA


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """An audit's part that is of one task: where it is kept, and who is told of it."""

    audit: Audit
    task: str
    root: Path
    reporter: Reporter

    def run_of(self, row: str) -> RunDirectory:
        """A row's directory."""
        return RunDirectory(self.root / self.task / row)

    def load(self, model: str, row: str) -> LoadedConfig:
        """The configuration of a row: that of its folder where it has begun."""
        config = self.run_of(row).config
        if config.is_file():
            return load_config(self.task, Options((config,)), to_train=False)
        row_settings = (
            ("--model", "policy.model_name", model),
            ("--output-dir", "equipoise.output_dir", str(self.root)),
            ("--run-name", "equipoise.run_name", row),
            ("--engine", "equipoise.engine", "local"),
            ("--no-wandb", "logger.wandb_enabled", False),
        )
        settings = tuple(Setting(*setting) for setting in (*row_settings, *self.audit.settings))
        files = tuple(map(Path, self.audit.config_files))
        options = Options(files, settings, self.audit.assignments)
        return load_config(self.task, options, to_train=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One model asked in one way."""

    subject: Subject
    variant: Variant

    @property
    def name(self) -> str:
        """The name of its folder."""
        plain = self.variant == PLAIN
        return self.subject.label if plain else f"{self.subject.label}--{self.variant.name}"


def write_audit(root: Path, audit: Audit) -> None:
    """Write audit.json."""
    write_json(root / FILE, asdict(audit))


def read_audit(root: Path) -> Audit:
    """Read the audit for `--resume`. Raises `UsageError` where there is none."""
    try:
        return TypeAdapter(Audit).validate_python(read_json(root / FILE))
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(
            "audit.no-audit",
            f"{root} is no audit to resume: {FILE}: {str(error).splitlines()[0]}",
            "Name the folder of an audit, results/audits/<name>.",
        ) from None


def rows_of(audit: Audit, subject: Subject, environment: type[Environment]) -> list[Row]:
    """The rows of a model on one task, without variants that one of the two does not have.

    Raises `UsageError` where nothing else was asked for.
    """
    rows = []
    for variant in audit.variants:
        reason = unsuited(variant, environment, endpoint=bool(subject.endpoint))
        if reason and len(audit.tasks) == 1 and len(audit.subjects) == 1:
            raise UsageError(
                "audit.impossible-row", f"no row {variant.name}: {reason}", "Leave it out."
            )
        rows += [] if reason else [Row(subject, variant)]
    return rows


def tell_missing_rows(
    task_audit: TaskAudit, subject: Subject, environment: type[Environment]
) -> None:
    """Warn of the rows that `rows_of` leaves out."""
    for variant in task_audit.audit.variants:
        if reason := unsuited(variant, environment, endpoint=bool(subject.endpoint)):
            task_audit.reporter.warn(
                f"{task_audit.task}: no row {Row(subject, variant).name}: {reason}"
            )


def select_prompts(
    records: Sequence[PromptRecord], split: str, limit: int | None, seed: int
) -> list[PromptRecord]:
    """The split's prompts, or about `limit` of them in whole sets as if by chance.

    Controls are asked beside the whole split alone.
    """
    split_records = [record for record in records if record.split == split]
    if limit is None or limit >= len(split_records):
        return [r for r in records if r.split in (split, CONTROL_SPLIT)]
    sizes = Counter(record.set_id for record in split_records)
    set_ids: set[str] = set()
    prompts = 0
    for name in sorted(sizes, key=partial(seeded_digest, seed)):
        if prompts >= limit:
            break
        set_ids.add(name)
        prompts += sizes[name]
    return [record for record in split_records if record.set_id in set_ids]


def print_plan(reporter: Reporter, rows: Sequence[tuple[str, ...]]) -> None:
    """Print the rows of `plan_row`."""
    columns = [Column("task"), Column("row", folds=True)]
    columns += [Column(n) for n in ("prompts", "replies", "tokens", "cost", "calls to score")]
    reporter.table("What would be asked, at most", columns, rows)


def plan_rows(task_audit: TaskAudit) -> list[tuple[str, ...]]:
    """For `--dry-run`, what each row asks."""
    table = []
    for subject in task_audit.audit.subjects:
        loaded = task_audit.load(subject.model or subject.label, subject.label)
        prepare_task(loaded, task_audit.reporter.say, dry_run=True)
        split, seed = loaded.config.equipoise.evaluation.split, loaded.config.grpo.seed
        records = prompts_here(loaded, to_train=False)
        prompts = select_prompts(records, split, task_audit.audit.limit, seed)
        rows = rows_of(task_audit.audit, subject, loaded.environment_class)
        table += [plan_row(loaded, row, prompts, task_audit.root) for row in rows]
    return table


def plan_row(
    loaded: LoadedConfig, row: Row, records: Sequence[PromptRecord], root: Path
) -> tuple[str, ...]:
    """Return task, row, prompts, replies, their tokens and price, and calls to score them."""
    config, settings = loaded.config, loaded.env_settings
    tested = [r for r in records if r.split == config.equipoise.evaluation.split]
    replies = len(tested) * config.equipoise.evaluation.generations
    calls = settings.model_calls(records, replies)
    # At most: a row may share its plain one.
    replies += len(settings.reference_prompts(records)) * settings.reference_size
    tokens = replies * config.policy.generation.max_new_tokens
    cost = 0.0
    if row.subject.endpoint:
        endpoint = endpoint_settings(row.subject, config.policy.generation, root / "answers")
        cost = tokens * endpoint.budget.completion_price / 1e6
    counts = (len(records), replies, tokens)
    priced = f"{cost:,.2f} + prompts" if cost else "-"
    return (
        *(config.equipoise.task, row.name, *(f"{count:,}" for count in counts)),
        *(priced, f"{calls:,}" if calls else "-"),
    )
