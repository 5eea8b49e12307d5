"""A headless Chromium, driven through its own protocol over a pair of pipes: no port, no network.

`EQUIPOISE_CHROMIUM` names the program; otherwise that of the system is taken.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("EQUIPOISE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
_SECONDS = 60.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    # Whatever the page asks for fails, and is seen as a request.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


class Browser:
    """One page. What it logs, asks for and throws is kept in `events`."""

    def __init__(self, profile):
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (reads, writes)]
        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            preexec_fn=lambda: [os.dup2(fd, place) for place, fd in enumerate(theirs, 3)],
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (reads, writes, *theirs):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        """The browser's answer to one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self):
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "Chromium has ended, or does not answer"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, path, fragment="", width=1280, height=900):
        """Show a file at this size, and wait until the page and its script are done."""
        self.events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=path.as_uri() + fragment)
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script):
        """The value of an expression in the page; a promise is waited for."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition):
        """Until the expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.run(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def happened(self, method):
        """The parameters of all events of this name since the page was opened."""
        self.ask("Runtime.evaluate", expression="0")
        return [event["params"] for event in self.events if event.get("method") == method]

    def end(self):
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(timeout=20)
