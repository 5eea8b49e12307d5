"""training/rollouts.jsonl: a sample of the rollouts of training, with the step of each.

Whole counterfactual sets, or prompts where there are none, with all their generations: siblings
and variants stay comparable. What is kept depends on the seed and the step's own prompts alone, so
a resumed run keeps what an uninterrupted one does, on both engines.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.files import DamagedFileError, finite, parse_json, write_lines
from environments.base import Rollout, Score
from equipoise.errors import EquipoiseError
from equipoise.run.rollouts import scored_fields

#: Rollouts with their scores.
Sample = Sequence[tuple[Rollout, Score]]
#: What is kept of a step's rollouts and scores.
Choice = Callable[[Sequence[Rollout], Sequence[Score]], Sample]


def chosen_sets(set_ids: Iterable[str], limit: int, seed: int) -> frozenset[str]:
    """At most that many of a step's sets: the first ones in an order of all sets.

    The order is that of a hash of seed and id, so a set that is kept once is likely to be kept when
    it comes again, and its replies can be followed over steps.
    """
    return frozenset(sorted(set(set_ids), key=lambda name: _rank(name, seed))[:limit])


def choose(rollouts: Sequence[Rollout], scores: Sequence[Score], limit: int, seed: int) -> Sample:
    """Choose what is kept of a step, in its order: `limit` whole sets at most."""
    names = chosen_sets((rollout.set_id for rollout in rollouts), limit, seed)
    pairs = zip(rollouts, scores, strict=True)
    return [(rollout, score) for rollout, score in pairs if rollout.set_id in names]


def nothing(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Sample:  # noqa: ARG001
    """The choice of a run that keeps none."""
    return ()


def _rank(set_id: str, seed: int) -> bytes:
    text = f"{seed}\n{set_id}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


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

    def append(self, step: int, sample: Sample) -> None:
        """Append what was chosen of a step in one write, where the step is kept."""
        if sample and self.keeps(step):
            self.path.parent.mkdir(exist_ok=True)
            lines = [_line(step, rollout, score) for rollout, score in sample]
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("".join(lines))


def _line(step: int, rollout: Rollout, score: Score) -> str:
    row = {"step": step, **scored_fields(rollout, score)}
    return json.dumps(finite(row), ensure_ascii=False) + "\n"


def restore(path: Path, copy: Path | None) -> None:
    """Put the file back that a checkpoint has kept; where it has kept none there is none."""
    if copy is None or not copy.exists():
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(copy, path)


def keep_steps(path: Path, last_step: int) -> None:
    """Drop what was kept after `last_step`, and a line that a kill cut off in the middle.

    Raises `EquipoiseError` where another line is no rollout of a step.
    """
    if not path.exists():
        return
    try:
        lines = [line for line, row in _complete(path) if row["step"] <= last_step]
    except DamagedFileError as error:
        raise EquipoiseError(
            error.code,
            str(error),
            "Put back the file, or remove it: what is kept then begins where the run goes on.",
        ) from None
    if lines:
        write_lines(path, (line.decode() for line in lines))
    else:
        path.unlink()


def read_kept(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of the file; a last line that was not written to its end is none yet.

    Raises `DamagedFileError` where another line is no rollout of a step.
    """
    if path.exists():
        yield from (row for _, row in _complete(path))


def _complete(path: Path) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield line, _row(path, number, line)


def _row(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    row = parse_json(path, line, number)
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise DamagedFileError("file.foreign-rollout", path, "is no rollout of a step", number)
    return row
