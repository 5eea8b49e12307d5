"""One HTTP exchange with a chat endpoint: an answer, or a failure that says whether to go on."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from environments.base import FailureKind
from environments.chat.accounting import Usage, guessed_usage
from environments.chat.model import UNKNOWN, Limits, Source

_READ_BYTES = 65_536
_ERROR_BYTES = 4_096
_TOO_MANY_REQUESTS = 429
_TRANSIENT = frozenset({408, 425, _TOO_MANY_REQUESTS})
#: OpenAI's word for an account without money, which no waiting changes.
_NO_QUOTA = b"insufficient_quota"
#: An answer is whole with this reason to finish, or with none.
_WHOLE = "stop"
#: What servers call an answer cut off at its largest number of tokens: OpenAI, Anthropic, Mistral.
_CUT_OFF = frozenset({"length", "max_tokens", "model_length"})
#: Problems of an answer of a measured model that are those of its settings.
CUT_OFF = "cut off at its largest number of tokens"
REASONING_ONLY = "nothing but reasoning"
#: What gateways (OpenRouter) and servers (vLLM, SGLang) say of an answer that broke off.
_ERROR_REASONS = frozenset({"error", "abort"})
_NAME_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer; `source.problem` says why it is not whole, however whole it reads."""

    text: str
    usage: Usage
    source: Source = UNKNOWN


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The reason for a missing answer, and what that says about another attempt."""

    kind: FailureKind
    message: str
    transient: bool = False
    throttled: bool = False
    retry_after: float | None = None
    status: int | None = None


class _Part(BaseModel):
    type: str = "text"
    text: str | None = None


class _Message(BaseModel):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: Any = None  # vLLM, llama.cpp, SGLang
    reasoning: Any = None  # Ollama, OpenRouter, newer vLLM

    @property
    def text(self) -> str:
        """The content; of parts (Mistral) those of text, for others hold reasoning."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type == "text")
        return self.content or self.refusal or ""

    @property
    def has_reasoning(self) -> bool:
        return bool(self.reasoning_content or self.reasoning or isinstance(self.content, list))


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    error: Any = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None
    error: Any = None
    model: Any = None
    system_fingerprint: Any = None


class _Usage(BaseModel, strict=True):
    prompt_tokens: int = Field(ge=0, le=10**9)
    completion_tokens: int = Field(ge=0, le=10**9)


async def exchange(
    session: aiohttp.ClientSession,
    url: str,
    payload: bytes,
    limits: Limits,
    proxy: str | None = None,
) -> Answer | FailedAttempt:
    """Send one request and read its response within the limits of time and size."""
    try:
        async with session.post(url, data=payload, proxy=proxy, allow_redirects=False) as response:
            if response.status != 200:
                return _refused(response, await response.content.read(_ERROR_BYTES))
            body = await read_body(response, limits.response_bytes)
    except TimeoutError:
        message = f"no whole response within limits.call_seconds = {limits.call_seconds:g}"
        return FailedAttempt("transport_timeout", message, transient=True)
    except (aiohttp.ClientError, OSError) as error:
        message = f"connection failed: {kind_of(error)}"
        return FailedAttempt("transport_unreachable", message, transient=True)
    if body is None:
        message = f"the response exceeds {limits.response_bytes:,} bytes"
        return FailedAttempt("invalid_reply", message)
    return read_answer(body, len(payload))


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None when it is longer than the limit."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_READ_BYTES):
        body += chunk
        if len(body) > limit:
            response.close()
            return None
    return bytes(body)


def _refused(response: aiohttp.ClientResponse, body: bytes) -> FailedAttempt:
    status = response.status
    wait = retry_after_seconds(response.headers.get("Retry-After"), datetime.now(UTC))
    transient = (status in _TRANSIENT or status >= 500) and _NO_QUOTA not in body
    kind: FailureKind = "server_error" if status >= 500 else "rejected"
    return FailedAttempt(
        kind="rate_limit" if status == _TOO_MANY_REQUESTS else kind,
        message=f"HTTP {status}: {body.decode('utf-8', 'replace')}",
        transient=transient,
        throttled=transient and (status == _TOO_MANY_REQUESTS or wait is not None),
        retry_after=wait,
        status=status,
    )


def kind_of(error: Exception) -> str:
    """The kind of an error; its own words may name addresses that differ from call to call."""
    cause = getattr(error, "os_error", error)
    text = getattr(cause, "strerror", None)
    return str(text or type(cause).__name__)


def read_answer(body: bytes, prompt_bytes: int) -> Answer | FailedAttempt:
    """The answer in the body of a response; `prompt_bytes` is for a server that counts nothing."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = ".".join(map(str, first["loc"])) or "body"
        message = f"the response is not a chat completion: {location}: {first['msg']}"
        return FailedAttempt("invalid_reply", message, transient=True)
    choice = completion.choices[0]
    reason = (choice.finish_reason or "").lower()
    mark = choice.error or completion.error  # even beside a text
    if not mark and reason in _ERROR_REASONS:
        mark = f"finish_reason {reason}"
    if mark:
        message = f"the server marks its answer as an error: {mark}"
        return FailedAttempt("server_error", message, transient=True)
    text = choice.message.text
    problem = None
    if choice.message.refusal:
        problem = "a refusal"
    elif not text and (choice.message.has_reasoning or reason in _CUT_OFF):  # hidden, in Gemini's
        problem = REASONING_ONLY
    elif reason in _CUT_OFF:
        problem = CUT_OFF
    elif reason not in (_WHOLE, ""):
        problem = f"not whole: finish_reason {_name(reason)}"
    try:
        count = _Usage.model_validate(completion.usage)
        usage = Usage(count.prompt_tokens, count.completion_tokens)
    except ValidationError:
        usage = guessed_usage(prompt_bytes, len(text.encode()))
    source = Source(_name(completion.model), _name(completion.system_fingerprint), problem)
    return Answer(text, usage, source)


def _name(value: Any) -> str | None:
    """A name in a server's words: a short line, None for anything else."""
    if not isinstance(value, str):
        return None
    line = "".join(character if character.isprintable() else " " for character in value)
    return " ".join(line.split())[:_NAME_CHARACTERS] or None


# --- when to try again ----------------------------------------------------------------------------


_LONGEST_BACKOFF = 30.0


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3); None where it says nothing.

    Either a number of seconds or an HTTP date; a date that has passed asks for none.
    """
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)  # infinity for more digits than it holds, which is never, too
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # no date, and a zone further off than any on earth
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def backoff_seconds(first: float, failures: int) -> float:
    """A random wait around `first`, doubled with each failure after the first, 30 s at most."""
    longest = min(2 * first * 2 ** min(failures - 1, 16), _LONGEST_BACKOFF)
    return random.uniform(0, longest)  # noqa: S311 - nothing but a wait depends on it
