"""A harness that asks the model once, and starts no process for it."""

from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class AskOnceConfig(vf.HarnessConfig):
    """It has no keys of its own."""


class AskOnce(vf.Harness[AskOnceConfig]):
    """One chat completion from the messages of a task.

    The harnesses of verifiers start a program for each rollout, which takes seconds of CPU time.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002  it records by itself
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Ask; what was answered is recorded on the way. A status that is not 200 is a failure."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = (
            [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        )
        if system is not None:
            messages = [vf.SystemMessage(content=system), *messages]
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in messages]}
        unlimited = aiohttp.ClientTimeout(total=None)  # an agent's timeout is in its configuration
        async with aiohttp.ClientSession(timeout=unlimited) as session:
            headers = {"Authorization": f"Bearer {secret}"}
            url = f"{endpoint}/chat/completions"
            async with session.post(url, json=body, headers=headers) as response:
                text = await response.text()
        if response.status == 200:
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")
        return vf.ProgramResult(exit_code=1, stdout="", stderr=f"HTTP {response.status}: {text}")
