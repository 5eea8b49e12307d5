"""Configurations as a recipe loads them, and what answers in the place of the hub and of wandb."""

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from equipoise.commands.doctor.checks import Case
from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags

SCALES = ("local", "small", "medium", "large")
LOCAL, SMALL, MEDIUM, LARGE = (("--config", str(CONFIG_FOLDER / f"{s}.yaml")) for s in SCALES)


@pytest.fixture
def case(tmp_path):
    """A task and the words of a command line, with nothing of the user's."""
    own = (f"equipoise.cache_dir={tmp_path / 'cache'}", f"equipoise.output_dir={tmp_path / 'runs'}")

    def make(task, *words, **fields):
        loaded = load_config(task, parse_flags("", (*words, *own)))
        return Case(loaded, **{"environment": {}} | fields)

    return make


@dataclass
class Web:
    """A real HTTP server on loopback: path -> status, headers, JSON; others are not found."""

    pages: dict[str, tuple[int, dict[str, str], Any]] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def web():
    served = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            served.tokens.append(self.headers.get("Authorization"))
            status, headers, value = served.pages.get(self.path, (404, {}, {"error": "no page"}))
            body = json.dumps(value).encode()
            self.send_response(status)
            for name, text in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    server.server_close()
    thread.join()
