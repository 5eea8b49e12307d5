"""rollouts.jsonl: one object per generation, from which every metric can be recomputed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, model_validator

from environments.base import Failure, FailureKind, PromptRecord, Rollout, Score
from equipoise.files.disk import DamagedFileError, check_line, finite, read_jsonl, write_jsonl
from equipoise.files.errors import EquipoiseError
from equipoise.files.records import Name
from equipoise.run.history import step_lines


def rollout_of(record: PromptRecord, completion: str) -> Rollout:
    """A reply to a prompt whose chat template is not known: its messages one below another."""
    text = "\n\n".join(message["content"] for message in record.messages)
    return Rollout(record.id, record.set_id, record.split, text, completion, record.metadata)


class _Line(BaseModel, strict=True, allow_inf_nan=False):
    """The fields of `Rollout`, checked."""

    prompt_id: Name
    set_id: Name
    split: Name
    prompt: str
    completion: str
    metadata: dict[str, Any]

    def rollout(self) -> Rollout:
        return Rollout(**{name: getattr(self, name) for name in _Line.model_fields})


class _Failure(BaseModel, strict=True):
    """The fields of `Failure`, checked."""

    kind: FailureKind
    text: str


class _ScoredLine(_Line):
    """With those of `Score`."""

    value: float | None
    components: dict[str, float]
    error: _Failure | None
    evidence: dict[str, Any]
    outcome: dict[str, Any] | None

    @model_validator(mode="after")
    def _value_or_error(self) -> Self:
        self.score()
        return self

    def score(self) -> Score:
        error = Failure(self.error.kind, self.error.text) if self.error else None
        return Score(self.value, self.components, error, self.evidence, self.outcome)


class _Generation(_Line):
    """With the reason for each missing reply."""

    error: _Failure | None = None

    def failure(self) -> Failure | None:
        return Failure(self.error.kind, self.error.text) if self.error else None


L = TypeVar("L", bound=_Line)
J = TypeVar("J")


def write_rollouts(
    path: Path, rollouts: Sequence[Rollout], scores: Sequence[Score] | None = None
) -> None:
    """Write rollouts, and their scores where there are any, atomically."""
    if scores is None:
        write_jsonl(path, map(_fields, rollouts))
        return
    pairs = zip(rollouts, scores, strict=True)
    write_jsonl(path, (scored_fields(rollout, score) for rollout, score in pairs))


def scored_fields(rollout: Rollout, score: Score) -> dict[str, Any]:
    """The object of a line with its score."""
    return {**_fields(rollout), **_fields(score), "error": score.error and asdict(score.error)}


def _fields(record: Rollout | Score) -> dict[str, Any]:
    """Return the fields; `asdict` copies deeply, which took longer than writing the file."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def write_generations(
    path: Path, rollouts: Sequence[Rollout], failures: Sequence[Failure | None]
) -> None:
    """Write replies before they are scored, with the reason for each missing one."""
    pairs = zip(rollouts, failures, strict=True)
    write_jsonl(
        path, (_fields(r) | ({"error": asdict(failure)} if failure else {}) for r, failure in pairs)
    )


def read_generations(path: Path) -> tuple[list[Rollout], list[Failure | None]]:
    """Read what `write_generations` wrote. Raises `EquipoiseError` with the bad line."""
    rollouts: list[Rollout] = []
    failures: list[Failure | None] = []
    siblings: dict[str, Rollout] = {}
    for line in _lines(path, _Generation):
        rollouts.append(_share_prompt(line.rollout(), siblings))
        failures.append(line.failure())
    return rollouts, failures


def read_rollouts(path: Path) -> list[Rollout]:
    """The rollouts of a file, without their scores. Raises `EquipoiseError` with the bad line."""
    siblings: dict[str, Rollout] = {}
    return [_share_prompt(line.rollout(), siblings) for line in _lines(path, _Line)]


def _share_prompt(reply: Rollout, siblings: dict[str, Rollout]) -> Rollout:
    """Replace the prompt and the metadata by those of the reply's first sibling, where equal.

    They are most of a file: of tens of thousands of lines little but the completions differs.
    """
    sibling = siblings.setdefault(reply.prompt_id, reply)
    if (sibling.prompt, sibling.metadata) != (reply.prompt, reply.metadata):
        return reply
    return replace(reply, prompt=sibling.prompt, metadata=sibling.metadata)


def _share_equal(record: J, records: dict[str, Any]) -> J:
    """The first record that reads the same: of 17,000 replies they took 100 MB, each its own."""
    shared: J = records.setdefault(json.dumps(record), record)
    return shared


def read_scored_rollouts(path: Path) -> tuple[list[Rollout], list[Score]]:
    """The rollouts of a file and their scores. Raises `EquipoiseError` with the bad line."""
    rollouts: list[Rollout] = []
    scores: list[Score] = []
    siblings: dict[str, Rollout] = {}
    records: dict[str, Any] = {}
    for line in _lines(path, _ScoredLine):
        rollouts.append(_share_prompt(line.rollout(), siblings))
        score = line.score()
        scores.append(
            replace(
                score,
                components=_share_equal(score.components, records),
                evidence=_share_equal(score.evidence, records),
                outcome=_share_equal(score.outcome, records),
            )
        )
    return rollouts, scores


def _lines(path: Path, model: type[L]) -> Iterator[L]:
    number = 0
    try:
        for number, row in enumerate(read_jsonl(path), start=1):
            yield check_line(path, number, row, model, "file.invalid-rollout")
    except FileNotFoundError:
        raise EquipoiseError(
            "rollouts.no-file", f"{path} does not exist", "Check the path."
        ) from None
    except DamagedFileError as error:
        raise EquipoiseError(
            error.code, str(error), "Is it a rollouts.jsonl of a run? Make it again."
        ) from None
    if not number:
        raise EquipoiseError(
            "rollouts.empty-file", f"{path} holds no generations", "Make it again."
        )


# --- training rollouts ----------------------------------------------------------------------------
# training/rollouts.jsonl: a sample of the rollouts of training, with the step of each.
#
# Whole counterfactual sets, or prompts where there are none, with all their generations: siblings
# and variants stay comparable. What is kept depends on the seed and the step's own prompts alone,
# so a resumed run keeps what an uninterrupted one does, on both engines.


#: Rollouts with their scores.
Sample = Sequence[tuple[Rollout, Score]]
#: What is kept of a step's rollouts and scores.
Choice = Callable[[Sequence[Rollout], Sequence[Score]], Sample]


def chosen_sets(set_ids: Iterable[str], limit: int, seed: int) -> frozenset[str]:
    """Choose at most `limit` of a step's sets: the first ones in an order of all sets.

    The order is that of a hash of seed and id, so a set that is kept once is likely to be kept when
    it comes again, and its replies can be followed over steps.
    """

    def rank(set_id: str) -> bytes:
        text = f"{seed}\n{set_id}".encode(errors="surrogatepass")
        return hashlib.blake2b(text, digest_size=8).digest()

    return frozenset(sorted(set(set_ids), key=rank)[:limit])


def choose(rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int, seed: int) -> Sample:
    """Choose what is kept of a step, in its order: `limit` whole sets at most."""
    names = chosen_sets((rollout.set_id for rollout in rollouts), limit, seed)
    pairs = zip(rollouts, scores, strict=True)
    return [(rollout, score) for rollout, score in pairs if rollout.set_id in names]


@dataclass(frozen=True, slots=True)
class TrainingRollouts:
    """The file of a run of `steps` steps, of which `limit` are kept, at even distances."""

    path: Path
    limit: int
    steps: int

    def keeps(self, step: int) -> bool:
        """Whether this step, counted from 1, is one of them; the last one is."""
        limit = min(self.limit, self.steps)
        return step * limit // self.steps > (step - 1) * limit // self.steps

    def write_step(self, step: int, sample: Sample) -> None:
        """Append what was chosen of a step in one write, where the step is kept."""
        if sample and self.keeps(step):
            self.path.parent.mkdir(exist_ok=True)
            rows = ({"step": step, **scored_fields(rollout, score)} for rollout, score in sample)
            lines = [json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows]
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("".join(lines))


def read_kept(path: Path) -> Iterator[tuple[int, Rollout, Score]]:
    """Yield each rollout with its step. Raises `EquipoiseError` like `step_lines`."""
    for number, (row, _) in enumerate(step_lines(path), start=1):
        try:
            line = check_line(path, number, row, _ScoredLine, "file.invalid-rollout")
        except DamagedFileError as error:
            raise EquipoiseError(error.code, str(error), "Put back the file.") from None
        yield row["step"], line.rollout(), line.score()
