"""NeMo Gym's resources server, which gives the rewards of a run's task.

The one module that imports nemo-gym, whose package `environments` must come after ours.
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
from pydantic import ConfigDict, Field, PrivateAttr
from pydantic_core import PydanticSerializationError

from equipoise.commands.export.task import GYM_KINDS, Rewards, RewardSettings
from equipoise.run.rollouts import rollout_of


class EquipoiseConfig(BaseResourcesServerConfig):
    """Gym's keys, and ours in a section of their own."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED
    equipoise: RewardSettings


class EquipoiseVerifyRequest(BaseVerifyRequest):
    """A rollout of a prompt; a group that is sent again has the next attempt."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    prompt_id: str
    rollout_index: int | None = Field(None, alias="_ng_rollout_index", ge=0)
    group_attempt: int = Field(0, alias="_ng_group_attempt", ge=0)


class EquipoiseVerifyResponse(BaseVerifyResponse):
    """The reward, and its parts before their weights."""

    prompt_id: str
    components: dict[str, float]


class EquipoiseServer(SimpleResourcesServer):
    """A server for an environment of any scope."""

    ray_enabled = False
    config: EquipoiseConfig
    _rewards: Rewards = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Build the environment before the server opens its port."""
        super().model_post_init(context)
        self._rewards = Rewards(self.config.equipoise)

    async def verify(self, body: EquipoiseVerifyRequest) -> EquipoiseVerifyResponse:
        """Answer once all rollouts that are scored together have come, or at the deadline."""
        prompt_id, index, response = body.prompt_id, body.rollout_index, body.response
        generations = self.config.equipoise.generations
        try:
            response.model_dump_json()
        except PydanticSerializationError as error:
            raise HTTPException(422, f"the response is not valid Unicode: {error}") from None
        if prompt_id not in self._rewards.records:
            raise HTTPException(422, f"the run has no prompt {prompt_id!r}")
        if index is not None and index >= generations:
            raise HTTPException(
                422, f"generation {index} of {prompt_id!r}: there are {generations}, from 0 on"
            )
        rollout = rollout_of(self._rewards.records[prompt_id], response.output_text)
        reward = await self._rewards.sets.ask(
            rollout, generations, response.id, index, body.group_attempt
        )
        failure = reward.score.error
        return EquipoiseVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=response,
            prompt_id=prompt_id,
            reward=reward.number,
            components=dict(reward.score.components),
            mask_sample=failure is not None,
            failure_kind=GYM_KINDS.get(failure.kind, failure.kind) if failure else None,
            failure_reason=failure.text if failure else None,
        )
