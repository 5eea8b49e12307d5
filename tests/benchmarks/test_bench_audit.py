"""How fast an audit asks an endpoint. Run with `pytest -n 0 -s tests/benchmarks`."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from environments.base import PromptRecord
from environments.chat import EndpointModel, EndpointSettings
from equipoise.evaluate.writers import Asker, ask_all, requests_of
from tests.environments.chat.conftest import Server
from tests.recipes.audits import started

PROMPTS, IN_FLIGHT, LATENCY, MOST_SECONDS = 2304, 256, 0.5, 8.0


async def slow(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(LATENCY)
    return web.json_response(Server.completion("A decision. " * 20))


def test_2304_prompts_at_256_in_flight(tmp_path: Path) -> None:
    server = Server()
    server.behaviour = slow
    text = "A patient of some age with some pain. " * 30
    records = [
        PromptRecord(f"{n}", "x", ({"role": "user", "content": f"{n}: {text}"},), f"{n}", "test")
        for n in range(PROMPTS)
    ]
    settings = EndpointSettings(
        url=server.url, model="m", limits={"concurrency": IN_FLIGHT}, cache_dir=tmp_path
    )
    with EndpointModel(settings) as model:
        started = time.perf_counter()
        replies = ask_all(Asker(model, IN_FLIGHT), requests_of(records, 1), 0, lambda _: None)
        seconds = time.perf_counter() - started
    server.end()
    print(f"{PROMPTS:,} prompts in {seconds:.1f} s, {server.most_in_flight} in flight at most")
    assert len(replies) == PROMPTS
    assert server.most_in_flight == IN_FLIGHT
    assert seconds < MOST_SECONDS


ENDPOINTS, CALLS, ONE_ENDPOINT = 3, 8, 0.3


async def soon(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(ONE_ENDPOINT)
    answer = "<reasoning>So it is.</reasoning>\n<answer>yes</answer>"
    return web.json_response(Server.completion(answer))


def test_three_endpoints_are_asked_at_once(tmp_path: Path) -> None:
    servers = [Server() for _ in range(ENDPOINTS)]
    for number, server in enumerate(servers):
        server.behaviour = soon
        endpoint = {"url": server.url, "model": "m", "limits": {"concurrency": CALLS}}
        (tmp_path / f"{number}.yaml").write_text(json.dumps(endpoint))
    models = [f"--model=m{n}={tmp_path / f'{n}.yaml'}" for n in range(ENDPOINTS)]
    keys = ("equipoise.evaluation.generations=4", f"equipoise.cache_dir={tmp_path / 'cache'}")
    own = (f"--output-dir={tmp_path}", "--run-name=a", "pubmedqa", "--limit=96")
    began = time.perf_counter()
    started("evaluate", "--config=nemo_configs/local.yaml", *own, *models, *keys)
    seconds = time.perf_counter() - began
    asked = [len(server.bodies) for server in servers]
    for server in servers:
        server.end()
    waits = sum(asked) / CALLS * ONE_ENDPOINT
    print(
        f"{asked} calls of {ONE_ENDPOINT} s, {CALLS} in flight: {seconds:.1f} s, {waits:.1f} if "
        "they had waited for each other"
    )
    assert seconds < waits
