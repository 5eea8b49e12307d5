"""Speed of asking a model; run with `pytest -n 0 tests/benchmarks`.

The endpoint is a process of its own on loopback that answers after half a second, so that client
and server share the machine's cores. The best of several rounds is compared with what so many
calls in flight could do at most, for the machine may have other work.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from environments.chat import ChatRequest, EndpointModel, EndpointSettings, Limits
from environments.chat.client import ReplyCache, request_key

LATENCY = 0.5
CALLS_PER_SECOND = 300  # with 256 in flight on two cores
SHARE_OF_IDEAL = 0.85  # with 64 in flight
HITS_PER_SECOND = 20_000
ROUNDS = 3

SERVER = f"""
import asyncio
from aiohttp import web

BODY = {{
    "choices": [{{"message": {{"content": '{{"score": 0.5}}'}}, "finish_reason": "stop"}}],
    "usage": {{"prompt_tokens": 300, "completion_tokens": 8}},
}}

async def respond(request):
    await request.read()
    await asyncio.sleep({LATENCY})
    return web.json_response(BODY)

async def main():
    application = web.Application()
    application.router.add_post("/v1/chat/completions", respond)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def requests(number: int, start: int = 0) -> list[ChatRequest]:
    """Different prompts of the length of a judge's."""
    return [
        ChatRequest(({"role": "user", "content": f"Exchange {n}: " + "rate this reply. " * 60},))
        for n in range(start, start + number)
    ]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    process.kill()
    process.wait()


def calls_per_second(
    benchmark: BenchmarkFixture, url: str, in_flight: int, number: int, folder: Path
) -> float:
    """Of the fastest round; each asks what no round before it asked, with caching on."""
    settings = EndpointSettings(
        url=url, model="judge", cache_dir=folder, limits=Limits(concurrency=in_flight)
    )
    with EndpointModel(settings) as model:
        model.ask(requests(in_flight, start=-in_flight))  # the pool is open

        def batch(start: int) -> None:
            assert all(reply.text for reply in model.ask(requests(number, start)))

        starts = iter(range(0, 10**9, number))
        benchmark.pedantic(batch, setup=lambda: ((next(starts),), {}), rounds=ROUNDS)
    assert benchmark.stats is not None
    return number / float(benchmark.stats.stats.min)


def bare_calls_per_second(url: str, in_flight: int, number: int) -> float:
    """The same calls with nothing but aiohttp: what the machine can do just now."""

    async def main() -> float:
        connector = aiohttp.TCPConnector(limit=in_flight)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def call(request: ChatRequest) -> None:
                body = {"model": "judge", "messages": request.messages}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    await response.json()

            await asyncio.gather(*map(call, requests(in_flight)))
            started = time.perf_counter()
            await asyncio.gather(*map(call, requests(number)))
            return number / (time.perf_counter() - started)

    return asyncio.run(main())


def test_256_in_flight(benchmark: BenchmarkFixture, url: str, tmp_path: Path) -> None:
    benchmark.extra_info["bare aiohttp"] = bare_calls_per_second(url, 256, 1024)
    found = calls_per_second(benchmark, url, 256, 1024, tmp_path)
    benchmark.extra_info["calls per second"] = found
    assert found > CALLS_PER_SECOND


def test_64_in_flight(benchmark: BenchmarkFixture, url: str, tmp_path: Path) -> None:
    found = calls_per_second(benchmark, url, 64, 256, tmp_path)
    benchmark.extra_info["share of the ideal"] = share = found / (64 / LATENCY)
    assert share > SHARE_OF_IDEAL


@pytest.mark.benchmark(timer=time.process_time)
def test_cache_hits(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    settings = EndpointSettings(url="http://127.0.0.1:9/v1", model="judge", cache_dir=tmp_path)
    asked = requests(20_000)
    with EndpointModel(settings) as model:
        cache = ReplyCache(tmp_path)
        for request in asked:
            cache.put(request_key(model.identity, request), '{"score": 0.5}')
        cache.close()
        replies = benchmark(model.ask, asked)
    assert all(reply.cached for reply in replies)
    assert benchmark.stats is not None
    assert len(asked) / float(benchmark.stats.stats.min) > HITS_PER_SECOND
