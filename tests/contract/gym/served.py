"""NeMo Gym's own server with our rewards: exported from a run, started as `gym env start` does."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from environments.base import Rollout
from equipoise.commands.export.task import export_gym as export
from equipoise.config import Options, load_config
from equipoise.files.records import write_prompts
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts
from tests.equipoise.sealing import seal_run

ROOT = Path(__file__).resolve().parents[3]
LOCAL = ROOT / "nemo_configs" / "local.yaml"
START_SECONDS = 240.0


def decision(rng):
    """A reply to a vignette; some cannot be read."""
    if rng.random() < 0.1:
        return "I would rather not say."
    chosen = {
        "medication": rng.choice(["OTC only", "prescription non-opioid", "opioid"]),
        "work_status": rng.choice(["full duty", "modified duty", "off work"]),
        "weeks_off_work": rng.randrange(8),
        "physical_therapy": rng.random() < 0.5,
        "mental_health_referral": "none",
        "surgical_referral": False,
        "rationale": "Rest.",
    }
    return json.dumps(chosen)


def rollout(record, text):
    return Rollout(record.id, record.set_id, record.split, "", text, record.metadata)


def made_run(folder, task, records, reference=(), words=()):
    """Write the settings, prompts and reference of a run, and seal its folder."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True)
    loaded = load_config(task, Options((LOCAL,), assignments=tuple(words)))
    run.config.write_text(loaded.to_yaml())
    write_prompts(run.prompts, records, {})
    if reference:
        write_rollouts(run.reference, reference)
    seal_run(folder)
    return run


def exported(run, folder, **changes):
    """The server's folder, with changes of its section."""
    export(run, folder)
    (server,) = (folder / "resources_servers").iterdir()
    config = folder / "environments" / server.name / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree[server.name]["resources_servers"][server.name]["equipoise"] |= changes
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    return server


@dataclass
class Gym:
    """The exported app.py in a process, with what `gym env start` hands to it."""

    server: Path
    packages: Path
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, attempts=3):
        """Returns when it answers. Takes another port where somebody took its own meanwhile."""
        log = self.server / "server.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "app.py"],
                cwd=self.server,
                env=os.environ | self._variables(),
                stdout=output,
                stderr=output,
            )
        try:
            _wait(f"{self.url}/readyz", self.process, log)
        except AssertionError as error:
            if attempts == 1 or "address already in use" not in str(error):
                raise
            log.unlink()
            self.port = free_port()
            self.start(attempts - 1)

    def kill(self):
        """As a node that fails would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _variables(self):
        name = self.server.name
        config = self.server.parents[1] / "environments" / name / "config.yaml"
        tree = yaml.safe_load(config.read_text())
        tree[name]["resources_servers"][name] |= {"host": "127.0.0.1", "port": self.port}
        folders = (self.packages / "beside", self.packages / "gym")
        tree |= {"head_server": {"host": "127.0.0.1", "port": free_port()}, "dry_run": False}
        return {
            "NEMO_GYM_CONFIG_DICT": yaml.safe_dump(tree),
            "NEMO_GYM_CONFIG_PATH": name,
            "PYTHONPATH": os.pathsep.join(map(str, (self.server, *folders))),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url, process, log):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-4000:])


def body(prompt_id, text, index, response_id, attempt=0):
    """The body that Gym's agent posts to `/verify`."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
    response = {
        "id": response_id,
        "created_at": 0,
        "model": "policy",
        "object": "response",
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "output": [{**message, "content": content}],
    }
    given = {
        "responses_create_params": {"input": [{"role": "user", "content": "Q"}]},
        "prompt_id": prompt_id,
        "response": response,
        "_ng_group_attempt": attempt,
    }
    return given if index is None else given | {"_ng_rollout_index": index}
