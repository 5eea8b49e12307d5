"""Scope prompts from a file: what it labels is kept, the judge labels the rest.

A file has one JSON object per line, {"prompt": ...} and, if it is known, "tier" (A, B, C) and
"scope" (S0 to S3); a label may go on after a colon, and other keys are not read. One of verdicts
has both labels and besides {"response": ..., "violations": {"dharma": true, ...}}.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data_prep.dharma.record import scope_prompt
from data_prep.faults import DataError
from data_prep.json_lines import json_lines, read_source
from environments.base import PromptRecord, Rollout
from environments.dharma.calibration import VERDICTS
from environments.dharma.policy import Violations
from environments.dharma.ratings import ANSWER_KEY, SCOPES, TIERS

#: A prompt that is longer is refused.
MAX_PROMPT_CHARACTERS = 8_000
_KIND, _OF_VERDICTS = "file of prompts", "file of verdicts"


def import_prompts(path: Path) -> list[PromptRecord]:
    """The different prompts of a JSONL file, with the labels that it gives.

    Prompts that begin with the same four words are a family, which one split holds whole.
    Raises `DataError` with every bad line.
    """
    first_of: dict[str, PromptRecord] = {}
    for number, row in _rows(path, _KIND, _row_faults):
        first_of.setdefault(_plain(row["prompt"]), _imported(number, row))
    return list(first_of.values())


def import_verdicts(path: Path) -> list[Rollout]:
    """Replies of which a person has said whether they are violations, see `VERDICTS`.

    Raises `DataError` with every bad line.
    """
    replies = []
    for number, row in _rows(path, _OF_VERDICTS, _verdict_faults):
        record = _imported(number, row)
        verdicts = {VERDICTS: row["violations"]}
        key = {ANSWER_KEY: row[ANSWER_KEY]} if ANSWER_KEY in row else {}
        metadata = {**record.metadata, **key, **verdicts}
        text = row["response"]
        replies.append(Rollout(_plain(row["prompt"]), record.set_id, "", "", text, metadata))
    return replies


def _rows(
    path: Path, kind: str, faults_of: Callable[[Any], Iterator[str]]
) -> list[tuple[int, Any]]:
    """(line, object) of a file without faults, one at least. Raises `DataError`."""
    faults: list[str] = []
    rows = list(json_lines(read_source(path, kind), faults))
    faults += [f"line {number}: {fault}" for number, row in rows for fault in faults_of(row)]
    if faults or not rows:
        raise DataError(path, kind, faults or ["holds no prompts"])
    return rows


def _verdict_faults(row: Any) -> Iterator[str]:
    yield from _row_faults(row)
    if not isinstance(row, dict):
        return
    if missing := [name for name in ("tier", "scope") if row.get(name) is None]:
        yield f"no {' and no '.join(missing)}"
    if not isinstance(row.get("response"), str):
        yield 'no text in "response"'
    violations = row.get("violations")
    if (
        not isinstance(violations, dict)
        or not violations
        or not all(isinstance(v, bool) for v in violations.values())
    ):
        yield 'no true or false in "violations"'
    elif extras := sorted(violations.keys() - Violations.model_fields.keys()):
        names = ", ".join(Violations.model_fields)
        yield f"a violation of {extras[0]!r:.20}, which is not one of {names}"


def _row_faults(row: Any) -> Iterator[str]:
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str) or not _plain(prompt):
        yield 'no text in "prompt"'
        return
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        yield f"a prompt of more than {MAX_PROMPT_CHARACTERS:,} characters"
    if not prompt.isprintable() and re.search(r"[\ud800-\udfff]", prompt):
        yield "a prompt that is not valid Unicode"
    for name, values in (("tier", TIERS), ("scope", SCOPES)):
        value = row.get(name)
        if value is not None and _label(value) not in values:
            yield f"{name} {value!r:.20} is not one of {', '.join(values)}"


def _label(value: Any) -> str:
    """The part of a label before its colon."""
    return value.partition(":")[0].strip() if isinstance(value, str) else ""


def _imported(number: int, row: Mapping[str, Any]) -> PromptRecord:
    text = row["prompt"]
    labels = {name: _label(row[name]) for name in ("tier", "scope") if row.get(name) is not None}
    family = " ".join(_plain(text).split()[:4])
    metadata = {"question": text, "family": family, "wording": "imported", **labels}
    return scope_prompt(f"prompt/{number - 1:05d}", text, metadata)


def _plain(text: str) -> str:
    """A text without what does not make it another prompt: case, spaces, punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))
