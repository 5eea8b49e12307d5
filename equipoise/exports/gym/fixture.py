"""Cases with which NeMo Gym checks a server before it is used, from the environment's cases.jsonl.

Gym wants of a case its reward to the last digit, and of all of them that both ends of the declared
range occur; an environment whose best reward no reply reaches has no case of its upper end, and
Gym says so.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from environments.base import PromptRecord
from environments.contract import Environment
from equipoise.exports.gym.answers import Answer
from equipoise.exports.gym.cohorts import NoSuchSeatError
from equipoise.exports.gym.service import RolloutRequest, ServiceSettings, open_service
from equipoise.exports.rewards.of_run import group_of

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
    tree = yaml.safe_load(config.read_text("utf-8"))
    section = dict(tree[server.name]["resources_servers"][server.name]["equipoise"])
    paths = {name: section[name] for name in ("prompts", "reference", "answers")}
    return ServiceSettings.model_validate(
        section | {name: server / path for name, path in paths.items() if path}
    )


def fixture_cases(
    settings: ServiceSettings,
    environment: Environment,
    record: PromptRecord,
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    """Cases as Gym reads them, of one prompt; none where nothing could be scored."""
    replies = [(name, text) for name, text in _own_cases(environment) if len(text) <= _LONGEST]
    texts = [*_example(environment, record), *replies[:: 1 + len(replies) // _CASES]]
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


def _example(environment: Environment, record: PromptRecord) -> Iterator[tuple[str, str]]:
    """A good reply to this very prompt, where the environment knows one."""
    reply = environment.example_reply(record)
    if reply is not None:
        yield "a good reply to this prompt", reply


def _own_cases(environment: Environment) -> Iterator[tuple[str, str]]:
    """The replies of the environment's cases.jsonl, which were written for prompts of its own."""
    path = files(type(environment).__module__.rpartition(".")[0]) / "cases.jsonl"
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            case = json.loads(line)
            text = case["reply"] if "reply" in case else case["response"]
            yield case["name"], text * case.get("times", 1)
