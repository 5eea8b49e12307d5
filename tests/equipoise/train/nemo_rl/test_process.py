"""Replies that wait for their sets, in threads of NeMo-RL's event loop."""

import asyncio
import subprocess
import sys
import threading

import pytest

from equipoise.train.nemo_rl.process import with_room_to_wait

REPLIES = 80  # more than a loop's own threads


class Engine:
    """vLLM's asynchronous engine, as NeMo-RL wraps it."""

    cfg = "theirs"

    async def generate_async(self, data, greedy=False):
        yield data, greedy


async def roll_out(generation, gate):
    """As NeMo-RL's rollouts: a reply, then its reward in a thread of the loop."""
    (reply,) = [reply async for reply in generation.generate_async(0, greedy=True)]
    await asyncio.to_thread(gate.wait, 30)
    return reply


async def all_at_once(generation):
    gate = threading.Barrier(REPLIES)
    return await asyncio.gather(*(roll_out(generation, gate) for _ in range(REPLIES)))


def test_all_replies_of_a_loop_can_wait_at_once():
    generation = with_room_to_wait(Engine(), REPLIES)
    for _ in range(2):  # every batch has a loop of its own
        assert asyncio.run(all_at_once(generation)) == [(0, True)] * REPLIES
    assert generation.cfg == "theirs"


def test_it_reaches_a_process_without_equipoise():
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="the extra rehearse is needed")
    sent = cloudpickle.dumps(with_room_to_wait("engine", REPLIES))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)._generation)"
    alone = [sys.executable, "-I", "-c", f"import sys; sys.modules['equipoise'] = None; {code}"]
    assert subprocess.run(alone, input=sent, capture_output=True, check=True).stdout == b"engine\n"
