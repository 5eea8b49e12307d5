"""NeMo Gym's own server layer serves our rewards over HTTP, started as `gym env start` does.

uv run tests/contract/packages.py gym    # makes the folder of NeMo Gym, once
uv run pytest tests/contract/test_nemo_gym.py
"""

import asyncio
import json
import os
import random
import socket
import sys
from pathlib import Path

import aiohttp
import httpx
import pytest

from data_prep.fairness import PromptSettings, build_prompts
from data_prep.rag.index import build_index
from environments.base import PromptRecord
from environments.fairness import FairnessEnvironment, FairnessSettings
from environments.rag.retrieval import Passage
from tests.command import finished
from tests.contract import packages
from tests.contract.gym.served import Gym, body, decision, exported, made_run, rollout

GYM = Path(__file__).parent / "gym"
PACKAGES = packages.GYM.folder
pytestmark = pytest.mark.skipif(bool(packages.missing("gym")), reason=packages.missing("gym"))
SETS, GENERATIONS = 20, 8
#: A client that goes: it sends all, and waits for as long as a busy server takes to read it.
LEAVES = httpx.Timeout(30, read=1.5)
SIZE = 4 * GENERATIONS
DEADLINE = 20.0  # seconds; 512 requests take 2, on a busy machine 8
JSON = {"content-type": "application/json"}
RNG = random.Random(7)
RECORDS = build_prompts(PromptSettings(num_samples=200))


def by_set():
    sets = {}
    for record in RECORDS:
        if record.split == "train":
            sets.setdefault(record.set_id, []).append(record)
    return dict(list(sets.items())[:SETS])


CHOSEN = by_set()
REFERENCE = [rollout(record, decision(RNG)) for record in RECORDS for _ in range(4)]


@pytest.fixture(scope="module")
def gym(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gym")
    run = made_run(folder / "run", "fairness", RECORDS, REFERENCE)
    changes = {"generations": GENERATIONS, "deadline_seconds": DEADLINE}
    served = Gym(exported(run, folder / "gym", **changes), PACKAGES)
    served.start()
    yield served
    served.kill()


def drawn(set_ids, tag):
    """(record, index, text, response's id) for every seat of these sets."""
    return [
        (record, n, decision(RNG), f"{tag} {record.id} {n}")
        for set_id in set_ids
        for record in CHOSEN[set_id]
        for n in range(GENERATIONS)
    ]


def one_call(jobs):
    """Score all jobs in one call of `score`, and return the values by the response's id."""
    environment = FairnessEnvironment(FairnessSettings())
    environment.set_reference(REFERENCE)
    scores = environment.score([rollout(record, text) for record, _, text, _ in jobs])
    return {job[3]: score.value for job, score in zip(jobs, scores, strict=True)}


async def _post(session, job, attempt):
    record, index, text, response_id = job
    given = json.dumps(body(record.id, text, index, response_id, attempt))
    async with session.post("/verify", data=given, headers=JSON) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def _all(gym, jobs, attempt):
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(gym.url, connector=connections) as session:
        return await asyncio.gather(*(_post(session, job, attempt) for job in jobs))


def asked(gym, jobs, attempt=0):
    """The replies by the response's id; all must be answered."""
    replies = asyncio.run(_all(gym, jobs, attempt))
    return {job[3]: reply for job, reply in zip(jobs, replies, strict=True)}


def rewards(replies):
    """None for what is masked."""
    return {
        name: None if reply["mask_sample"] else reply["reward"] for name, reply in replies.items()
    }


def test_shuffled_requests_get_one_call_s_rewards_and_lost_ones_mask_their_own_sets(gym):
    jobs = drawn(list(CHOSEN)[:16], "lost")
    lost = {job[3] for job in RNG.sample(jobs[: 3 * SIZE], len(jobs) // 20)}
    hit = {job[0].set_id for job in jobs if job[3] in lost}
    assert 0 < len(hit) < 16
    sent = [job for job in jobs if job[3] not in lost]
    replies = asked(gym, RNG.sample(sent, len(sent)))
    truth = one_call([job for job in jobs if job[0].set_id not in hit])
    for record, _, _, name in sent:
        if record.set_id in hit:
            assert replies[name]["mask_sample"]
            assert replies[name]["failure_kind"] == "cohort_incomplete"
            assert f"of the 32 replies of '{record.set_id}' came" in replies[name]["failure_reason"]
        else:
            assert not replies[name]["mask_sample"]
            assert replies[name]["reward"] == truth[name]


def test_clients_that_hang_or_go_deadlock_nothing(gym):
    jobs = drawn(list(CHOSEN)[16:18], "hung")
    hung = [socket.create_connection(("127.0.0.1", gym.port)) for _ in range(64)]
    for one in hung:
        one.sendall(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    for job in jobs[:SIZE:5]:  # they send their rollout, and do not stay for the answer
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{gym.url}/verify", json=body(job[0].id, *_words(job)), timeout=LEAVES)
    stay = [job for n, job in enumerate(jobs) if n >= SIZE or n % 5]
    replies = asked(gym, stay)
    truth = one_call(jobs)
    assert rewards(replies) == {name: truth[name] for name in replies}
    for one in hung:
        one.close()


def _words(job):
    _, index, text, response_id = job
    return text, index, response_id


def _last():
    return list(CHOSEN)[18]


class TestBadInput:
    KNOWN = CHOSEN[list(CHOSEN)[19]][0]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"prompt_id": "no such"}, "no prompt 'no such'"),
            ({"_ng_rollout_index": GENERATIONS}, "there are 8, from 0 on"),
            ({"_ng_rollout_index": 10**30}, "there are 8, from 0 on"),
        ],
        ids=str,
    )
    def test_is_refused_with_what_is_wrong(self, gym, changes, said):
        given = body(self.KNOWN.id, "{}", 0, "bad") | changes
        reply = httpx.post(f"{gym.url}/verify", json=given, timeout=60)
        assert reply.status_code == 422
        assert said in reply.text

    def test_half_a_character_which_no_answer_can_hold_is_refused(self, gym):
        given = json.dumps(body(self.KNOWN.id, "\ud800", 0, "half"))
        reply = httpx.post(f"{gym.url}/verify", content=given, headers=JSON, timeout=60)
        assert reply.status_code == 422
        assert "not valid Unicode" in reply.json()["detail"]

    def test_an_odd_reply_is_scored(self, gym):
        jobs = drawn([_last()], "odd")
        texts = ["", "\0" * 10, "9" * 1_000_000, "{" * 100_000]
        odd = [(r, n, texts[k % len(texts)], name) for k, (r, n, _, name) in enumerate(jobs)]
        odd[-8:] = jobs[-8:]
        assert rewards(asked(gym, odd)) == one_call(odd)


TASKS = {
    "fairness": {},
    "dharma": {"tier": "C", "scope": "S3", "answer_key": {"declines": "cooking"}},
    "rag": {"question": "Q", "options": {"A": "x"}, "gold": "A"},
    "pubmedqa": {
        "gold": "yes",
        "context": "METHODS: It was given to 40 adults with pain in one of ten wards.\n"
        "RESULTS: Pain fell in the treated group (P = .01).",
        "question": "Does it reduce pain?",
        "finding": "Pain fell in the treated group (P = .01).",
    },
}


def test_nemo_gym_s_own_validation_takes_every_environment(tmp_path):
    build_index((Passage("a", "", "Ribbed."), Passage("b", "", "Green.")), "", tmp_path / "index")
    folders = []
    for task, metadata in TASKS.items():
        asks = ({"role": "user", "content": "Q"},)
        records = [PromptRecord("p", task, asks, "p", "train", metadata)]
        reference = []
        if task == "fairness":
            records, reference = RECORDS[:48], REFERENCE[: 48 * 4]
        words = [f"env.rag.index={tmp_path / 'index'}"] if task == "rag" else []
        run = made_run(tmp_path / task / "run", task, records, reference, words)
        folders.append(str(exported(run, tmp_path / task / "gym").parents[1]))
    path = os.pathsep.join((str(Path.cwd()), str(PACKAGES / "beside"), str(PACKAGES / "gym")))
    command = [sys.executable, "-W", "ignore", str(GYM / "validate.py"), *folders]
    lines = finished(command, env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path, timeout=300)
    said = [line for line in lines.splitlines() if line.startswith("equipoise_")]
    assert said == [f"equipoise_{task} custom-gym-verifier" for task in TASKS]
