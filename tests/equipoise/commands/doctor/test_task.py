"""Prompts, indexes, policies and judges: in order, changed, broken, silent, late."""

import json
import shutil
from dataclasses import replace

import pytest
from aiohttp import web as aio

from environments.dharma.policy import SHIPPED
from equipoise.commands.doctor import CHECKS, examine
from equipoise.commands.doctor.checks import results_of
from equipoise.commands.doctor.command import DoctorOptions, case_of
from equipoise.config.words import read_options
from equipoise.files.records import write_prompts
from equipoise.run.task import prepare_task
from tests.environments.chat.conftest import Server
from tests.environments.dharma.samples import PERFECT
from tests.equipoise.commands.doctor.conftest import LOCAL

#: Those that say most.
ORDER = ("failure", "not checked", "warning", "ok")


def look(case, name):
    """The worst finding of a check, with what all of them say."""
    results = results_of([check for check in CHECKS if check.name == name], case)
    worst = min(results, key=lambda result: ORDER.index(result.status))
    return replace(worst, says="; ".join(result.says for result in results))


@pytest.fixture
def prompts(tmp_path, case):
    """A file of the fairness task's own prompts, sealed."""
    loaded = case("fairness", *LOCAL, "--num-samples", "256").configured
    path = tmp_path / "prompts.jsonl"
    write_prompts(path, loaded.data_module.build_prompts(loaded.prompt_settings), {})
    return path


def test_prompts_are_made_here_or_of_a_file_whose_bytes_are_as_they_were(case, prompts):
    result = look(case("fairness", *LOCAL), "prompts")
    assert (result.status, "data_prep.fairness.FairnessData" in result.says) == ("ok", True)
    words = (*LOCAL, f"equipoise.data.data_path={prompts}")
    result = look(case("fairness", *words), "prompts")
    assert (result.status, str(prompts) in result.says) == ("ok", True)
    prompts.write_bytes(prompts.read_bytes().replace(b"spine", b"Spine", 1))
    result = look(case("fairness", *words), "prompts")
    assert result.status == "failure"
    assert "its hash is not the one in" in result.says


class TestIndex:
    @pytest.fixture
    def source(self, tmp_path):
        path = tmp_path / "corpus.jsonl"
        rows = ({"id": f"d{n}", "text": f"Stone {n} is heavy and green."} for n in range(40))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def words(self, source, folder):
        return (*LOCAL, f"equipoise.data.corpus={source}", f"env.rag.index={folder}")

    @pytest.mark.deep
    def test_of_its_source(self, case):
        before = case("rag", *LOCAL)
        told = look(before, "prompts")
        assert (told.status, "index: none in" in told.says) == ("ok", True)
        assert "a run builds it" in told.says
        assert not before.configured.env_settings.index.exists()
        prepare_task(before.configured, lambda _: None)
        assert "index: 9,184" in look(case("rag", *LOCAL), "prompts").says

    def test_of_another_source(self, case, source, tmp_path):
        words = ("rag", *self.words(source, tmp_path / "index"))
        prepare_task(case(*words).configured, lambda _: None)
        source.write_text(source.read_text().replace("green", "blue"))
        result = look(case(*words), "prompts")
        assert (result.status, "was built from another corpus" in result.says) == ("failure", True)


def test_a_policy_that_loads_and_a_broken_one(case, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(SHIPPED, folder)
    words = (*LOCAL, f"env.dharma.policy.path={folder}")
    assert look(case("dharma", *words), "reward").status in ("ok", "warning")
    file = folder / "decision.rego"
    file.write_text(file.read_text() + "\ndecision := {\n")
    doctor = read_options(DoctorOptions, ["dharma", *words, "--offline"])
    first, *_ = examine(case_of(doctor))
    assert (first.check.name, first.status) == ("configuration", "failure")
    assert "decision.rego" in first.says


class TestJudge:
    @pytest.fixture
    def server(self):
        running = Server()
        yield running
        running.end()

    def ask(self, case, server, *words, **fields):
        judge = {"url": server.url, "model": "judge", "limits": {"call_seconds": 5}}
        endpoint = f"env.dharma.judge.endpoint={json.dumps(judge)}"
        return look(case("dharma", *LOCAL, endpoint, *words, **fields), "reward")

    def test_it_answers(self, case, server):
        async def rate(request, body):
            return aio.json_response(Server.completion(json.dumps(PERFECT)))

        server.behaviour = rate
        assert self.ask(case, server).status == "ok"
        assert len(server.bodies) == 1

    def test_it_refuses_the_key(self, case, server, monkeypatch):
        async def refuse(request, body):
            key = request.headers["Authorization"].removeprefix("Bearer ")
            return aio.Response(status=401, text=f"no such key: {key}")

        server.behaviour = refuse
        monkeypatch.setenv("JUDGE", "word-without-the-form-of-a-key")
        result = self.ask(case, server, "env.dharma.judge.endpoint.api_key_env=JUDGE")
        assert (result.status, "HTTP 401" in result.says) == ("failure", True)
        assert "word-without" not in result.says

    def test_offline_nobody_is_asked(self, case, server):
        assert self.ask(case, server, online=False).status == "not checked"
        assert not server.bodies

    def test_a_model_of_this_process_is_not_loaded(self, case):
        local = case("dharma", *LOCAL, "env.dharma.judge.model_name=org/judge")
        result = look(local, "reward")
        assert (result.status, "org/judge" in result.says) == ("not checked", True)


class TestPlanner:
    def words(self, server):
        planner = {"endpoint": {"url": server.url, "model": "planner"}}
        return (*LOCAL, f"equipoise.data.planner={json.dumps(planner)}")

    def test_one_that_refuses(self, case):
        server = Server()

        async def refuse(request, body):
            return aio.Response(status=404, text="no such model")

        server.behaviour = refuse
        try:
            result = look(case("rag", *self.words(server)), "prompts")
        finally:
            server.end()
        assert (result.status, "HTTP 404" in result.says) == ("failure", True)

    def test_one_of_this_process_is_not_loaded(self, case):
        local = case("rag", *LOCAL, "equipoise.data.planner.model_name=org/planner")
        result = look(local, "prompts")
        assert (result.status, "org/planner" in result.says) == ("not checked", True)
