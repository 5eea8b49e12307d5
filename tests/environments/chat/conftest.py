"""A chat endpoint on loopback that does what a test tells it to."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from environments.chat import EndpointModel, EndpointSettings
from environments.chat.endpoint import BackgroundLoop

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

#: Small waits, so that a test of a fault takes a moment.
# No wait of a test is as long, however loaded the machine is; what is about limits sets its own.
LIMITS = {"call_seconds": 30.0, "batch_seconds": 120.0, "backoff_seconds": 0.01}


class Server:
    """One real HTTP server in a thread of its own; `behaviour` decides each response."""

    def __init__(self):
        self.behaviour: Behaviour = self.echo
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0
        self.in_flight = self.most_in_flight = 0
        self._background = BackgroundLoop()
        self._runner: web.AppRunner | None = None
        self.start()

    @staticmethod
    def completion(text, finish_reason="stop", **more):
        """The body of a chat completion."""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {"object": "chat.completion", "choices": [choice], "usage": usage} | more

    @staticmethod
    def asked(body):
        return str(body["messages"][-1]["content"])

    async def echo(self, request, body):
        """Answers a question with the question, so that mixed-up answers show."""
        return web.json_response(self.completion(f"re: {self.asked(body)}"))

    def says(self, *answers, status=200, after=0.0):
        """Answer so in turn, by the last one for ever, each after so many seconds.

        A text is that of a completion, a number a status without a body; ... is the echo.
        """
        left = list(answers)

        async def behaviour(request, body):
            answer = left.pop(0) if len(left) > 1 else left[0]
            await asyncio.sleep(after)
            if answer is ...:
                return await self.echo(request, body)
            if isinstance(answer, int):
                return web.Response(status=answer)
            content = answer if isinstance(answer, dict) else self.completion(answer)
            return web.json_response(content, status=status)

        self.behaviour = behaviour

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self):
        self._background.run(self._start())

    def stop(self):
        self._background.run(self._stop())

    def end(self):
        self._background.close(self._stop())

    async def _start(self):
        application = web.Application(client_max_size=10**8)
        application.router.add_post("/v1/chat/completions", self._respond)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self):
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    async def _respond(self, request):
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.behaviour(request, body)
        finally:
            self.in_flight -= 1


@pytest.fixture
def server():
    running = Server()
    yield running
    running.end()


@pytest.fixture
def make(server, tmp_path):
    """Builds models that ask the server; what a test does not set waits for a loaded machine."""
    models = []

    def build(limits=None, **settings):
        given = {"url": server.url, "model": "judge", "cache_dir": tmp_path / "cache"}
        limits = LIMITS | (limits or {})
        models.append(EndpointModel(EndpointSettings(**(given | settings), limits=limits)))
        return models[-1]

    yield build
    for model in models:
        model.close()
