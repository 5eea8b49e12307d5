"""The doctor as a user starts it: exit codes, JSON, a gated model of a hub, and no secret told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web as aio

from tests.environments.chat.conftest import Server
from tests.equipoise.commands.doctor.conftest import Web, web  # noqa: F401  a fixture

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[2]
LLAMA = "meta-llama/Llama-3.2-1B-Instruct"
#: One in every place that may hold one.
SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "JUDGE_API_KEY": "plain-words-of-a-key",
}
IN_FILE = {"OPENAI_API_KEY": "sk-OfTheFile1234567890abcdef"}
PROXY = "http://user:proxy-password@127.0.0.1:1"


def doctor(folder, *words, **variables):
    names = ("HF_", "WANDB_", "NEMO_RL_", "PYTHON_DOTENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "WANDB_SILENT": "true"}
    return subprocess.run(
        [sys.executable, "-m", "equipoise", "doctor", *words],
        cwd=folder,
        env=kept | home | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def results(done):
    told: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        told.setdefault(check["name"], []).append(check)
    return told


def test_another_python_is_told_what_to_do(tmp_path):
    """One without any package, as a user's own may be."""
    bare = [sys.executable, "-S", "-m", "equipoise", "doctor"]
    done = subprocess.run(bare, cwd=ROOT, env={}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "uv run equipoise doctor" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gated_model_and_no_secret_told(tmp_path, web):  # noqa: F811
    """The hub refuses the model, the judge the key, and it says the key it was given."""
    gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
    web.pages[f"/api/models/{LLAMA}/auth-check"] = (403, gate, {})
    judge = Server()

    async def refuse(request, _):
        return aio.Response(status=401, text=f"no: {request.headers['Authorization']}")

    judge.behaviour = refuse
    lines = [f"{name}={value}" for name, value in IN_FILE.items()]
    (tmp_path / ".env").write_text("\n".join(lines) + "\n")
    (tmp_path / ".env").chmod(0o600)
    endpoint = json.dumps({"url": judge.url, "model": "judge", "api_key_env": "JUDGE_API_KEY"})
    words = ["dharma", "--config", str(ROOT / "nemo_configs/small.yaml"), "--model-name", LLAMA]
    words += [f"env.dharma.judge.endpoint={endpoint}", "--engine", "local"]
    variables = SECRETS | {"HF_ENDPOINT": web.url}
    variables |= {"https_proxy": PROXY, "no_proxy": "127.0.0.1"}
    try:
        table = doctor(tmp_path, *words, **variables)
        done = doctor(tmp_path, *words, "--json", **variables)
    finally:
        judge.end()
    assert (table.returncode, done.returncode) == (1, 1), done.stderr
    told = results(done)
    assert told["model"][0]["status"] == "failure"
    assert f"huggingface.co/{LLAMA}" in told["model"][0]["remedy"]
    assert told["reward"][-1]["status"] == "failure"
    assert "HTTP 401" in told["reward"][-1]["says"]
    printed = table.stdout + table.stderr + done.stdout + done.stderr
    for secret in (*SECRETS.values(), *IN_FILE.values(), "proxy-password"):
        assert secret not in printed
