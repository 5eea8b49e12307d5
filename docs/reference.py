"""The reference pages that the code itself writes: keys of the configuration, and commands.

`docs/conf.py` calls `reference_pages` whenever the site is built.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter
from sphinx.pycode import ModuleAnalyzer

from equipoise.commands.main import VERBS
from equipoise.config.schema import Config
from equipoise.config.validate import honoured_by_local, structure_of

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS = ROOT / "nemo_configs"
PACKAGES = ("equipoise", "environments", "data_prep")
Tree = Mapping[str, Any]
#: The default of a key that a file has to set.
REQUIRED = object()

KEYS = """\
# Keys of the configuration

Every key that Equipoise reads or checks. [Configuration](../configuration.md) says how a run is
composed of files, flags and words such as `grpo.seed=1`; NeMo-RL's other keys are taken too.

A default is that of [`base.yaml`](../../nemo_configs/base.yaml) or of the task's file in
`nemo_configs`, else that of the code; a scale may set another one. The local engine reads the keys
marked with •, and all that a task adds.
"""
COMMANDS = """\
# Commands

`equipoise VERB --help` prints this. `recipes/grpo_TASK.py` is `equipoise train TASK`.
"""
TYPES = {"string": "text", "boolean": "`true` or `false`", "null": "`null`", "object": "mapping"}
ESCAPED_BAR = r"\|"
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def reference_pages() -> Mapping[str, str]:
    """Return name -> Markdown."""
    return {"keys": "\n".join(write_keys()), "commands": "\n".join(write_commands())}


def write_commands() -> Iterator[str]:
    """Yield a section for each verb."""
    yield COMMANDS
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for verb, text in zip(VERBS, pool.map(help_of, VERBS), strict=True):
            yield f"## equipoise {verb}\n\n```text\n{text.strip()}\n```\n"


def help_of(verb: str) -> str:
    """Return what `--help` of the verb prints."""
    command = [sys.executable, "-m", "equipoise", *verb.split(), "--help"]
    environment = os.environ | {"COLUMNS": "90", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def write_keys() -> Iterator[str]:
    """Yield the sections that all tasks share, then those of each task."""
    yield KEYS
    writer = SectionWriter()
    yield from writer.write(Section(Config, "", read_yaml(CONFIGURATIONS / "base.yaml")))
    yield "## What tasks add\n"
    for path in sorted(CONFIGURATIONS.glob("tasks/*.yaml"), key=lambda path: path.stem):
        if "." not in path.stem:  # else what the task sets at a scale
            for section in sections_of_task(path.stem, read_yaml(path)):
                yield from writer.write(section)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the file's keys; interpolations stay text."""
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping of the configuration: its class, its full key, and what a file sets in it."""

    structure: Any
    key: str
    values: Tree
    task: str = ""  # where each task has another class at this key

    @property
    def label(self) -> str:
        """The target of links to it."""
        return f"{self.task}:{self.key}" if self.task else self.key or "sections"

    @property
    def heading(self) -> str:
        """The title, at the level of its depth."""
        if not self.key:
            return "## Sections"
        if self.task:
            return f"### `{self.key}` of {self.task}"
        return f"{'###' if '.' in self.key else '##'} `{self.key}`"

    def at(self, name: str, structure: Any) -> "Section":
        """Return the section below at this name."""
        values = self.values.get(name)
        key = f"{self.key}.{name}".removeprefix(".")
        return Section(structure, key, values if isinstance(values, dict) else {}, self.task)

    def is_local(self, name: str) -> bool:
        """Return whether the local engine reads the key; what tasks add, every engine does."""
        key = f"{self.key}.{name}".removeprefix(".")
        return not self.task and honoured_by_local(key)


def sections_of_task(task: str, content: Tree) -> Iterator[Section]:
    """Yield the settings of a task's environment, prompts and local model."""
    ours = content["equipoise"]
    module, _, name = ours["environment"].rpartition(".")
    environment = getattr(import_module(module), name)
    module, _, name = ours["data"]["module"].rpartition(".")
    data = getattr(import_module(module), name)
    settings = content.get("env", {}).get(environment.name, {})
    yield Section(environment.Settings, f"env.{environment.name}", settings, task)
    yield Section(data.PromptSettings, "equipoise.data", ours["data"], task)
    if local_model := data.LocalModelSettings:
        yield Section(local_model, "equipoise.local_model", ours.get("local_model", {}), task)


class SectionWriter:
    """Writes a heading and a table for each section, and a link where its class was written."""

    def __init__(self) -> None:
        self._labels: dict[Any, str] = {}

    def write(self, section: Section) -> Iterator[str]:
        """Yield the section, then those below it."""
        below, rows = [], []
        for name, annotation, schema in fields_of(section.structure):
            shown, structure = f"`{name}`", structure_of(annotation)
            if structure:
                lower = section.at(name, structure)
                if structure not in self._labels:
                    self._labels[structure] = lower.label
                    below.append(lower)
                shown = f"[{shown}](<#{self._labels[structure]}>)"
            cells = (
                f"{shown} •" if section.is_local(name) else shown,
                type_text(schema),
                default_text(section.values.get(name, schema["default"]), structure),
                meaning_of(section.structure, name, schema, structure),
            )
            rows.append(f"| {' | '.join(cell.replace('|', ESCAPED_BAR) for cell in cells)} |")
        yield f"({section.label})=\n{section.heading}\n"
        yield f"{description_of(section.structure)}\n"
        if rows:
            yield "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])
        for lower in below:
            yield from self.write(lower)


def fields_of(structure: Any) -> Iterator[tuple[str, Any, Tree]]:
    """Yield name in the YAML, type and JSON schema of each field, with its default."""
    schema = TypeAdapter(structure).json_schema()
    fields = getattr(structure, "model_fields", None)
    annotations = (
        get_type_hints(structure)
        if fields is None
        else {field.alias or name: field.annotation for name, field in fields.items()}
    )
    for name, annotation in annotations.items():
        default = REQUIRED if name in schema.get("required", ()) else {}  # else made by a factory
        yield name, annotation, {"default": default} | schema["properties"][name]


def meaning_of(structure: Any, name: str, schema: Tree, lower: Any) -> str:
    """Return the field's description, or the comment `#:` at it, or what it is a section of."""
    if "description" in schema:
        return str(schema["description"])
    for owner in structure.__mro__:
        if owner.__module__.split(".")[0] in PACKAGES:
            comments = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
            if lines := comments.get((owner.__qualname__, name.lstrip("_"))):
                return " ".join(lines).strip()
            field = getattr(owner, "model_fields", {}).get(name)
            if field and field.description:  # another class has another default, and no word of it
                return str(field.description)
    return description_of(lower).split("\n")[0] if lower else ""


def description_of(structure: Any) -> str:
    """Return the class's docstring without the key that it begins with."""
    text = re.sub(r"^`[\w.]+`[:.;]?\s*", "", inspect.getdoc(structure) or "")
    return text[:1].upper() + text[1:]


def type_text(schema: Tree) -> str:
    """Return the type in words, with its bounds."""
    if "anyOf" in schema:
        return " or ".join(type_text(option) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema:
        return "section"
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"list of {type_text(schema['items'])}"
    bounds = [f"{sign} {schema[name]:,}" for name, sign in BOUNDS.items() if name in schema]
    return " ".join([TYPES.get(kind, kind), *bounds[:1], *(f"and {bound}" for bound in bounds[1:])])


def default_text(value: Any, structure: Any) -> str:
    """Return the default as YAML has it; nothing for a section, whose keys have their own."""
    if value is REQUIRED:
        return "required"
    if structure and isinstance(value, dict):
        return ""
    text = value if isinstance(value, str) and value else json.dumps(value)
    return f"`{text}`"
