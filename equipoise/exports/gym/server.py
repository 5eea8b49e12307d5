"""The shell for NeMo Gym: its resources server, around `Service`.

The one module that imports nemo-gym, which brings fastapi. NeMo Gym has a package `environments`
too; ours must be first on the path (see `export.py`).
"""

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

from equipoise.exports.gym.cohorts import NoSuchSeatError, SeatTakenError
from equipoise.exports.gym.service import RolloutRequest, Service, ServiceSettings, open_service


class EquipoiseConfig(BaseResourcesServerConfig):
    """Gym's keys, and ours in a section of their own."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED
    equipoise: ServiceSettings

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

    def rollout_request(self) -> RolloutRequest:
        """Return the rollout as a `RolloutRequest`."""
        texts = [
            part.text
            for item in self.response.output
            if item.type == "message" and item.role == "assistant"
            for part in item.content
            if part.type == "output_text"
        ]
        return RolloutRequest(
            self.prompt_id,
            self.rollout_index,
            self.group_attempt,
            "".join(texts),
            f"{self.response.id} {self.response.created_at}",
            self.response.created_at,
        )


class EquipoiseVerifyResponse(BaseVerifyResponse):
    """The reward, and its parts before their weights."""

    prompt_id: str
    components: dict[str, float]


class EquipoiseServer(SimpleResourcesServer):
    """A server for an environment of any scope."""

    ray_enabled = False
    config: EquipoiseConfig
    _service: Service = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Build the environment, before there is a port to ask at."""
        super().model_post_init(context)
        self._service = open_service(self.config.equipoise)

    async def verify(self, body: EquipoiseVerifyRequest) -> EquipoiseVerifyResponse:
        """The answer, when all that is scored with the rollout has come or the deadline is over."""
        try:
            body.response.model_dump_json()
        except PydanticSerializationError as error:
            raise HTTPException(422, f"the response is not valid Unicode: {error}") from None
        try:
            answer = await self._service.verify(body.rollout_request())
        except NoSuchSeatError as error:
            raise HTTPException(422, str(error)) from None
        except SeatTakenError as error:
            raise HTTPException(409, str(error)) from None
        return EquipoiseVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            prompt_id=body.prompt_id,
            reward=answer.reward,
            components=dict(answer.components),
            mask_sample=answer.failure_kind is not None,
            failure_kind=answer.failure_kind,
            failure_reason=answer.failure_reason,
        )
