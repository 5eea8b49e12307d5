"""Rollouts that are drawn in parts, each kept as it comes: a kill loses the one in the making.

A part is a file `part-<number>.jsonl` with its seal beside it. The first line says what decides the
part, what it took and the random state after it; the rollouts follow, a line each.
"""

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from data_prep.files import read_jsonl
from data_prep.records import content_hash
from environments.base import PromptRecord, Rollout
from equipoise.run.directory import RunDirectory
from equipoise.run.ownership import confirm_owner
from equipoise.run.rollouts import parse_rollout, write_rows
from equipoise.run.seals import is_whole, seal_file
from equipoise.train.stages.job import Job


@dataclass(frozen=True, slots=True)
class Part:
    """Rollouts in their order and what they took; `random_state` is the sampler's after them."""

    rollouts: Sequence[Rollout]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    random_state: str = ""


class _Header(BaseModel, strict=True):
    identity: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    random_state: str


class KeptParts:
    """The parts of a stage, which are those of these records and of what `decided_by` says."""

    def __init__(
        self, job: Job, stage: str, records: Sequence[PromptRecord], decided_by: str
    ) -> None:
        self._job, self._folder = job, job.run.parts(stage)
        identity = f"{content_hash(records)}\n{decided_by}"
        self._identity = hashlib.sha256(identity.encode()).hexdigest()

    def read(self, number: int) -> Part | None:
        """A part that an earlier process has kept, which counts for the stage; else None.

        One that is damaged, or decided by something else, is not there.
        """
        path = self._folder / _name(number)
        if not is_whole(path):
            return None
        first, *rows = read_jsonl(path)
        try:
            header = _Header.model_validate(first)
        except ValidationError:  # of another version
            return None
        if header.identity != self._identity:
            return None
        took = header.model_dump(exclude={"identity"})
        part = Part([parse_rollout(row) for row in rows], **took)
        self._job.meter.recall(part.prompt_tokens, part.completion_tokens, part.seconds)
        return part

    def keep(self, number: int, part: Part) -> None:
        """Write a part; it counts from when its seal is there."""
        header = {name: getattr(part, name, self._identity) for name in _Header.model_fields}
        confirm_owner(self._job.run.root)
        path = self._folder / _name(number)
        write_rows(path, part.rollouts, header)
        seal_file(path)


def drop_parts(run: RunDirectory, stage: str) -> None:
    """Remove the parts of a stage that has been written whole."""
    folder = run.parts(stage)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # other stages have theirs there, or there is none
        folder.parent.rmdir()


def _name(number: int) -> str:
    return f"part-{number:05}.jsonl"
