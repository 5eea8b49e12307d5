"""Models, adapters, checkpoints and endpoints that are audited, and how each of them is asked."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep.splits import seeded_digest
from environments.base import TRAIN_SPLIT, Message, PromptRecord, Yardstick
from environments.chat import EndpointSettings
from environments.contract import Environment
from environments.yaml_file import YamlFileError, check_tree, read_tree
from equipoise.config.schema import LOCAL_MODEL, GenerationConfig
from equipoise.errors import UsageError
from equipoise.run.directory import model_label
from equipoise.run.kept_files import check_part
from equipoise.terminal.console import Reporter

#: `NAME=` before what is named, on a command line.
NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)
_AT_URL = re.compile(r"(.+)@(https?://.+)")
_YAML = (".yaml", ".yml")
#: Folders that are not named after a model: the folder around them is.
_STEP = re.compile(r"final_checkpoint|checkpoints|checkpoint-\d+|step_\d+|iter_\d+")
_HELP = "See docs/audit.md."


@dataclass(frozen=True, slots=True)
class Subject:
    """One model: `label` is what tables and folders call it.

    `model` is a name on the hub, a folder, the word `local`, or the name at an `endpoint`, which
    has the keys of `EndpointSettings` as they were given. An `adapter` is merged into `model`, or
    into the base that it names itself where that is empty.
    """

    label: str
    model: str
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""


def read_subjects(models: Sequence[str], adapters: Sequence[str]) -> tuple[Subject, ...]:
    """Read `--model` and `--adapter` into subjects with unique labels. Raises `UsageError`."""
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
    return tuple(_distinct([*subjects, *(_read_adapter(word, base) for word in adapters)]))


def _read_model(word: str) -> Subject:
    named = NAMED.fullmatch(word)
    name, model = named.groups() if named else ("", word)
    if model.endswith(_YAML):
        subject = _read_file(Path(model))
    elif match := _AT_URL.fullmatch(model):
        subject = _behind({"model": match[1], "url": match[2]}, model)
    else:
        subject = Subject(label_of(model), model)
    return replace(subject, label=name) if name else subject


def _read_adapter(word: str, base: str) -> Subject:
    named = NAMED.fullmatch(word)
    name, adapter = named.groups() if named else (label_of(word), word)
    return Subject(name, base, adapter=adapter)


def _read_file(path: Path) -> Subject:
    """The endpoint in a YAML file: its keys, which may stand under `endpoint`."""
    try:
        tree = read_tree(path)
        endpoint = tree.get("endpoint", tree)
        settings = check_tree(path, endpoint, EndpointSettings, strict=False)
    except YamlFileError as error:
        raise UsageError(error.code, str(error), _HELP) from None
    return Subject(label_of(settings.model), settings.model, dict(endpoint))


def _behind(endpoint: Mapping[str, Any], where: str) -> Subject:
    settings = _check(endpoint, where)
    return Subject(label_of(settings.model), settings.model, dict(endpoint))


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


def _distinct(subjects: Iterable[Subject]) -> list[Subject]:
    """The subjects, a label that occurs again with a number."""
    counts: dict[str, int] = {}
    unique = []
    for subject in subjects:
        counts[subject.label] = number = counts.get(subject.label, 0) + 1
        label = subject.label if number == 1 else f"{subject.label}-{number}"
        unique.append(replace(subject, label=label))
    return unique


def endpoint_settings(
    subject: Subject, generation: GenerationConfig, answers: Path
) -> EndpointSettings:
    """How the endpoint is asked: as the configuration samples, unless its own keys say otherwise.

    Its answers are kept in `answers`, so that they are those of this audit, unless it names a
    cache.
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
    cache = settings.get("cache_dir") or str(answers)
    return _check(settings | {"parameters": parameters, "cache_dir": cache}, subject.label)


def as_model_folder(
    subject: Subject, target: Path, reporter: Reporter, *, unsealed: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the name or folder that `from_pretrained` loads, and what of a run has no seal.

    The files of a run or a training backend, and an adapter, are converted into `target`, once.
    Raises `EquipoiseError` for what cannot be, and like `open_run`.
    """
    folder = Path(subject.adapter or subject.model)
    if not subject.adapter and not folder.is_dir():
        return subject.model, ()
    if not subject.adapter and (folder / "config.json").is_file():
        return subject.model, check_part(folder, unsealed=unsealed)
    # torch takes seconds to import.
    from equipoise.checkpoints.sources import open_source
    from equipoise.checkpoints.to_hugging_face import convert

    source = open_source(folder, unsealed=unsealed)
    is_complete = source.form == "hugging_face" and (source.path / "config.json").is_file()
    if is_complete and not subject.adapter:
        return str(source.path), source.unsealed
    if not target.exists():
        base = subject.model if subject.adapter else None
        convert(folder, target, reporter, base=base, unsealed=unsealed)
    return str(target), source.unsealed


# --- ways to ask: each is a row beside the plain one ---------------------------------------------

Ask = Callable[[PromptRecord], PromptRecord]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to ask: a text for the system message, examples, blinded, held to a JSON schema.

    With a `yardstick` the variants of a set differ in that and in nothing else.
    """

    name: str
    system: str = ""
    shots: int = 0
    blinded: bool = False
    constrained: bool = False
    yardstick: Yardstick | None = None


PLAIN = Variant("plain")


def unsuited(variant: Variant, environment: type[Environment], *, endpoint: bool) -> str:
    """Why a task or a model has no such variant; empty where it has."""
    if variant.blinded and not environment.offers(Environment.blinded):
        return f"{environment.name} knows nothing in its prompts that must not decide"
    if variant.yardstick and not environment.offers(Environment.reworded):
        return f"{environment.name} has no counterfactual sets in which something means nothing"
    if variant.shots and not environment.offers(Environment.example_reply):
        return f"{environment.name} knows no good reply to show as an example"
    if variant.constrained and not environment.offers(Environment.reply_schema):
        return f"the replies of {environment.name} are no JSON, so there is no schema for them"
    if variant.constrained and not endpoint:
        return "only an endpoint is held to a JSON schema"
    return ""


def schema_of(variant: Variant, environment: Environment) -> Mapping[str, Any] | None:
    """The schema that the replies are held to."""
    return environment.reply_schema() if variant.constrained else None


def make_ask(
    variant: Variant, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> Ask:
    """Return the function from a plain prompt to the variant's. Raises `UsageError`.

    Examples are drawn from the training prompts among `records`, and from nothing else.
    """
    examples = _examples(variant.shots, environment, records, seed)
    version = _versions(records) if variant.yardstick else {}

    def ask(record: PromptRecord) -> PromptRecord:
        messages = record.messages
        if variant.yardstick:
            first, number = version[record.id]
            messages = environment.reworded(first, variant.yardstick, number)
        if variant.blinded:
            messages = environment.blinded(record)
        if variant.system:
            messages = _with_system(messages, variant.system)
        return replace(record, messages=_with_examples(messages, examples))

    return ask


def _versions(records: Sequence[PromptRecord]) -> dict[str, tuple[PromptRecord, int]]:
    """Each prompt's id -> the first variant of its set, which stands for all, and its own place."""
    first: dict[str, PromptRecord] = {}
    size: Counter[str] = Counter()
    version = {}
    for record in records:
        version[record.id] = first.setdefault(record.set_id, record), size[record.set_id]
        size[record.set_id] += 1
    return version


def _examples(
    shots: int, environment: Environment, records: Sequence[PromptRecord], seed: int
) -> list[Message]:
    """So many prompts of different sets, each followed by a good reply."""
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
        f"there are no {shots} training prompts with a known good reply",
        "Ask for fewer with --few-shot, or make more prompts with equipoise.data.num_samples.",
    )


def _with_system(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The text as the system message, or after the one that is there."""
    first, remaining = messages[0], messages[1:]
    if first["role"] != "system":
        return ({"role": "system", "content": text}, *messages)
    return ({"role": "system", "content": f"{first['content']}\n\n{text}"}, *remaining)


def _with_examples(messages: Sequence[Message], examples: Sequence[Message]) -> tuple[Message, ...]:
    """The examples between the system message, if any, and the question."""
    start = 1 if messages[0]["role"] == "system" else 0
    return (*messages[:start], *examples, *messages[start:])
