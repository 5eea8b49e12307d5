"""Answers to rollouts, and a store on disk of those that were given."""

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from environments.base import FailureKind, Rollout, Score
from equipoise.errors import EquipoiseError
from equipoise.train.nemo_rl.scoring import sibling_means

_LOG = logging.getLogger(__name__)

#: Each kind of failure in NeMo Gym's vocabulary, see docs/judge-client.md. What Gym has no name for
#: stands in a name space of its own, as Gym asks for.
GYM_KINDS: Mapping[FailureKind, str] = MappingProxyType(
    {
        "transport_timeout": "transport_timeout",
        "transport_unreachable": "transport_unreachable",
        "server_error": "judge_failed",
        "rate_limit": "judge_failed",
        "rejected": "judge_failed",
        "invalid_reply": "judge_unparseable",
        "policy": "verifier_error",
        "no_comparison": "equipoise:no_comparison",
        "budget": "equipoise:budget",
        "verifier_error": "verifier_error",
    }
)
#: Gym's name for a rollout whose companions did not come.
COHORT_INCOMPLETE = "cohort_incomplete"


@dataclass(frozen=True, slots=True)
class Answer:
    """The reward of a rollout; where `failure_kind` is set it is to be masked.

    A masked rollout's reward is the mean of its valid siblings, so that a trainer which does not
    mask gives it advantage 0 and its siblings the baseline that they have without it; 0 where there
    are none, for then all of a prompt's rollouts have 0.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    failure_kind: str | None = None  # in NeMo Gym's vocabulary
    failure_reason: str | None = None


def answers_of(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[Answer]:
    """The answers to rollouts that were scored together, in order."""
    rewards = sibling_means(rollouts, scores)
    return [_answer(*both) for both in zip(rewards, scores, strict=True)]


def _answer(reward: float, score: Score) -> Answer:
    kind = GYM_KINDS[score.error.kind] if score.error else None
    return Answer(reward, dict(score.components), kind, score.error.text if score.error else None)


_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, token TEXT UNIQUE, "
    "answer TEXT NOT NULL)"
)
_GET = "SELECT answer FROM answers WHERE token = ?"
_PUT = "INSERT OR REPLACE INTO answers (token, answer) VALUES (?, ?)"
_TRIM = "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?"


class KeptAnswers:
    """Answers by token, the last `capacity` of them, in SQLite; without a path in memory alone.

    A `put` is one transaction, which survives the end of the process and not every loss of power.
    The file must lie on a disk of this machine. Raises `EquipoiseError` where it cannot be opened;
    trouble after that is logged, and every waiter is answered all the same.
    """

    def __init__(self, path: Path | None = None, capacity: int = 100_000) -> None:
        self._capacity = capacity
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time uses it: the event loop's.
            self._connection = sqlite3.connect(path or ":memory:", check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise EquipoiseError(
                f"the answers that were given cannot be kept in {path}: {error}",
                "Name another file in equipoise.answers; it must lie on a disk of this machine.",
            ) from error

    def get(self, token: str) -> Answer | None:
        """The answer that was given; None where there was none."""
        try:
            row = self._connection.execute(_GET, (token,)).fetchone()
        except sqlite3.Error:
            _LOG.exception("answers that were given cannot be read")
            return None
        return Answer(**json.loads(row[0])) if row else None

    def put(self, answers: Mapping[str, Answer]) -> None:
        """Keep answers by token."""
        rows = [(token, json.dumps(asdict(answer))) for token, answer in answers.items()]
        try:
            with self._connection:
                self._connection.executemany(_PUT, rows)
                self._connection.execute(_TRIM, (self._capacity,))
        except sqlite3.Error:
            _LOG.exception("answers cannot be kept: a restart would lose them")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
