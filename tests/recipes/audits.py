"""Commands that tests of audits start, and a model behind an endpoint for them to audit."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.command import run_command
from tests.environments.chat.conftest import Server

SMOKE = "--config=nemo_configs/smoke.yaml"


def started(command, *words, code=0):
    """Run a command and return its output; the test fails at another exit code."""
    done = run_command(command, *words)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    return said


def started_in(folder, command, *words, code=0):
    """Run a command with its results and local models in a folder, and return its output."""
    place = (f"--output-dir={folder}", f"equipoise.cache_dir={folder / 'cache'}")
    return started(command, *place, *words, code=code)


class Model:
    """Says yes, or maybe when its system message asks for care; refuses or fails when told to."""

    def __init__(self):
        self.server = Server()
        self.server.behaviour = self.reply
        self.fails_from = sys.maxsize
        self.status = 503
        self.latency = 0.0
        self.times: list[float] = []
        self.says: Callable[[dict[str, Any]], str] = self.yes_or_maybe

    @property
    def name(self):
        """As `--model` takes it."""
        return f"tested@{self.server.url}"

    @property
    def bodies(self):
        """Bodies of the requests so far."""
        return self.server.bodies

    async def reply(self, _, body):
        number = len(self.bodies)
        self.times.append(time.monotonic())
        await asyncio.sleep(self.latency)
        if number > self.fails_from:
            return web.Response(status=self.status, text="out of order")
        completion = Server.completion(self.says(body))
        return web.json_response(completion | {"model": "tested"})

    @staticmethod
    def yes_or_maybe(body):
        """An answer in the tags of PubMedQA."""
        careful = "Be careful." in body["messages"][0]["content"]
        answer = "maybe" if careful else "yes"
        return f"<reasoning>So it is.</reasoning>\n<answer>{answer}</answer>"


@pytest.fixture
def model():
    running = Model()
    yield running
    running.server.end()
