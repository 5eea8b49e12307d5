"""NeMo Gym's resources server around `Sets`.

The one module that imports nemo-gym, which brings fastapi. NeMo Gym has a package `environments`
too; ours must be first on the path (see `export.py`).
"""

from dataclasses import asdict
from typing import Any, ClassVar

from fastapi import HTTPException
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from pydantic import ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticSerializationError

from equipoise.exports.gym.sets import NoSuchSeatError, Sets
from equipoise.exports.task import RewardSettings, open_environment
from equipoise.run.prompts import read_records


class EquipoiseConfig(BaseResourcesServerConfig):
    """Gym's keys, and ours in a section of their own."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED
    equipoise: RewardSettings

    @model_validator(mode="after")
    def _one_process(self) -> "EquipoiseConfig":
        if (self.num_workers or 1) > 1:
            raise ValueError("num_workers must be 1: rollouts wait for one another in one process")
        return self


class EquipoiseVerifyRequest(BaseVerifyRequest):
    """A rollout of a prompt; a group that is sent again has the next attempt."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    prompt_id: str
    rollout_index: int | None = Field(None, alias="_ng_rollout_index", ge=0)
    group_attempt: int = Field(0, alias="_ng_group_attempt", ge=0)

    @property
    def reply(self) -> str:
        """The text of the response."""
        return "".join(
            part.text
            for item in self.response.output
            if item.type == "message" and item.role == "assistant"
            for part in item.content
            if part.type == "output_text"
        )


class EquipoiseVerifyResponse(BaseVerifyResponse):
    """The reward, and its parts before their weights."""

    prompt_id: str
    components: dict[str, float]


class EquipoiseServer(SimpleResourcesServer):
    """A server for an environment of any scope."""

    ray_enabled = False
    config: EquipoiseConfig
    _sets: Sets = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Build the environment, before there is a port to ask at."""
        super().model_post_init(context)
        settings = self.config.equipoise
        self._sets = Sets(open_environment(settings), read_records(settings.prompts), settings)

    async def verify(self, body: EquipoiseVerifyRequest) -> EquipoiseVerifyResponse:
        """Answer when all that is scored with the rollout has come, or the deadline is over."""
        try:
            body.response.model_dump_json()
        except PydanticSerializationError as error:
            raise HTTPException(422, f"the response is not valid Unicode: {error}") from None
        seat = (body.prompt_id, body.rollout_index, body.group_attempt)
        try:
            answer = await self._sets.ask(*seat, body.reply)
        except NoSuchSeatError as error:
            raise HTTPException(422, str(error)) from None
        return EquipoiseVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            prompt_id=body.prompt_id,
            mask_sample=answer.failure_kind is not None,
            **asdict(answer),
        )
