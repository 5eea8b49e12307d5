"""Prompts, indexes, policies and judges: in order, changed, broken, silent, late."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from aiohttp import web as aio

import environments.dharma.policy as shipped
from data_prep.records import write_prompts
from equipoise.doctor.checks import ANSWERS, CONFIGURATION, PREPARATION, PROMPTS, REWARD
from equipoise.doctor.command import DoctorOptions, configuration
from equipoise.doctor.task import data, reward
from equipoise.doctor.together import Job, run_together
from equipoise.errors import EquipoiseError
from equipoise.run.prompts import prepare_task
from equipoise.terminal.options import read_options
from tests.environments.chat.conftest import Server
from tests.environments.dharma.samples import PERFECT

LOCAL = ("--config", "nemo_configs/local.yaml")


def states(results):
    return {result.check.name: result.status for result in results}


@pytest.fixture
def prompts(tmp_path, load) -> Path:
    """A file of the fairness task's own prompts, sealed."""
    loaded = load("fairness", *LOCAL, "--num-samples", "256")
    path = tmp_path / "prompts.jsonl"
    write_prompts(path, loaded.data_module.build_prompts(loaded.prompt_settings), {})
    return path


class TestPrompts:
    def test_made_here(self, load):
        results = list(data(load("fairness", *LOCAL), online=True))
        assert set(states(results).values()) == {"ok"}
        assert "data_prep.fairness" in results[0].says

    def test_a_file(self, load, prompts):
        results = list(
            data(load("fairness", *LOCAL, f"equipoise.data.data_path={prompts}"), online=True)
        )
        assert states(results)["prompts"] == "ok"
        assert str(prompts) in results[0].says

    def test_one_changed_byte(self, load, prompts):
        content = bytearray(prompts.read_bytes())
        place = content.index(b"spine")
        content[place : place + 1] = b"S"
        prompts.write_bytes(content)
        loaded = load("fairness", *LOCAL, f"equipoise.data.data_path={prompts}")
        first, *_ = data(loaded, online=True)
        assert (first.check, first.status) == (PROMPTS, "failure")
        assert "its hash is not the one in" in first.says
        assert "seal" in first.remedy


class TestIndex:
    @pytest.fixture
    def source(self, tmp_path) -> Path:
        path = tmp_path / "corpus.jsonl"
        rows = ({"id": f"d{n}", "text": f"Stone {n} is heavy and green."} for n in range(40))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def words(self, source, folder):
        return (*LOCAL, f"equipoise.data.corpus={source}", f"env.rag.index={folder}")

    @pytest.mark.deep
    def test_of_its_source(self, load):
        loaded = load("rag", *LOCAL)
        results = list(data(loaded, online=True))
        assert set(states(results).values()) == {"ok"}
        assert "index: none in" in results[1].says and "a run builds it" in results[1].says
        assert not loaded.env_settings.index.exists()
        prepare_task(loaded, lambda _: None)
        results = list(data(loaded, online=True))
        assert set(states(results).values()) == {"ok"}
        assert "index: 9,184" in results[1].says

    def test_of_another_source(self, load, source, tmp_path):
        loaded = load("rag", *self.words(source, tmp_path / "index"))
        prepare_task(loaded, lambda _: None)
        source.write_text(source.read_text().replace("green", "blue"))
        with pytest.raises(EquipoiseError, match="was built from another corpus"):
            list(data(loaded, online=True))


class TestPolicy:
    @pytest.fixture
    def bundle(self, tmp_path) -> Path:
        folder = tmp_path / "policy"
        shutil.copytree(Path(shipped.__file__).parent / "shipped", folder)
        return folder

    def words(self, folder):
        return (*LOCAL, f"env.dharma.policy.path={folder}")

    def test_one_that_loads(self, load, bundle):
        results = list(reward(load("dharma", *self.words(bundle)), online=True))
        assert states(results)["models of the reward"] == "ok"

    @pytest.mark.parametrize("broken", ["decision := {", "default decision := {}"])
    def test_a_broken_one(self, load, bundle, broken):
        file = bundle / "decision.rego"
        file.write_text(file.read_text() + f"\n{broken}\n")
        asked = read_options(DoctorOptions, ["dharma", *self.words(bundle)])
        loaded, (result,) = configuration(asked)
        assert (loaded, result.check, result.status) == (None, CONFIGURATION, "failure")
        assert "decision.rego" in result.says


class TestJudge:
    @pytest.fixture
    def server(self) -> Iterator[Server]:
        running = Server()
        yield running
        running.end()

    def ask(self, load, server, *words, online=True):
        judge = {"url": server.url, "model": "judge", "limits": {"call_seconds": 5}}
        given = f"env.dharma.judge.endpoint={json.dumps(judge)}"
        loaded = load("dharma", *LOCAL, given, *words)
        jobs = [Job((REWARD, ANSWERS), lambda: reward(loaded, online=online), 30)]
        return run_together(jobs)[-1]

    def test_it_answers(self, load, server):
        async def rate(request, body):
            return aio.json_response(Server.completion(json.dumps(PERFECT)))

        server.behaviour = rate
        assert self.ask(load, server).status == "ok"
        assert len(server.bodies) == 1

    def test_it_refuses_the_key(self, load, server, monkeypatch):
        async def refuse(request, body):
            key = request.headers["Authorization"].removeprefix("Bearer ")
            return aio.Response(status=401, text=f"no such key: {key}")

        server.behaviour = refuse
        monkeypatch.setenv("JUDGE", "word-without-the-form-of-a-key")
        result = self.ask(load, server, "env.dharma.judge.endpoint.api_key_env=JUDGE")
        assert (result.status, "HTTP 401" in result.says) == ("failure", True)
        assert "word-without" not in result.says

    def test_its_key_is_not_set(self, load, server, monkeypatch):
        monkeypatch.delenv("JUDGE", raising=False)
        given = json.dumps({"url": server.url, "model": "judge", "api_key_env": "JUDGE"})
        loaded = load("dharma", *LOCAL, f"env.dharma.judge.endpoint={given}")
        with pytest.raises(EquipoiseError, match="JUDGE holds no key"):
            list(reward(loaded, online=True))

    def test_nobody_is_there(self, load, server):
        server.stop()
        result = self.ask(load, server)
        assert (result.status, "connection failed" in result.says) == ("failure", True)

    @pytest.mark.deep
    def test_it_is_late(self, load, server):
        """Later than the doctor waits: nobody knows whether it would answer."""
        asked = Event()

        async def wait(request, body):
            asked.set()
            await aio.asyncio.sleep(60)

        server.behaviour = wait
        given = json.dumps({"url": server.url, "model": "judge"})
        loaded = load("dharma", *LOCAL, f"env.dharma.judge.endpoint={given}")
        _, result = run_together([Job((REWARD, ANSWERS), lambda: reward(loaded, online=True), 3)])
        assert (result.status, result.says) == ("not checked", "no answer within 3 seconds")
        assert asked.wait(0), "it was asked"

    def test_offline_nobody_is_asked(self, load, server):
        assert self.ask(load, server, online=False).status == "not checked"
        assert not server.bodies

    def test_a_model_of_this_process_is_not_loaded(self, load):
        loaded = load("dharma", *LOCAL, "env.dharma.judge.model_name=org/judge")
        *_, result = reward(loaded, online=True)
        assert (result.status, "org/judge" in result.says) == ("not checked", True)


class TestPlanner:
    def words(self, server):
        planner = {"endpoint": {"url": server.url, "model": "planner"}}
        return (*LOCAL, f"equipoise.data.planner={json.dumps(planner)}")

    def test_one_that_refuses(self, load):
        server = Server()

        async def refuse(request, body):
            return aio.Response(status=404, text="no such model")

        server.behaviour = refuse
        try:
            *_, result = data(load("rag", *self.words(server)), online=True)
        finally:
            server.end()
        assert (result.check, result.status) == (PREPARATION, "failure")
        assert "HTTP 404" in result.says

    def test_one_of_this_process_is_not_loaded(self, load):
        loaded = load("rag", *LOCAL, "equipoise.data.planner.model_name=org/planner")
        *_, result = data(loaded, online=True)
        assert (result.status, "org/planner" in result.says) == ("not checked", True)
