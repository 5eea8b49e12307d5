"""Pushing to the hub: the real client against a stand-in of the hub's API on loopback."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from huggingface_hub import ModelCard

from environments.chat.endpoint import BackgroundLoop
from equipoise.checkpoints.push import PushOptions
from equipoise.checkpoints.push import run as push
from equipoise.errors import EquipoiseError
from equipoise.terminal.console import Reporter
from tests.equipoise.report.conftest import write_finished, write_json
from tests.equipoise.sealing import seal_run
from tests.refusals import holds, refusal

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "hf_" + "x9Secret" * 4
WEIGHTS = bytes(range(256)) * 64


class Hub:
    """As much of the hub as a push asks for: repositories, their files, and who may write."""

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}
        self.chunks = b""
        self.asked: list[str] = []
        self.status_of_commit = 200
        self._background = BackgroundLoop()
        self._runner = web.AppRunner(self._app())
        self.port: int = self._background.run(self._start())

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._checked], client_max_size=2**26)
        repo = r"/api/models/{repo:[^/]+/[^/]+}"
        app.router.add_post("/api/repos/create", self._create)
        app.router.add_post("/api/validate-yaml", self._validate)
        app.router.add_get(repo, self._info)
        app.router.add_get(repo + "/revision/main", self._info)
        app.router.add_post(repo + "/preupload/main", self._preupload)
        app.router.add_post(repo + "/commit/main", self._commit)
        app.router.add_post(r"/{repo:[^/]+/[^/]+}.git/info/lfs/objects/batch", self._batch)
        app.router.add_put("/store/{oid}", self._store)
        app.router.add_get(repo + "/xet-write-token/main", self._xet_token)
        app.router.add_post("/cas/v1/{part:xorbs|shards}{rest:.*}", self._cas)
        return app

    async def _start(self) -> int:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    def end(self) -> None:
        self._background.close(self._runner.cleanup())

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        stored = request.path.startswith(("/store/", "/cas/"))  # signed addresses
        if not stored and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "Invalid credentials"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        owner = body.get("organization") or "me"
        repo = f"{owner}/{body['name']}"
        if owner != "me":
            return web.json_response({"error": "You don't have the rights"}, status=403)
        known = repo in self.private
        private = body.get("private") or body.get("visibility") == "private"
        self.private.setdefault(repo, bool(private))
        where = {"url": f"http://127.0.0.1:{self.port}/{repo}"}
        return web.json_response(where, status=409 if known else 200)

    async def _validate(self, request: web.Request) -> web.StreamResponse:
        ModelCard((await request.json())["content"])
        return web.json_response({"errors": [], "warnings": []})

    async def _info(self, request: web.Request) -> web.StreamResponse:
        repo = request.match_info["repo"]
        if repo not in self.private:
            return web.json_response({"error": "Repository not found"}, status=404)
        about = {"id": repo, "private": self.private[repo], "sha": "0" * 40, "siblings": []}
        return web.json_response(about)

    async def _preupload(self, request: web.Request) -> web.StreamResponse:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in (await request.json())["files"]
        ]
        return web.json_response({"files": files})

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        objects = [
            entry
            | {
                "actions": {
                    "upload": {"href": f"http://127.0.0.1:{self.port}/store/{entry['oid']}"}
                }
            }
            for entry in (await request.json())["objects"]
        ]
        content = {"transfer": "basic", "objects": objects}
        return web.json_response(content, content_type="application/vnd.git-lfs+json")

    async def _store(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        oid = request.match_info["oid"]
        assert hashlib.sha256(content).hexdigest() == oid
        self.stored[oid] = content
        return web.Response()

    async def _xet_token(self, request: web.Request) -> web.StreamResponse:
        where = f"http://127.0.0.1:{self.port}/cas"
        return web.json_response({"casUrl": where, "accessToken": "t", "exp": 4102444800})

    async def _cas(self, request: web.Request) -> web.StreamResponse:
        """The first version of the storage that takes files in chunks, which it knows none of."""
        part = request.match_info["part"]
        self.chunks += await request.read() if part == "xorbs" else b""
        return web.json_response({"was_inserted": True, "result": 1})

    async def _commit(self, request: web.Request) -> web.StreamResponse:
        if self.status_of_commit != 200:
            return web.json_response({"error": "We are full"}, status=self.status_of_commit)
        repo = self.files.setdefault(request.match_info["repo"], {})
        for line in (await request.text()).splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                repo[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                oid = entry["value"]["oid"]
                repo[entry["value"]["path"]] = self.stored.get(oid, oid.encode())
        where = f"http://127.0.0.1:{self.port}/{request.match_info['repo']}/commit/{'1' * 40}"
        done = {"commitUrl": where, "commitOid": "1" * 40, "success": True}
        return web.json_response(done)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.end()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended with an adapter of a model of the hub."""
    run = write_finished(tmp_path / "finished")
    (run / "training_history.csv").unlink()
    final = run / "final_checkpoint"
    write_json(final / "adapter_config.json", {"base_model_name_or_path": "org/base", "r": 8})
    write_json(final / "conversion.json", {"source": {"path": str(tmp_path)}})
    (final / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (final / "README.md").write_text("# Model Card for Model ID")
    trained_on(run, "org/base", "org/base@0123abc")
    return run


def trained_on(run: Path, model: str, identity: str) -> None:
    provenance = json.loads((run / "provenance.json").read_text())
    provenance |= {"model": model, "hashes": {"model": identity}, "local_model": False}
    write_json(run / "provenance.json", provenance)
    seal_run(run)


def pushed(
    port: int, tmp: Path, *words: str, token: str = TOKEN, code: int = 0, xet: bool = True
) -> str:
    """What the recipe said in a process of its own: the client reads its address at its start."""
    own = ("HF_", "HUGGING_FACE", "XDG_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(own)}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp / "hf")}
    environment |= {"HF_HUB_DISABLE_XET": str(int(not xet))}
    environment |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, "-m", "equipoise", "push", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert "Traceback" not in said
    assert TOKEN not in said
    return " ".join(said.split())


def test_weights_and_card_reach_a_private_repository(hub: Hub, run: Path, tmp_path: Path) -> None:
    said = pushed(hub.port, tmp_path, str(run), "me/mine", xet=False)
    assert f"private: http://127.0.0.1:{hub.port}/me/mine" in said
    assert hub.private == {"me/mine": True}
    files = hub.files["me/mine"]
    assert set(files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert files["adapter_model.safetensors"] == WEIGHTS
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == "org/base"
    assert {result.metric_type for result in card.data.eval_results} > {"disparity_ratio"}


@pytest.mark.deep
def test_a_run_without_seals_is_pushed_where_that_is_said_and_its_card_says_so(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    provenance = json.loads((run / "provenance.json").read_text())
    unsealed = {k: v for k, v in provenance.items() if k not in ("files", "sha256")}
    write_json(run / "provenance.json", unsealed)
    assert "--unsealed" in pushed(hub.port, tmp_path, str(run), "me/mine", code=2)
    assert hub.asked == []
    for words in (("--dry-run",), ()):
        said = pushed(hub.port, tmp_path, str(run), "me/mine", "--unsealed", *words, xet=False)
        assert "The model card says so" in " ".join(said.split())
    card = " ".join(hub.files["me/mine"]["README.md"].decode().replace("\\", "").split())
    assert "final_checkpoint. They were accepted with" in card


def test_a_dry_run_shows_the_files_and_asks_nobody(hub: Hub, run: Path, tmp_path: Path) -> None:
    said = pushed(hub.port, tmp_path, str(run), "me/mine", "--dry-run", token="")
    assert "What would be uploaded to me/mine" in said
    for name in ("README.md", "adapter_config.json", "adapter_model.safetensors"):
        assert name in said
    assert "conversion.json" not in said and "there is no token" in said
    assert hub.asked == []


def test_public_is_asked_for_and_a_copied_base_goes_by_its_name(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    trained_on(run, "/models/copy", "sha256:12")
    config = {"base_model_name_or_path": "/models/copy", "r": 8}
    write_json(run / "final_checkpoint" / "adapter_config.json", config)
    seal_run(run)
    said = pushed(hub.port, tmp_path, str(run), "me/mine", "--public", "--base", "org/base_1")
    assert "public: http" in said
    assert hub.chunks, "by default the client uploads in chunks"
    assert hub.private == {"me/mine": False}
    files = hub.files["me/mine"]
    assert files["adapter_model.safetensors"].decode() == hashlib.sha256(WEIGHTS).hexdigest()
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "org/base_1"
    assert ModelCard(files["README.md"].decode()).data.base_model == "org/base_1"
    assert b"/models/copy" not in b"".join(files.values())
    assert json.loads((run / "final_checkpoint" / "adapter_config.json").read_text()) == config


def test_nothing_is_uploaded_where_everybody_would_see_it_unasked(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    hub.private["me/mine"] = False
    said = pushed(hub.port, tmp_path, str(run), "me/mine", code=2)
    assert "me/mine exists and is public" in said
    assert hub.files == {}
    assert not any("preupload" in asked for asked in hub.asked)


@pytest.mark.deep
def test_who_may_not_write_is_told_what_to_look_at(hub: Hub, run: Path, tmp_path: Path) -> None:
    said = pushed(hub.port, tmp_path, str(run), "others/theirs", code=1)
    assert "does not let this token write to others/theirs (HTTP 403, You don't have the" in said
    said = pushed(hub.port, tmp_path, str(run), "me/mine", token="hf_expired", code=1)
    assert "HTTP 401" in said
    assert "HF_TOKEN" in said
    assert "hf_expired" not in said
    hub.asked.clear()
    said = pushed(hub.port, tmp_path, str(run), "me/mine", token="", code=2)
    assert "there is no token" in said
    assert hub.asked == []


@pytest.mark.deep
def test_a_hub_that_fails_or_is_not_there_is_one_clear_message(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    hub.status_of_commit = 413
    said = pushed(hub.port, tmp_path, str(run), "me/mine", code=1)
    assert "did not take the model for me/mine (HTTP 413, We are full)" in said
    hub.end()
    said = pushed(hub.port, tmp_path, str(run), "me/mine", code=1)
    assert "the upload to me/mine failed:" in said


def refused(run: Path, **asked: Any) -> str:
    options = {"repo_id": "me/mine", "public": False, "base": "", "unsealed": False} | asked
    with pytest.raises(EquipoiseError) as caught:
        push(PushOptions(run, **options), Reporter())
    return f"{caught.value} [{caught.value.code}]"


def test_what_nobody_could_load_is_refused_with_the_way_out(run: Path) -> None:
    trained_on(run, "/models/copy", "sha256:12")
    write_json(
        run / "final_checkpoint" / "adapter_config.json",
        {"base_model_name_or_path": "/models/copy"},
    )
    seal_run(run)
    said = refused(run)
    assert holds(said, "push.local-base | /models/copy")
    assert "--base" in said
    assert f"equipoise merge-lora {run} DEST" in said
    (run / "final_checkpoint" / "adapter_model.safetensors").unlink()
    assert holds(refused(run), "push.no-weights | final_checkpoint")
    with refusal("push.no-weights"):
        push(PushOptions(run / "nothing", "me/mine", False, "", False), Reporter())


def test_names_and_damage_are_refused_before_the_hub_is_asked(run: Path) -> None:
    assert holds(refused(run, repo_id="me/mine/too"), "push.invalid-name")
    assert holds(refused(run, base="../models/mine"), "push.invalid-name")
    (run / "final_checkpoint" / "adapter_model.safetensors").write_bytes(b"other")
    assert holds(
        refused(run), "run.damaged-files | adapter_model.safetensors has 5 bytes of 16,384"
    )
