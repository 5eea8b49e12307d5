"""Plan of an audit: its rows, the prompts of each, and what they would take."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from environments.base import CONTROL_SPLIT, TRAIN_SPLIT, Message, PromptRecord
from environments.chat import EndpointSettings
from environments.contract import Environment
from environments.yaml_file import YamlFileError, check_tree, read_tree
from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.compose import Setting
from equipoise.config.schema import LOCAL_MODEL, GenerationConfig
from equipoise.files.disk import read_json, seeded_digest
from equipoise.files.errors import EquipoiseError, UsageError, first_line
from equipoise.run.directory import RunDirectory, model_label
from equipoise.run.ledger import PLAIN, Subject, Variant
from equipoise.run.task import prepare_task, prompts_here

_LOG = logging.getLogger(__name__)


# --- subjects -------------------------------------------------------------------------------------
# Models, adapters, checkpoints and endpoints that are audited, and how each of them is asked.


#: `NAME=` before what is named, on a command line.
NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)
_AT_URL = re.compile(r"(.+)@(https?://.+)")
_YAML = (".yaml", ".yml")
#: Folders that are not named after a model: the folder around them is.
_STEP = re.compile(r"final_checkpoint|checkpoints|checkpoint-\d+|step_\d+|iter_\d+")
_HELP = "See docs/evaluate.md."


def read_subjects(models: Sequence[str], adapters: Sequence[str]) -> tuple[Subject, ...]:
    """Read `--model` and `--adapter`. Raises `UsageError`."""
    subjects = [_read_model(word) for word in models]
    if adapters and len(models) > 1:
        raise UsageError(
            "subject.several-bases",
            "--adapter goes with one --model, its base, and there are several",
            "Audit the other models in a call of their own, and compare with `equipoise compare`.",
        )
    if adapters and subjects and subjects[0].endpoint:
        raise UsageError(
            "subject.adapter-of-endpoint",
            "an adapter cannot be put on a model behind an endpoint",
            "Let the server serve it and name that, or name the base as a folder or on the hub.",
        )
    base = subjects[0].model if subjects else ""
    if adapters and base == LOCAL_MODEL:
        raise UsageError(
            "subject.adapter-of-local-model",
            "an adapter needs a base with a folder or a name on the hub, and local has neither",
            "Name the base that the adapter was trained on, or leave --model out.",
        )
    for word in adapters:
        named = NAMED.fullmatch(word)
        name, adapter = named.groups() if named else (label_of(word), word)
        subjects.append(Subject(name, base, adapter=adapter))
    return tuple(subjects)


def _read_model(word: str) -> Subject:
    named = NAMED.fullmatch(word)
    name, model = named.groups() if named else ("", word)
    if model.endswith(_YAML):
        path = Path(model)
        try:
            tree = read_tree(path)
            endpoint = tree.get("endpoint", tree)  # its keys may stand under `endpoint`
            settings = check_tree(path, endpoint, EndpointSettings, strict=False)
        except YamlFileError as error:
            raise UsageError(error.code, str(error), _HELP) from None
        subject = Subject(label_of(settings.model), settings.model, dict(endpoint))
    elif match := _AT_URL.fullmatch(model):
        endpoint = {"model": match[1], "url": match[2]}
        served = _check(endpoint, model).model
        subject = Subject(label_of(served), served, endpoint)
    else:
        subject = Subject(label_of(model), model)
    return replace(subject, label=name) if name else subject


def _check(endpoint: Mapping[str, Any], where: str) -> EndpointSettings:
    try:
        return EndpointSettings.model_validate(endpoint)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(
            "subject.invalid-endpoint", f"{where}: {key}: {first['msg']}", _HELP
        ) from None


def label_of(word: str) -> str:
    """The last part of a name, with the run's where that is a checkpoint's."""
    parts = Path(word).parts
    steps = [part for part in parts[-3:] if _STEP.fullmatch(part)]
    name = next((part for part in reversed(parts) if not _STEP.fullmatch(part)), word)
    return "-".join([model_label(name), *(part for part in steps if part != "checkpoints")])


def endpoint_settings(
    subject: Subject, generation: GenerationConfig, root: Path
) -> EndpointSettings:
    """Settings of the endpoint: it samples as the configuration does, unless its own keys differ.

    Its answers are kept below the audit's `root`, so that they are those of this audit, unless it
    names a cache.
    """
    sampling = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "max_tokens": generation.max_new_tokens,
        "seed": 0,
        "top_k": generation.top_k,
    }
    settings = dict(subject.endpoint)
    parameters = sampling | dict(settings.get("parameters") or {})
    cache = settings.get("cache_dir") or str(root / "answers")
    return _check(settings | {"parameters": parameters, "cache_dir": cache}, subject.label)


# --- ways to ask: each is a row beside the plain one ---------------------------------------------

Ask = Callable[[PromptRecord], PromptRecord]


def unsuited(variant: Variant, environment: type[Environment]) -> str:
    """Say why a task has no such variant; empty where it has."""
    if variant.blinded and not environment.offers(Environment.blinded):
        return f"{environment.name} knows nothing in its prompts that must not decide"
    if variant.shots and not environment.offers(Environment.example_reply):
        return f"{environment.name} knows no good reply to show as an example"
    return ""


def make_ask(
    variant: Variant, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> Ask:
    """Return the function from a plain prompt to the variant's. Raises `UsageError`.

    Examples are drawn from the training prompts among `records`, and from nothing else.
    """
    examples = _examples(variant.shots, environment, records, seed)

    def ask(record: PromptRecord) -> PromptRecord:
        messages = environment.blinded(record) if variant.blinded else record.messages
        if variant.system:  # as the system message, or after the one that is there
            has_system = messages[0]["role"] == "system"
            text = f"{messages[0]['content']}\n\n" * has_system + variant.system
            messages = ({"role": "system", "content": text}, *messages[has_system:])
        start = 1 if messages[0]["role"] == "system" else 0  # examples come before the question
        return replace(record, messages=(*messages[:start], *examples, *messages[start:]))

    return ask


def _examples(
    shots: int, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> list[Message]:
    """Take this many prompts of different sets, each followed by a good reply."""
    if not shots:
        return []
    one_of_each = {r.set_id: r for r in reversed(records) if r.split == TRAIN_SPLIT}
    names = sorted(one_of_each, key=lambda name: seeded_digest(seed, name))
    messages: list[Message] = []
    for record in map(one_of_each.__getitem__, names):
        if (reply := environment.example_reply(record)) is None:
            continue
        messages += (message for message in record.messages if message["role"] != "system")
        messages.append({"role": "assistant", "content": reply})
        if sum(message["role"] == "assistant" for message in messages) == shots:
            return messages
    raise UsageError(
        "subject.too-few-examples",
        f"fewer than {shots} training prompts have a known good reply",
        "Ask for fewer with --few-shot, or make more prompts with equipoise.data.num_samples.",
    )


# --- plan -----------------------------------------------------------------------------------------


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
    plan: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # task: prompts, replies
    schema: int = _SCHEMA


@dataclass(frozen=True, slots=True)
class TaskAudit:
    """An audit's part that is of one task, and where it is kept."""

    audit: Audit
    task: str
    root: Path

    def run_of(self, row: str) -> RunDirectory:
        return RunDirectory(self.root / self.task / row)

    def rows(self, subject: Subject, warn: Callable[[str], None] = lambda _: None) -> "list[Row]":
        """The rows of a model; `warn` is told of variants that the task does not have.

        Raises `UsageError` for such a variant where no other task is asked.
        """
        environment = self.load_plain(subject).environment_class
        rows = []
        for row in (Row(subject, variant) for variant in self.audit.variants):
            reason = unsuited(row.variant, environment)
            if reason and len(self.audit.tasks) == 1:
                raise UsageError(
                    "audit.impossible-row", f"no row {row.variant.name}: {reason}", "Leave it out."
                )
            if reason:
                warn(f"{self.task}: no row {row.name}: {reason}")
            else:
                rows.append(row)
        return rows

    def load_plain(self, subject: Subject) -> LoadedConfig:
        """The configuration of a model's plain row, before it is known what loads as the model."""
        return self.load(subject.model or subject.label, subject.label)

    def load(self, model: str, row: str) -> LoadedConfig:
        """The configuration of a row: that of its folder where it has begun."""
        config = self.run_of(row).config
        if config.is_file():
            return load_config(self.task, Options((config,)), to_train=False)
        row_settings: tuple[tuple[str, str, Any], ...] = (
            ("--model", "policy.model_name", model),
            ("--output-dir", "equipoise.output_dir", str(self.root)),
            ("--run-name", "equipoise.run_name", row),
            ("--engine", "equipoise.engine", "local"),
            ("--no-wandb", "logger.wandb_enabled", False),
        )
        if self.task in self.audit.plan:
            replies = self.audit.plan[self.task][1]
            row_settings += (("--plan", "equipoise.evaluation.generations", replies),)
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
        plain = self.variant == PLAIN
        return self.subject.label if plain else f"{self.subject.label}--{self.variant.name}"

    def __str__(self) -> str:
        """The model and the way of asking, for a message."""
        model = " with ".join(filter(None, (self.subject.model, self.subject.adapter)))
        return f"{model} ({self.variant.name})"


def refuse_equal_names(audit: Audit) -> None:
    """Raise `UsageError` where two rows would share a folder, as on a disk that ignores case."""
    named: dict[str, Row] = {}
    for row in (Row(s, variant) for s in audit.subjects for variant in audit.variants):
        if namesake := named.get(row.name.casefold()):
            raise UsageError(
                "audit.repeated-row",
                f"two rows have the name {row.name}: {namesake} and {row}",
                "Give each a name of its own: NAME=MODEL, --system NAME=TEXT.",
            )
        named[row.name.casefold()] = row


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """The replies that a task needs of each model, and what they take.

    `unknown` metrics have no error yet: their replies are too few or have no score.
    """

    prompts: int
    replies: int
    total: int
    tokens: int
    seconds: float
    decisive: str
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GatePlan:
    """The content of plan.json, which `equipoise gate --plan` writes."""

    tasks: Mapping[str, PlannedTask]
    schema: int = _SCHEMA


def read_plan(path: Path, task: str) -> dict[str, tuple[int, int]]:
    """Read the prompts and replies of a task, or of all, from `equipoise gate --plan`."""
    try:
        plan = TypeAdapter(GatePlan).validate_python(read_json(path)).tasks
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(
            "audit.no-plan",
            f"{path} is not a plan: {first_line(error)}",
            "Make one with `equipoise gate --plan`.",
        ) from None
    if task != "all" and task not in plan:
        raise UsageError(
            "audit.unplanned-task",
            f"{path} plans {', '.join(plan)}, not {task}",
            "Leave --plan out, or plan with a stored evaluation of the task.",
        )
    return {name: (t.prompts, t.replies) for name, t in plan.items() if task in ("all", name)}


def read_audit(root: Path) -> Audit:
    """Read the audit for `--resume`. Raises `UsageError` where there is none."""
    try:
        return TypeAdapter(Audit).validate_python(read_json(root / FILE))
    except (OSError, ValueError, ValidationError) as error:
        raise UsageError(
            "audit.no-audit",
            f"{root} is not an audit to resume: {FILE}: {first_line(error)}",
            "Name the folder of an audit, results/audits/<name>.",
        ) from None


def failed_rows(audit: Audit, errors: Mapping[str, EquipoiseError]) -> EquipoiseError:
    """Make one error of those that ended tasks and models, by their names."""
    if len(audit.tasks) == len(audit.subjects) == 1:
        return next(iter(errors.values()))
    messages = (f"{name}: {error.message}" for name, error in errors.items())
    remedies = dict.fromkeys(error.remedy for error in errors.values() if error.remedy)
    return EquipoiseError(
        "audit.failed-rows",
        "\n".join(["not evaluated, so not compared:", *messages]),
        "\n".join([*remedies, "What is finished is kept: --resume goes on with the rest alone."]),
    )


def select_prompts(
    records: Sequence[PromptRecord], split: str, limit: int | None, seed: int, stratum: str
) -> list[PromptRecord]:
    """The split's prompts, or about `limit` of them in whole sets.

    Of each stratum, a key of the metadata, as large a share is drawn, as if by chance. Controls are
    asked beside the whole split alone.
    """
    split_records = [record for record in records if record.split == split]
    if limit is None or limit >= len(split_records):
        return [r for r in records if r.split in (split, CONTROL_SPLIT)]
    sizes = Counter(record.set_id for record in split_records)
    strata: dict[str, list[str]] = defaultdict(list)
    of_set = {record.set_id: str(record.metadata.get(stratum)) for record in split_records}
    for name in sorted(of_set, key=partial(seeded_digest, seed)):
        strata[of_set[name]].append(name)
    ranks = {name: (n + 0.5) / len(s) for s in strata.values() for n, name in enumerate(s)}
    set_ids: set[str] = set()
    prompts = 0
    for name in sorted(ranks, key=lambda name: (ranks[name], seeded_digest(seed, name))):
        if prompts >= limit:
            break
        set_ids.add(name)
        prompts += sizes[name]
    return [record for record in split_records if record.set_id in set_ids]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """The prompts and replies of a row, the price of its replies, and the calls to score it.

    All but the prompts are at most: a row may take its plain one's reference.
    """

    task: str
    row: str
    prompts: int
    replies: int
    tokens: int
    cost: float
    calls: int


def plan_rows(task_audit: TaskAudit, subject: Subject) -> list[PlannedRow]:
    """Plan the rows of a model on one task. Raises `EquipoiseError` where it cannot be asked."""
    loaded = task_audit.load_plain(subject)
    config, settings = loaded.config, loaded.env_settings
    prepare_task(loaded, _LOG.info, dry_run=True)
    records = prompts_of(loaded, prompts_here(loaded, to_train=False), task_audit.audit)
    tested = [r for r in records if r.split == config.equipoise.evaluation.split]
    replies = len(tested) * config.equipoise.evaluation.generations
    calls = settings.model_calls(records, replies)
    replies += len(records) * settings.reference_size
    tokens = replies * config.policy.generation.max_new_tokens
    cost = 0.0
    if subject.endpoint:
        endpoint = endpoint_settings(subject, config.policy.generation, task_audit.root)
        cost = tokens * endpoint.budget.completion_price / 1e6
    return [
        PlannedRow(task_audit.task, row.name, len(records), replies, tokens, cost, calls)
        for row in task_audit.rows(subject)
    ]


def prompts_of(
    loaded: LoadedConfig, records: Sequence[PromptRecord], audit: Audit
) -> list[PromptRecord]:
    """Those of the task's prompts that the audit asks."""
    split, seed = loaded.config.equipoise.evaluation.split, loaded.config.grpo.seed
    stratum = loaded.environment_class.presentation.one_of_each
    limit = audit.plan[task][0] if (task := loaded.config.equipoise.task) in audit.plan else None
    return select_prompts(records, split, limit or audit.limit, seed, stratum)
