"""A policy on an OPA server (https://www.openpolicyagent.org/docs/rest-api): asked within limits.

What the server decides by is fixed when the policy is loaded: the texts of its policies
(GET /v1/policies), the revisions of its bundles (which come with each decision), and what it makes
of the cases that every policy is tried with. All three are in the run's provenance. What is decided
by anything else later on is a failure.
"""

import asyncio
import json
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from environments.base import Failure
from environments.chat.client import proxy_for
from environments.chat.endpoint import BackgroundLoop
from environments.chat.exchange import kind_of, read_body
from environments.dharma.policy.decision import (
    RULE,
    Decided,
    Decision,
    Policy,
    PolicyError,
    hash_text,
    input_text,
    read_decision,
    refuse_unfit,
    try_cases,
)

#: For one request, from its first byte to the last of its response.
_SECONDS = 10.0
_CALLS = 16
_DECISION_BYTES = 100_000
#: The list of policies comes with their syntax trees, some hundred times as long as they are.
_POLICIES_BYTES = 64_000_000
#: Engines may differ in the last digits of a sum.
_DIGITS = 9


class _Module(BaseModel):
    id: str
    raw: str


class _Modules(BaseModel):
    result: list[_Module]


class _Bundle(BaseModel):
    revision: str = ""


class _Provenance(BaseModel):
    bundles: dict[str, _Bundle] = {}
    revision: str = ""  # of the one bundle, before there could be several


class _Answer(BaseModel):
    result: Any = None
    provenance: _Provenance = _Provenance()


_Response = TypeVar("_Response", bound=BaseModel)


class OpaServer:
    """The two requests that are made of a server, from any thread; `PolicyError` where one fails.

    A request has one deadline for all of it, follows no redirect and asks for no compression.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._proxy = proxy_for(url)
        self._calls = asyncio.Semaphore(_CALLS)
        self._background = BackgroundLoop()
        self._session = self._background.run(_open_session())
        weakref.finalize(self, _close, self._background, self._session)

    def policies(self) -> dict[str, str]:
        """SHA-256 of each policy's text, by its name on the server."""
        body = self._background.run(self._request("GET", "/v1/policies", None, _POLICIES_BYTES))
        return {module.id: hash_text(module.raw) for module in _read(_Modules, body).result}

    def decide(self, inputs: Sequence[str]) -> list[tuple[Decided, str]]:
        """For each input a decision or a failure, and the revisions of the bundles behind it."""
        return self._background.run(self._decide_all(inputs))

    async def _decide_all(self, inputs: Sequence[str]) -> list[tuple[Decided, str]]:
        return await asyncio.gather(*map(self._decide, inputs))

    async def _decide(self, text: str) -> tuple[Decided, str]:
        path = f"/v1/data/{RULE.replace('.', '/')}?provenance=true"
        try:
            async with self._calls:  # the deadline is not for those that wait their turn
                body = await self._request("POST", path, f'{{"input": {text}}}', _DECISION_BYTES)
            answer = _read(_Answer, body)
            if answer.result is None:
                raise PolicyError("opa.undefined-rule", f"{RULE} is undefined on the OPA server")
            bundles = answer.provenance.bundles
            revisions = {name: bundle.revision for name, bundle in bundles.items()}
            revisions[""] = answer.provenance.revision
            return read_decision(answer.result), json.dumps(revisions, sort_keys=True)
        except PolicyError as error:
            return Failure("policy", str(error)), ""

    async def _request(self, method: str, path: str, body: str | None, limit: int) -> bytes:
        try:
            async with self._session.request(
                method, self._url + path, data=body, proxy=self._proxy, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise PolicyError(
                        "opa.http-error",
                        f"the OPA server answered {path} with HTTP {response.status}",
                    )
                content = await read_body(response, limit)
        except TimeoutError:
            raise PolicyError(
                "opa.slow-answer", f"the OPA server gave no whole answer in {_SECONDS:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise PolicyError(
                "opa.no-answer", f"the OPA server gave no answer: {kind_of(error)}"
            ) from None
        if content is None:
            raise PolicyError(
                "opa.oversize-answer", f"the OPA server's answer exceeds {limit:,} bytes"
            )
        return content


async def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=_SECONDS),
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # a few bytes must not become gigabytes
    )


def _close(background: BackgroundLoop, session: aiohttp.ClientSession) -> None:
    background.close(session.close())


def _read(expected: type[_Response], body: bytes) -> _Response:
    try:
        return expected.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise PolicyError(
            "opa.foreign-answer", f"the OPA server's answer is none of OPA's: {first['msg']}"
        ) from None


# --- what decides stays what it was --------------------------------------------------------------


def opa_policy(url: str) -> Policy:
    """The policy that a server holds now, tried. Raises `PolicyError` where it cannot be used."""
    server = OpaServer(url)
    policies = server.policies()
    answers = server.decide([input_text(case) for case in try_cases()])
    decisions = [decision for decision, _ in answers]
    refuse_unfit(decisions)
    revisions = answers[0][1]

    def decide(inputs: Sequence[str]) -> list[Decided]:
        """A failure for each that something else decides, now or by the end."""
        answers = server.decide(inputs)
        try:
            unchanged = server.policies() == policies
        except PolicyError as error:
            return [Failure("policy", str(error))] * len(inputs)
        return [
            _CHANGED if isinstance(d, Decision) and not (unchanged and r == revisions) else d
            for d, r in answers
        ]

    # Without the digits in which two engines may differ.
    rounded = [
        {k: round(v, _DIGITS) if isinstance(v, float) else v for k, v in d.model_dump().items()}
        for d in decisions
        if isinstance(d, Decision)
    ]
    known_cases = hash_text(json.dumps(rounded, sort_keys=True))
    sources = policies | {"bundles": revisions, "known cases": known_cases}
    return Policy(decide, f"opa {url}", sources)


_CHANGED = Failure("policy", "the OPA server's policy has changed since it was loaded")
