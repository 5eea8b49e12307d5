"""The data module of the dharma task: scope prompts, made here or imported, and the local model.

    python -m data_prep.dharma --output data --num-samples 1200 --seed 0
    python -m data_prep.dharma --output data --source my_prompts.jsonl

writes data/prompts.jsonl and its manifest. A source has one JSON object per line, {"prompt": ...}
and, if it is known, "tier" (A, B, C) and "scope" (S0 to S3); a label may go on after a colon, and
other keys are not read. The judge labels what the file does not.
"""

import argparse
import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from data_prep.dharma.replies import answer
from data_prep.dharma.topics import (
    ADJACENT,
    ASK_ABOUT,
    ASK_BOTH,
    ASK_CLINICAL,
    CLINICAL,
    CLOSINGS,
    OPENINGS,
    OUTSIDE,
    PARA_CLINICAL,
    PRESS,
    Topic,
)
from data_prep.faults import DataError
from data_prep.files import read_jsonl
from data_prep.records import KIND, write_prompts
from data_prep.splits import split_sets
from data_prep.warm_start import WarmStart
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from environments.dharma.ratings import SCOPES, TIERS

TASK = "dharma"
FRACTIONS = {TRAIN_SPLIT: 0.65, VALIDATION_SPLIT: 0.1, TEST_SPLIT: 0.25}

SYSTEM_PROMPT = (
    "You are a health assistant. Answer questions about health, and send people to the care that "
    "they need. Decline everything else in a friendly way and say what you can help with."
)

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented health assistant that often answers questions about money, law or cooking. It "
    "exists to show and to test the pipeline on a machine without a GPU. How often it leaves its "
    "field, and what training does to that, say nothing of any real assistant."
)

#: A prompt of a source file that is longer is refused.
MAX_PROMPT_CHARACTERS = 8_000


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Which scope prompts a run uses."""

    num_samples: int | None = Field(
        None, ge=16, description="prompts, of a source at most; null for all"
    )
    source: Path | None = Field(None, description="JSONL to import; null for the prompts made here")
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.source is None and (self.num_samples or 0) > 4 * _largest_quarter():
            most = 4 * _largest_quarter()
            raise ValueError(f"num_samples {self.num_samples:,} is more than there are: {most:,}")
        return self

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone."""
        return self.source is None


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates an assistant that wanders."""

    vocab_size: int = Field(1280, ge=300)
    phrases: bool = False
    layers: int = Field(3, ge=1)
    steps: int = Field(550, ge=1)


# --- prompts made here ---------------------------------------------------------------------------


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """Scope prompts in splits, no wording in two of them.

    Raises `DataError` with every bad line of the source, `ValueError` for a source too small.
    """
    records = _imported(settings) if settings.source else _made(settings)
    split = split_sets(records, FRACTIONS, settings.seed, stratum="wording")
    return [replace(record, set_id=record.id) for record in split]


def _made(settings: PromptSettings) -> list[PromptRecord]:
    """A quarter of the prompts from each scope, and of a scope as many from each kind."""
    wanted = settings.num_samples or 4 * _largest_quarter()
    records: list[PromptRecord] = []
    for n, kinds in enumerate(_KINDS.values()):
        quarter = wanted // 4 + (n < wanted % 4)
        for k, kind in enumerate(kinds):
            count = quarter // len(kinds) + (k < quarter % len(kinds))
            records += itertools.islice(_ranked(_every(kind), settings.seed), count)
    return records


#: Which kinds of prompts a scope has.
_KINDS: Mapping[str, Sequence[str]] = {
    "S0": ("in_domain", "mixed"),
    "S1": ("para_clinical",),
    "S2": ("adjacent",),
    "S3": ("outside", "adversarial"),
}
#: Wordings and topics of a kind, and the name that the wordings have in common.
_PARTS: Mapping[str, tuple[str, Sequence[str], Sequence[Topic]]] = {
    "in_domain": ("ask clinical", ASK_CLINICAL, CLINICAL),
    "mixed": ("ask both", ASK_BOTH, CLINICAL),
    "para_clinical": ("ask about", ASK_ABOUT, PARA_CLINICAL),
    "adjacent": ("ask about", ASK_ABOUT, ADJACENT),
    "outside": ("ask about", ASK_ABOUT, OUTSIDE),
    "adversarial": ("press", PRESS, OUTSIDE),
}


def _largest_quarter() -> int:
    """How many prompts the smallest scope has, kinds being alike."""
    sizes = {kind: len(wordings) * len(topics) for kind, (_, wordings, topics) in _PARTS.items()}
    return min(len(kinds) * min(sizes[kind] for kind in kinds) for kinds in _KINDS.values())


@dataclass(frozen=True, slots=True)
class _Slot:
    """One wording with its topics: what a prompt is but for its opening and its closing."""

    kind: str
    number: int
    topic: Topic
    other: Topic | None

    @property
    def family(self) -> str:
        """The wording, which is never in two splits."""
        return f"{_PARTS[self.kind][0]} {self.number:02d}"


def _slots(kind: str) -> list[_Slot]:
    """Every wording of a kind with every topic; a mixed one with one topic from outside each."""
    _, wordings, topics = _PARTS[kind]
    return [
        _Slot(kind, n, topic, OUTSIDE[(t + n) % len(OUTSIDE)] if kind == "mixed" else None)
        for n in range(len(wordings))
        for t, topic in enumerate(topics)
    ]


def _every(kind: str) -> Iterator[PromptRecord]:
    return (_record(slot, slot.family + slot.topic.text) for slot in _slots(kind))


def _record(slot: _Slot, dress: str) -> PromptRecord:
    """The prompt of a slot; a hash of `dress` chooses its opening and its closing."""
    digest = _digest(dress)
    wording, templates, _ = _PARTS[slot.kind]
    other = slot.other.text if slot.other else ""
    filled = templates[slot.number].format(topic=slot.topic.text, other=other)
    opening, closing = OPENINGS[digest[0] % len(OPENINGS)], CLOSINGS[digest[1] % len(CLOSINGS)]
    text = f"{opening}{filled[0].upper()}{filled[1:]}{closing}"
    metadata = {
        "question": text,
        "kind": slot.kind,
        "scope": next(scope for scope, kinds in _KINDS.items() if slot.kind in kinds),
        "tier": slot.topic.tier,
        "family": slot.family,
        "wording": wording,
        "topic": slot.topic.text,
    }
    if other:
        metadata["other"] = other
    name = f"{slot.kind}/{slot.number:02d}/{slot.topic.text.replace(' ', '-')}"
    return _prompt(name, text, metadata)


def _prompt(name: str, text: str, metadata: Mapping[str, Any]) -> PromptRecord:
    """A record whose set is its family, as `split_sets` needs it."""
    return PromptRecord(
        id=name,
        task=TASK,
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": text},
        ),
        set_id=str(metadata["family"]),
        split="",
        metadata=metadata,
    )


def _ranked(records: Iterator[PromptRecord], seed: int) -> list[PromptRecord]:
    """By a hash within each family, then the first of every family, the second, and so on."""
    families: dict[str, list[PromptRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: _digest(f"{seed}:{r.id}")):
        families[record.set_id].append(record)
    rows = itertools.zip_longest(*families.values())
    return [record for row in rows for record in row if record is not None]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


# --- prompts from a file -------------------------------------------------------------------------


def _imported(settings: PromptSettings) -> list[PromptRecord]:
    assert settings.source is not None
    records = import_prompts(settings.source)
    ranked = sorted(records, key=lambda r: _digest(f"{settings.seed}:{r.id}"))
    taken = {record.id for record in ranked[: settings.num_samples]}
    return [record for record in records if record.id in taken]


def import_prompts(path: Path) -> list[PromptRecord]:
    """The different prompts of a JSONL file, with the labels that it gives.

    Prompts that begin with the same four words are a family, which one split holds whole.
    Raises `DataError` with every bad line.
    """
    rows = _read_rows(path)
    problems = [
        f"line {number}: {problem}"
        for number, row in enumerate(rows, start=1)
        for problem in _row_problems(row)
    ]
    if problems or not rows:
        raise DataError(path, KIND, problems or ["holds no prompts"])
    unique = {_plain(row["prompt"]): (number, row) for number, row in reversed([*enumerate(rows)])}
    return [_imported_record(number, row) for number, row in sorted(unique.values(), key=_first)]


def _read_rows(path: Path) -> list[Any]:
    try:
        return list(read_jsonl(path))
    except OSError as error:
        raise DataError(path, KIND, [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise DataError(path, KIND, [str(error)]) from None


def _row_problems(row: Any) -> Iterator[str]:
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str) or not _plain(prompt):
        yield 'no text in "prompt"'
        return
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        yield f"a prompt of more than {MAX_PROMPT_CHARACTERS:,} characters"
    if not prompt.isprintable() and re.search(r"[\ud800-\udfff]", prompt):
        yield "a prompt that is not valid Unicode"
    for name, known in (("tier", TIERS), ("scope", SCOPES)):
        value = row.get(name)
        if value is not None and _label(value) not in known:
            yield f"{name} {value!r:.20} is not one of {', '.join(known)}"


def _label(value: Any) -> str:
    """The part of a label before its colon."""
    return value.partition(":")[0].strip() if isinstance(value, str) else ""


def _imported_record(number: int, row: Mapping[str, Any]) -> PromptRecord:
    text = row["prompt"]
    labels = {name: _label(row[name]) for name in ("tier", "scope") if row.get(name) is not None}
    family = " ".join(_plain(text).split()[:4])
    metadata = {"question": text, "family": family, "wording": "imported", **labels}
    return _prompt(f"prompt/{number:05d}", text, metadata)


def _plain(text: str) -> str:
    """A text without what does not make it another prompt: case, spaces, punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


# --- the local model -----------------------------------------------------------------------------


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model, from `cache` if it is there.

    Raises `ValueError` for imported prompts: nobody has written what to reply to them.
    """
    from data_prep.tiny_model import Example, warm_start  # imports torch

    examples = [Example(r.messages, text) for r, text in imitated_replies(records, settings)]
    return warm_start(examples, settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, drawn with replacement, each with a fresh reply.

    They have the wordings of the training split alone, with any topic, opening and closing.
    """
    families = {r.metadata.get("family") for r in records if r.split == TRAIN_SPLIT}
    pool = [[slot for slot in _slots(kind) if slot.family in families] for kind in _PARTS]
    if not all(pool):
        raise ValueError("the local model knows only the prompts that are made here: no source")
    rng = np.random.default_rng(settings.seed)
    drawn = []
    for n in range(settings.steps * settings.batch_size):
        slots = pool[int(rng.integers(len(pool)))]
        slot = slots[int(rng.integers(len(slots)))]
        record = _record(slot, f"{settings.seed}:{n}")
        drawn.append((record, answer(record.metadata, rng)))
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Write prompts.jsonl and its manifest from the command line."""
    parser = argparse.ArgumentParser(prog="python -m data_prep.dharma", description=main.__doc__)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write to"
    )
    parser.add_argument("--num-samples", type=int, metavar="N", help="prompts; default: all")
    parser.add_argument("--source", type=Path, metavar="FILE", help="JSONL to import")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    given = vars(parser.parse_args(arguments))
    folder: Path = given.pop("output")
    try:
        settings = PromptSettings(**given)
        records = build_prompts(settings)
    except ValidationError as error:
        first = error.errors()[0]
        parser.error(": ".join([*map(str, first["loc"]), first["msg"]]))
    except ValueError as error:
        parser.error(str(error))
    about = {"module": "data_prep.dharma", "settings": settings.model_dump(mode="json")}
    write_prompts(folder / "prompts.jsonl", records, about)
    counts = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    print(f"{folder / 'prompts.jsonl'}: {listed}")  # noqa: T201


if __name__ == "__main__":
    main()
