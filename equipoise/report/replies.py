"""Replies in words: what was wrong with one, those to some prompts, and all of them to browse.

Texts here come from a model. They are clipped here, and made harmless where a document is rendered.
"""

import base64
import gzip
import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import quote

from environments.base import UNPARSEABLE
from environments.presentation import Column
from equipoise.report.document import Cell, Section, Table, Tables
from equipoise.report.run_files import Json, Reply, RunFiles
from equipoise.report.words import Stage, clipped, heading, number, plain_name

_QUESTION_LIMIT, _CELL_LIMIT, _ITEMS_SHOWN = 400, 600, 5
#: The metadata key of what a prompt asks, for tasks whose prompts hold more than that.
QUESTION = "question"


def in_words(value: Any) -> str:
    """A JSON scalar in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    finite = number(value)
    return str(value) if finite is None else f"{finite:g}"


def problem(reply: Reply) -> str:
    """Why a reply could not be read or scored; empty where it could."""
    if reply.unparseable is not None:
        return f"could not be read: {reply.unparseable}"
    error = reply.score.error
    return f"could not be scored: {error.text}" if error else ""


def reply_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Replies of both stages to one prompt, as the task wants: the first whose replies differ."""
    table = run.presentation.table
    stages: dict[Stage, dict[str, Reply]] = {stage: {} for stage in run.stages}
    for stage, first_replies in stages.items():
        for reply in run.replies[stage]:
            first_replies.setdefault(reply.rollout.prompt_id, reply)
    prompts = list(next(iter(stages.values()), {}).items())
    if table is None or not prompts:
        return ()

    def rows_of(prompt_id: str) -> tuple[tuple[Cell, ...], ...]:
        return tuple(
            (Cell(run.title_of(stage)), *_cells(replies[prompt_id], table.columns))
            for stage, replies in stages.items()
            if prompt_id in replies
        )

    def differs(prompt_id: str) -> bool:
        return len({row[1:] for row in rows_of(prompt_id)}) > 1

    prompt_id, reply = next((named for named in prompts if differs(named[0])), prompts[0])
    question = clipped(str(reply.rollout.metadata.get(QUESTION, prompt_id)), _QUESTION_LIMIT)
    columns = ("", *(column.title for column in table.columns))
    note = f"{table.note}{': the first whose replies differ' * (len(stages) > 1)}."
    tables = ((question, Table(columns, rows_of(prompt_id))),)
    return (Tables(table.title, "reply-table", note, tables),)


def _cells(reply: Reply, columns: Sequence[Column]) -> Iterator[Cell]:
    """Yield the cells of the evidence. The first column has the reply where that is empty."""
    error = reply.score.error
    fault = (error and error.text) or reply.unparseable
    for index, column in enumerate(columns):
        if column.gold and fault:
            yield Cell("none", note=fault)
            continue
        text = _listed(reply.score.evidence.get(column.key))
        if not (index or text):
            yield Cell(clipped(reply.rollout.completion, _CELL_LIMIT))
        elif column.gold:
            gold = str(reply.rollout.metadata.get(column.gold))
            yield Cell(text, note="right" if text == gold else f"wrong, it is {gold}")
        else:
            yield Cell(text)


def _listed(value: Any) -> str:
    """A value, or the first items of a list of them."""
    if not isinstance(value, list):
        return "" if value is None else clipped(str(value), _CELL_LIMIT)
    items = "; ".join(map(str, value[:_ITEMS_SHOWN]))
    more = f" and {len(value) - _ITEMS_SHOWN} more" * (len(value) > _ITEMS_SHOWN)
    return clipped(items + more, _CELL_LIMIT)


# --- viewer ---------------------------------------------------------------------------------------
# All replies of a run for its page: packed, with what they can be filtered by.
#
# Which filters there are is said by the replies themselves: what in metadata and evidence takes a
# few values. The script that opens them, viewer.js, only ever makes text of what a model wrote.


#: Replies that a page holds at most; whole sets are left out beyond it, and whole steps.
MOST_REPLIES, MOST_OF_TRAINING = 50_000, 20_000
#: A key is a filter when it takes at least two and at most so many short values.
_MOST_VALUES, _LONGEST_VALUE, _MOST_FACETS = 40, 60, 40
#: Filters that are not folded away.
_FIRST = 8
_TITLE_LIMIT = 160
#: Sets that are linked to, those that were kept at most steps.
_FOLLOWED = 3
_UNQUOTED = "-_.!~*'()"
_DURING = "During training"
_SCORED, _UNREADABLE, _UNSCORED = "scored", "could not be read", "could not be scored"

Scalar = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Viewer(Section):
    """The parts of the viewer: the replies as base64 of gzip, and the script.

    `script_hash` is the script's, as a Content-Security-Policy allows it and no other. `followed`
    are sets that training came back to, in words, with the address of a reply.
    """

    kind = "viewer"
    data: str = ""
    script: str = ""
    script_hash: str = ""
    followed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A reply that the page holds: of which stage, and its index among its prompt's there.

    A step of training is a stage of its own, `step-<n>`.
    """

    stage: str
    number: int
    reply: Reply


def viewer(run: RunFiles) -> Viewer | None:
    """All replies of the evaluations, and what was kept of training; None if there are none."""
    entries = list(_numbered(run))
    evaluated = _whole_sets(entries)
    if not evaluated:
        return None
    trained = list(_whole_steps(run.training))
    extent = f"All {len(entries):,} replies"
    if len(evaluated) < len(entries):
        extent = f"{len(evaluated):,} of {len(entries):,} replies, whole sets at even distances,"
    steps = len({entry.stage for entry in trained})
    of_training = f" {len(trained):,} of {steps:,} training steps: whole sets, chosen by the seed."
    script = resources.files("equipoise.report").joinpath("viewer.js").read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode()).digest()
    return Viewer(
        title="All replies",
        anchor="replies",
        note=f"{extent} of the evaluation.{of_training * bool(trained)} Every reply has a link to "
        "it, and stands beside what was replied to the same prompt and to its counterfactual set; "
        "what differs is bold.",
        data=_packed(_content(run, [*evaluated, *trained])),
        script=script,
        script_hash=f"sha256-{base64.b64encode(digest).decode()}",
        followed=tuple(_followed(trained)),
        folded=True,
    )


def address(run: RunFiles, reply: Reply) -> str:
    """Return the address of the first reply to the prompt at the last stage, see viewer.js."""
    return "" if run.titles else _address(run.stages[-1], reply)


def _address(stage: str, reply: Reply) -> str:
    # As encodeURIComponent has it.
    return f"#reply/{stage}/{quote(reply.rollout.prompt_id, safe=_UNQUOTED)}/1"


def _packed(content: Mapping[str, Any]) -> str:
    """The content as base64 of gzip; what is an iterator is made and packed item by item."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        for text in _texts(content):
            file.write(text.encode())
    return base64.b64encode(packed.getbuffer()).decode()


def _texts(content: Mapping[str, Any]) -> Iterator[str]:
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    for n, (key, value) in enumerate(content.items()):
        yield f"{',' if n else '{'}{encode(key)}:"
        if isinstance(value, Iterator):
            yield "["
            for item, held in enumerate(value):
                yield f"{',' if item else ''}{encode(held)}"
            yield "]"
        else:
            yield encode(value)
    yield "}"


def _numbered(run: RunFiles) -> Iterator[_Entry]:
    for stage in run.stages:
        numbers: Counter[str] = Counter()
        for reply in run.replies[stage]:
            name = reply.rollout.prompt_id
            yield _Entry(stage, numbers[name], reply)
            numbers[name] += 1


def _whole_steps(replies: Sequence[Reply]) -> Iterator[_Entry]:
    """Of training as many steps as the page holds, at even distances."""
    steps = list(dict.fromkeys(reply.step for reply in replies))
    chosen = frozenset(steps[:: -(-len(replies) // MOST_OF_TRAINING) or 1])
    numbers: Counter[tuple[int | None, str]] = Counter()
    for reply in replies:
        if reply.step in chosen:
            key = (reply.step, reply.rollout.prompt_id)
            yield _Entry(f"step-{reply.step}", numbers[key], reply)
            numbers[key] += 1


def _followed(trained: Sequence[_Entry]) -> Iterator[tuple[str, str]]:
    """The sets that were kept at more than one step, those at most steps first."""
    steps: dict[str, dict[str, Reply]] = {}
    for entry in trained:
        steps.setdefault(entry.reply.rollout.set_id, {}).setdefault(entry.stage, entry.reply)
    ranked = sorted(steps.items(), key=lambda item: (-len(item[1]), item[0]))
    for _, replies in ranked[:_FOLLOWED]:
        stage, reply = list(replies.items())[-1]
        if len(replies) > 1:
            label = f"{_title(reply)} at {len(replies)} steps"
            yield label, _address(stage, reply)


def _title(reply: Reply) -> str:
    return str(reply.rollout.metadata.get(QUESTION) or reply.rollout.prompt_id)[:_TITLE_LIMIT]


def _whole_sets(entries: Sequence[_Entry]) -> list[_Entry]:
    """As many sets as the page holds, at even distances."""
    if len(entries) <= MOST_REPLIES:
        return list(entries)
    names = list(dict.fromkeys(entry.reply.rollout.set_id for entry in entries))
    step = -(-len(entries) // MOST_REPLIES)
    chosen = frozenset(names[::step])
    return [entry for entry in entries if entry.reply.rollout.set_id in chosen]


def _content(run: RunFiles, entries: Sequence[_Entry]) -> Mapping[str, Any]:
    prompts = {entry.reply.rollout.prompt_id: entry.reply for entry in entries}
    prompt_indices = {name: index for index, name in enumerate(prompts)}
    steps = sorted({entry.reply.step for entry in entries if entry.reply.step is not None})
    stages = [*run.stages[:1], *(f"step-{step}" for step in steps), *run.stages[1:]]
    stage_indices = {stage: index for index, stage in enumerate(stages)}
    sets = run.presentation.sets
    return {
        "stages": [{"key": stage, "title": _stage_title(run, stage)} for stage in stages],
        "kind": run.presentation.one_of_each,
        "variant": sets.variant if sets else "",
        "prompts": [
            {
                "id": name,
                "title": _title(reply),
                "set": reply.rollout.set_id or name,
                "text": reply.rollout.prompt,
                "metadata": reply.rollout.metadata,
            }
            for name, reply in prompts.items()
        ],
        "replies": (
            [
                prompt_indices[entry.reply.rollout.prompt_id],
                stage_indices[entry.stage],
                entry.number,
                entry.reply.score.value,
                problem(entry.reply),
                _read_evidence(entry.reply),
                entry.reply.rollout.completion,
            ]
            for entry in entries
        ),
        "facets": list(_facets(run, entries, list(prompts.values()))),
        "first": _FIRST,
        "words": {name: words.label for name, words in run.presentation.words.items()},
    }


def _stage_title(run: RunFiles, stage: str) -> str:
    run_stage = next((candidate for candidate in run.stages if candidate == stage), None)
    return run.title_of(run_stage) if run_stage else heading(stage.replace("-", " "))


def _read_evidence(reply: Reply) -> Json:
    """Return the environment's evidence on a reply."""
    evidence = {key: held for key, held in reply.score.evidence.items() if key != UNPARSEABLE}
    return (
        {"components": reply.score.components, **evidence} if reply.score.components else evidence
    )


# --- filters ------------------------------------------------------------------------------------


def _facets(
    run: RunFiles, entries: Sequence[_Entry], prompts: Sequence[Reply]
) -> Iterator[Mapping[str, Any]]:
    """Filters by stage, step and verdict, then by the keys that the task names, then all others."""
    stages = [
        _DURING if entry.reply.step is not None else _stage_title(run, entry.stage)
        for entry in entries
    ]
    facets = [
        _facet("Stage", "reply", stages),
        _facet("Step", "reply", [entry.reply.step for entry in entries], limit=len(entries)),
        _facet("Verdict", "reply", [_verdict(entry.reply) for entry in entries]),
    ]
    replies = [entry.reply for entry in entries]
    sets = run.presentation.sets
    first = (run.presentation.one_of_each, sets.variant if sets else "")
    metadata = _by_key(run, "prompt", prompts, lambda reply: reply.rollout.metadata, first)
    evidence = _by_key(run, "reply", replies, _read_evidence)
    key_facets = itertools.islice(itertools.chain(metadata, evidence), _MOST_FACETS)
    yield from (facet for facet in (*facets, *key_facets) if facet is not None)


def _verdict(reply: Reply) -> str:
    if error := reply.score.error:
        return f"{_UNSCORED}: {plain_name(error.kind)}"
    return _SCORED if reply.unparseable is None else _UNREADABLE


def _by_key(
    run: RunFiles,
    owner: str,
    replies: Sequence[Reply],
    held_by: Callable[[Reply], Json],
    first: Iterable[str] = (),
) -> Iterator[Mapping[str, Any]]:
    choices: dict[tuple[str, ...], set[Scalar]] = {}
    for reply in replies:
        for path, value in _scalars(held_by(reply)):
            known = choices.setdefault(path, set())
            if len(known) <= _MOST_VALUES:
                known.add(value)
    ranked = dict.fromkeys([*((key,) for key in first if (key,) in choices), *choices])
    paths = [path for path in ranked if _is_filter(choices[path])][:_MOST_FACETS]
    columns: dict[tuple[str, ...], list[Scalar | None]]
    columns = {path: [None] * len(replies) for path in paths}
    for n, reply in enumerate(replies):
        for path, value in _scalars(held_by(reply)):
            if path in columns:
                columns[path][n] = value
    for path, values in columns.items():
        label = heading(" ".join(run.name_of(part) for part in path))
        if facet := _facet(label, owner, values):
            yield facet


def _scalars(held: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    for key, value in held.items():
        if isinstance(value, dict):
            yield from _scalars(value, (*path, str(key)))
        elif isinstance(value, Scalar):
            yield (*path, str(key)), value


def _is_filter(choices: Collection[Scalar], limit: int = _MOST_VALUES) -> bool:
    return 2 <= len(choices) <= limit and all(len(str(v)) <= _LONGEST_VALUE for v in choices)


def _facet(
    label: str, owner: str, values: Sequence[Scalar | None], limit: int = _MOST_VALUES
) -> Mapping[str, Any] | None:
    """None for a key that takes one value, too many, or long ones: it would filter nothing."""
    choices = {value for value in values if value is not None}
    if not _is_filter(choices, limit):
        return None
    codes = {value: code for code, value in enumerate(sorted(choices, key=_rank))}
    return {
        "label": label,
        "of": owner,
        "values": [in_words(value) for value in codes],
        "codes": [-1 if value is None else codes[value] for value in values],
    }


def _rank(value: Scalar) -> tuple[float, str]:
    """Numbers by size, then words by the alphabet."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, str(value)
