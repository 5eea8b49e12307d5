"""The service between a request for a reward and the cohorts: settings, prompts, the reference."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from environments.addresses import AbsolutePath
from environments.base import CONTROL_SPLIT, VALIDATION_SPLIT, PromptRecord, Scope
from environments.contract import Environment
from equipoise.errors import UsageError
from equipoise.exports.gym.answers import Answer, KeptAnswers
from equipoise.exports.gym.cohorts import Arrival, Cohorts, NoSuchSeatError, Seat
from equipoise.exports.rewards.of_run import group_of
from equipoise.exports.rewards.opening import RewardSettings, give_reference, open_environment
from equipoise.exports.rewards.scoring import Scorer
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
        return await self.cohorts.ask(Arrival(key, request.index, token, rollout))

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
            f"equipoise.in_flight is {settings.in_flight}, and {size} rollouts are scored together:"
            " the last ones would never be sent, and the first wait for them until the deadline",
            f"Raise the limit (num_samples_in_parallel) to {size} or more, or ask for fewer "
            "generations.",
        )
