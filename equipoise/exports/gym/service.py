"""The service between a request for a reward and the cohorts: settings, prompts, the reference.

Below it are the cases with which NeMo Gym checks a server before it is used, from the environment's
cases.jsonl. Gym wants of a case its reward to the last digit, and of all of them that both ends of
the declared range occur; an environment whose best reward no reply reaches has no case of its upper
end, and Gym says so.
"""

import asyncio
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from environments.addresses import AbsolutePath
from environments.base import CONTROL_SPLIT, VALIDATION_SPLIT, PromptRecord, Scope
from environments.contract import Environment
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import UsageError
from equipoise.exports.gym.cohorts import (
    Answer,
    Arrival,
    Cohorts,
    KeptAnswers,
    NoSuchSeatError,
    Seat,
)
from equipoise.exports.task import (
    RewardSettings,
    Scorer,
    give_reference,
    group_of,
    open_environment,
)
from equipoise.run.prompts import read_records
from equipoise.run.rollouts import rollout_of


class ServiceSettings(RewardSettings, frozen=True):
    """The section `equipoise` of the server's YAML."""

    generations: int = Field(ge=1, description="completions of a prompt that are sent together")
    validation_generations: int | None = Field(None, ge=1, description="where they are others")
    deadline_seconds: float = Field(
        1800.0, gt=0, allow_inf_nan=False, description="from the first rollout of a cohort on"
    )
    in_flight: int | None = Field(
        None, ge=1, description="the most requests that are open at a time; null: no limit"
    )
    answers: AbsolutePath | None = Field(
        None, description="SQLite file with the answers that were given; null: in memory"
    )


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request to score a rollout; `response_id` differs between any two completions."""

    prompt_id: str
    index: int | None
    attempt: int
    completion: str
    response_id: str
    created: float = 0.0  # when the completion was made, in seconds


@dataclass(frozen=True, slots=True)
class Service:
    """Answers requests; one event loop uses it."""

    records: Mapping[str, PromptRecord]
    cohorts: Cohorts

    async def verify(self, request: RolloutRequest) -> Answer:
        """The answer. Raises `NoSuchSeatError` and `SeatTakenError`."""
        record = self.records.get(request.prompt_id)
        if record is None:
            raise NoSuchSeatError(
                f"there is no prompt {request.prompt_id!r} in the file that the server has"
            )
        parts = (
            request.prompt_id,
            request.index,
            request.attempt,
            request.completion,
            request.response_id,
        )
        rollout = rollout_of(record, request.completion)
        key = (group_of(record, self.cohorts.scope), request.attempt)
        token = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()
        return await self.cohorts.ask(Arrival(key, request.index, token, rollout, request.created))

    def close(self) -> None:
        """Let the thread and the file go."""
        self.cohorts.scorer.close()
        self.cohorts.store.close()


def open_service(settings: ServiceSettings) -> Service:
    """The service, ready to answer. Raises `EquipoiseError` with the remedy."""
    environment = open_environment(settings)
    return make_service(environment, read_records(settings.prompts), settings)


def make_service(
    environment: Environment, records: Sequence[PromptRecord], settings: ServiceSettings
) -> Service:
    """The service of an environment that is built. Raises `EquipoiseError` with the remedy."""
    seats = seats_by_group(records, environment.scope, settings)
    refuse_small_limit(settings, seats)
    give_reference(environment, settings)
    cohorts = Cohorts(
        Scorer(environment),
        KeptAnswers(settings.answers),
        environment.scope,
        seats,
        settings.deadline_seconds,
    )
    return Service({record.id: record for record in records}, cohorts)


def seats_by_group(
    records: Sequence[PromptRecord], scope: Scope, settings: ServiceSettings
) -> dict[str, list[Seat]]:
    """Return the seats of every group; control prompts, which only a reference has, have none."""
    seats: dict[str, list[Seat]] = {}
    validation = settings.validation_generations or settings.generations
    for record in records:
        if record.split == CONTROL_SPLIT:
            continue
        number = validation if record.split == VALIDATION_SPLIT else settings.generations
        seats.setdefault(group_of(record, scope), []).extend((record.id, n) for n in range(number))
    return seats


def refuse_small_limit(settings: ServiceSettings, seats: Mapping[str, Sequence[Seat]]) -> None:
    """Raise `UsageError` where fewer rollouts can be on their way than a cohort has seats."""
    size = max(map(len, seats.values()), default=0)
    if settings.in_flight is not None and settings.in_flight < size:
        raise UsageError(
            "gym.small-limit",
            f"equipoise.in_flight is {settings.in_flight}, and {size} rollouts are scored together:"
            " the last ones would never be sent, and the first wait for them until the deadline",
            f"Raise the limit (num_samples_in_parallel) to {size} or more, or ask for fewer "
            "generations.",
        )


# --- Cases for Gym's check ------------------------------------------------------------------------

#: So many replies fill the seats of a set, one after the other.
_REPLIES_OF_A_SET = 4
#: So many of the environment's own at most, evenly chosen, of replies that are no longer.
_CASES, _LONGEST = 32, 5_000
_UNKNOWN_PROMPT = "there is no prompt"


class FixtureRequest(BaseModel, extra="forbid"):
    """Replies that fill the seats of a prompt's cohort in turn; the reward is the first one's."""

    prompt_id: str
    replies: tuple[str, ...] = Field(min_length=1)


class FixtureServer:
    """A server without HTTP, which keeps no answers."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._service = open_service(settings.model_copy(update={"answers": None}))
        self._responses = itertools.count()  # no two replies are one that is sent again

    async def verify(self, request: FixtureRequest) -> float:
        """The reward. Raises `ValueError` for one that is masked, and `NoSuchSeatError`."""
        answer = await self._answer(request)
        if answer.failure_kind:
            raise ValueError(f"{answer.failure_kind}: {answer.failure_reason}")
        return answer.reward

    async def _answer(self, request: FixtureRequest) -> Answer:
        record = self._service.records.get(request.prompt_id)
        if record is None:
            raise NoSuchSeatError(f"{_UNKNOWN_PROMPT} {request.prompt_id!r}")
        cohorts = self._service.cohorts
        seats = sorted(
            cohorts.seats_of[group_of(record, cohorts.scope)],
            key=lambda seat: seat[0] != record.id,  # its own first
        )
        requests = [
            RolloutRequest(prompt_id, number, 0, text, str(next(self._responses)))
            for (prompt_id, number), text in zip(
                seats, itertools.cycle(request.replies), strict=False
            )
        ]
        answers = await asyncio.gather(
            *(self._service.verify(seat_request) for seat_request in requests)
        )
        return answers[0]


def settings_of(server: Path) -> ServiceSettings:
    """The settings of an exported server, from any working directory."""
    config = server.parents[1] / "environments" / server.name / "config.yaml"
    tree = read_yaml(config)
    section = tree[server.name]["resources_servers"][server.name]["equipoise"]
    return ServiceSettings.below(server, section)


def fixture_cases(
    settings: ServiceSettings,
    environment: Environment,
    record: PromptRecord,
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    """Cases as Gym reads them, of one prompt; none where nothing could be scored."""
    path = files(type(environment).__module__.rpartition(".")[0]) / "cases.jsonl"
    replies = []  # which were written for prompts of the environment's own
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        case = json.loads(line)
        text = (case["reply"] if "reply" in case else case["response"]) * case.get("times", 1)
        if len(text) <= _LONGEST:
            replies.append((case["name"], text))
    texts = replies[:: 1 + len(replies) // _CASES]
    if (example := environment.example_reply(record)) is not None:
        texts.insert(0, ("a good reply to this prompt", example))
    cases = asyncio.run(_scored(FixtureServer(settings), environment, record, texts, reward_range))
    if not cases:
        return []
    stray_request = {"prompt_id": "of another file", "replies": ["x"]}
    malformed = {"kind": "malformed", "request": stray_request, "expected_error": _UNKNOWN_PROMPT}
    return [*cases, {"name": "a prompt that the server does not have", **malformed}]


async def _scored(
    server: FixtureServer,
    environment: Environment,
    record: PromptRecord,
    texts: Sequence[tuple[str, str]],
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    kinds = dict(zip(reward_range, ("zero_reward", "full_reward"), strict=True))
    number = _REPLIES_OF_A_SET if environment.scope == "set" else 1
    cases = []
    for n, (name, _) in enumerate(texts):
        turn = tuple(text for _, text in [*texts[n:], *texts[:n]][:number])
        request = FixtureRequest(prompt_id=record.id, replies=turn)
        try:
            reward = await server.verify(request)
        except ValueError:  # it is masked: there is no reward to expect
            continue
        cases.append(
            {
                "name": name,
                "kind": kinds.get(reward, "determinism"),
                "request": request.model_dump(mode="json"),
                "expected_reward": reward,
            }
        )
    return cases
