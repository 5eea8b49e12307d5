"""The real OPA engine, alone and behind the part of its REST API that is used here.

Its package asks for Python 3.14 and runs on any that the project does, so an older one gets it by
a command of its own.
"""

import json
from typing import Any

import pytest
from aiohttp import web

from environments.chat.endpoint import BackgroundLoop

INSTALL = "uv pip install --python-version 3.14 --no-deps opa-golib-python-bindings==0.4.4"
opa_bindings = pytest.importorskip("opa_bindings", reason=f"the real OPA is needed: {INSTALL}")


def read_modules(folder):
    return {path.name: path.read_text() for path in sorted(folder.glob("*.rego"))}


def real_engine(modules):
    engine = opa_bindings.OpaEngine()
    for name, text in modules.items():
        engine.add_policy(name, text)
    return engine


class OpaRestServer:
    """Loopback HTTP: what OPA's documentation says of its data and policy API.

    https://www.openpolicyagent.org/docs/rest-api. `modules` may change, as on a server to which
    somebody writes.
    """

    def __init__(self, modules):
        self.inputs: list[Any] = []
        self.put(modules)
        self._background = BackgroundLoop()
        self._background.run(self._start())

    def put(self, modules):
        self.modules = dict(modules)
        self._engine = real_engine(modules)

    async def _start(self):
        application = web.Application()
        application.router.add_post("/v1/data/{path:.*}", self._data)
        application.router.add_get("/v1/policies", self._policies)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def end(self):
        self._background.close(self._runner.cleanup())

    async def _data(self, request):
        given = (await request.json())["input"]
        self.inputs.append(given)
        answer: dict[str, Any] = {}
        try:
            path = request.match_info["path"].replace("/", ".")
            answer["result"] = self._engine.eval_document(path, given)
        except opa_bindings.OpaUndefinedError:
            pass
        except opa_bindings.OpaError as error:
            return web.json_response({"code": "internal_error", "message": str(error)}, status=500)
        return web.json_response(answer)

    async def _policies(self, _):
        listed = [{"id": n, "raw": text, "ast": {}} for n, text in self.modules.items()]
        return web.Response(text=json.dumps({"result": listed}), content_type="application/json")
