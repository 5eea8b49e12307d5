"""The stand-in of generation_worker.py behind the methods of vLLM's asynchronous engine.

Requests of one conversation each wait for a moment, and what waits is generated together.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from equipoise.train.nemo_rl.rehearsal.generation_worker import CpuGenerationWorkerImpl

_MOMENT = 0.05  # s


class CpuAsyncGenerationWorkerImpl(CpuGenerationWorkerImpl):
    """The methods that `VllmGeneration` calls where the engine is asynchronous."""

    def __init__(self, config: Mapping[str, Any], defer_model_load: bool = False) -> None:
        assert not defer_model_load, "that is for NeMo Gym alone"
        super().__init__(config)
        self._waiting: list[Any] = []
        self._batch: asyncio.Task[Any] | None = None  # of what waits

    async def generate_async(
        self, data: Any, greedy: bool = False
    ) -> AsyncIterator[tuple[int, Any]]:
        """The one conversation of `data`, as row 0."""
        if not self._waiting:
            # What waits is of one batch, which samples or does not.
            self._batch = asyncio.create_task(self._generate_waiting(greedy))
        row, batch = len(self._waiting), self._batch
        self._waiting.append(data)
        assert batch is not None
        generated = await batch
        yield 0, _cut(generated.slice(row, row + 1))

    async def _generate_waiting(self, greedy: bool) -> Any:
        await asyncio.sleep(_MOMENT)
        waiting, self._waiting = self._waiting, []
        pad = {"input_ids": self.cfg["_pad_token_id"]}
        return self.generate(BatchedDataDict.from_batches(waiting, pad_value_dict=pad), greedy)

    async def post_init_async(self) -> None:
        """As `post_init`."""
        self.post_init()

    async def report_dp_openai_server_base_url(self) -> None:
        """No server is open."""

    def clear_vllm_logger_metrics(self) -> None:
        """None are kept."""

    def get_vllm_logger_metrics(self) -> dict[str, Any]:
        """None are kept."""
        return {}

    async def report_device_id_async(self) -> list[str]:
        """As `report_device_id`."""
        return self.report_device_id()

    async def wake_up_async(self, **_: Any) -> bool:
        """As `wake_up`."""
        return self.wake_up()

    async def sleep_async(self) -> bool:
        """As `sleep`."""
        return self.sleep()

    async def init_collective_async(self, *_: Any, **__: Any) -> None:
        """None, see policy_worker.py."""

    async def update_weights_from_collective_async(self) -> bool:
        """As `update_weights_via_ipc_zmq`."""
        return self.update_weights_via_ipc_zmq()

    async def reset_prefix_cache_async(self) -> bool:
        """Nothing is cached."""
        return True

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """As `prepare_refit_info`."""
        self.prepare_refit_info(state_dict_info)

    async def update_weights_via_ipc_zmq_async(self) -> bool:
        """As `update_weights_via_ipc_zmq`."""
        return self.update_weights_via_ipc_zmq()


def _cut(row: Any) -> Any:
    """A row without the padding that the rows beside it asked for."""
    length = int(row["unpadded_sequence_lengths"][0])
    row["output_ids"], row["logprobs"] = row["output_ids"][:, :length], row["logprobs"][:, :length]
    return row


#: As in policy_worker.py.
CpuAsyncGenerationWorker = ray.remote(CpuAsyncGenerationWorkerImpl)
