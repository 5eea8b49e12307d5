"""A Hugging Face model in place of vLLM; NeMo-RL's `VllmGeneration` drives it, and refits it.

It starts with random weights, as vLLM does under NeMo-RL, and takes the ones that the policy sends
as vLLM would.
"""

# ruff: noqa: E402
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
import zmq

# As in vLLM's own environment; it takes seconds to load.
sys.modules["nemo_automodel"] = None  # type: ignore[assignment]

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.utils import IPCProtocol, calculate_aligned_size
from torch.multiprocessing.reductions import rebuild_tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from equipoise.train.nemo_rl.rehearsal.cpu import device_id

#: Rows that are generated at once; more would not fit into the memory of a small machine.
_ROWS = 512
_TIMEOUT = 120_000  # ms, as on the other side


class CpuGenerationWorkerImpl:
    """A worker with the methods that `VllmGeneration` calls."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.cfg = config
        architecture = AutoConfig.from_pretrained(config["model_name"], trust_remote_code=False)
        self.model = AutoModelForCausalLM.from_config(
            architecture, dtype=torch.float32, trust_remote_code=False
        ).eval()
        self._expected: Mapping[str, tuple[torch.Size, torch.dtype]] = {}
        self._digest = b""  # of the weights
        self._socket: zmq.Socket[bytes] | None = None

    def post_init(self) -> None:
        """Nothing is left to do."""

    def report_device_id(self) -> list[str]:
        """One name per rank of this engine."""
        return [device_id()]

    def wake_up(self, **_: Any) -> bool:
        return True

    def sleep(self) -> bool:
        return True

    def shutdown(self) -> bool:
        return True

    def _get_raw_spec_counters(self) -> dict[str, float]:
        return {}

    def prepare_refit_info(self, state_dict_info: Mapping[str, Any]) -> None:
        """Shape and type of every weight that will come."""
        self._expected = state_dict_info

    @torch.no_grad()
    def update_weights_via_ipc_zmq(self) -> bool:
        """Take the weights from the policy's worker of the same rank, buffer by buffer.

        Raises `RuntimeError` when a parameter was not among them.
        """
        socket = self._connected()
        digest, loaded = hashlib.blake2b(), set()
        while (payload := socket.recv_pyobj()) != IPCProtocol.COMPLETE:
            handle, names, _ = payload
            buffer = rebuild_tensor(*handle[0])  # type: ignore[no-untyped-call]
            for name, weight in self._unpacked(buffer, names):
                digest.update(weight.view(torch.uint8).numpy().tobytes())
                loaded |= self._load(name, weight)
            socket.send(IPCProtocol.ACK.value.encode())
        socket.send(IPCProtocol.ACK.value.encode())
        if missing := dict(self.model.named_parameters()).keys() - loaded:
            raise RuntimeError(f"the policy did not send {', '.join(sorted(missing))}")
        self._digest = digest.digest()
        return True

    def _connected(self) -> "zmq.Socket[bytes]":
        if self._socket is None:
            self._socket = zmq.Context().socket(zmq.REP)
            self._socket.setsockopt(zmq.RCVTIMEO, _TIMEOUT)
            self._socket.connect(f"ipc:///tmp/{device_id()}.sock")
        return self._socket

    def _unpacked(
        self, buffer: torch.Tensor, names: Sequence[str]
    ) -> list[tuple[str, torch.Tensor]]:
        weights, start = [], 0
        for name in names:
            shape, dtype = self._expected[name]
            size = dtype.itemsize * torch.Size(shape).numel()
            weights.append((name, buffer[start : start + size].view(dtype).view(shape)))
            start += calculate_aligned_size(size)
        return weights

    def _load(self, name: str, weight: torch.Tensor) -> set[str]:
        """As vLLM does: a head that is tied to the embeddings is passed over."""
        if name.startswith("lm_head.") and self.model.config.tie_word_embeddings:
            return set()
        self.model.get_parameter(name).copy_(weight)
        return {name}

    @torch.no_grad()
    def generate(self, data: Any, greedy: bool = False) -> Any:
        """Sample a completion for every row; sequences come back padded on the right."""
        lengths = data["input_lengths"].tolist()
        prompts = [row[:n] for row, n in zip(data["input_ids"], lengths, strict=True)]
        torch.manual_seed(self._seed(prompts))
        parts = [
            self._generate(prompts[start : start + _ROWS], greedy)
            for start in range(0, len(prompts), _ROWS)
        ]
        completions, logprobs = ([row for part in parts for row in part[i]] for i in range(2))
        return _output(prompts, completions, logprobs, self.cfg)

    def _seed(self, prompts: Sequence[torch.Tensor]) -> int:
        """Of weights, prompts and rank alone, so that a run that is resumed repeats itself."""
        digest = hashlib.blake2b(self._digest + os.environ["RANK"].encode(), digest_size=8)
        for prompt in prompts:
            digest.update(prompt.numpy().tobytes())
        return int.from_bytes(digest.digest()) >> 1

    def _generate(
        self, prompts: Sequence[torch.Tensor], greedy: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        ids, mask = _pad_left(prompts, self.cfg["_pad_token_id"])
        output = self.model.generate(
            input_ids=ids, attention_mask=mask, generation_config=self._settings(greedy)
        )
        completions = output.sequences[:, ids.shape[1] :]
        scores = torch.stack(output.scores, dim=1)  # after temperature, top_k and top_p
        chosen = torch.log_softmax(scores, -1).gather(-1, completions[..., None]).squeeze(-1)
        lengths = [_length(row, self.cfg["stop_token_ids"]) for row in completions]
        cut = list(zip(completions, chosen, lengths, strict=True))
        return [row[:n] for row, _, n in cut], [row[:n] for _, row, n in cut]

    def _settings(self, greedy: bool) -> GenerationConfig:
        return GenerationConfig(
            do_sample=not greedy,
            temperature=None if greedy else self.cfg["temperature"],
            top_p=None if greedy else self.cfg["top_p"],
            top_k=None if greedy else self.cfg["top_k"] or 0,
            max_new_tokens=self.cfg["max_new_tokens"],
            pad_token_id=self.cfg["_pad_token_id"],
            eos_token_id=self.cfg["stop_token_ids"],
            return_dict_in_generate=True,
            output_scores=True,
        )


#: As in policy_worker.py.
CpuGenerationWorker = ray.remote(CpuGenerationWorkerImpl)


def _pad_left(rows: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, [B, longest]."""
    flipped = [row.flip(0) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(flipped, batch_first=True, padding_value=pad).flip(1)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(ids.shape[1]).flip(0)[None] < lengths[:, None]
    return ids, mask.long()


def _length(tokens: torch.Tensor, stops: Sequence[int] | None) -> int:
    """Tokens up to the first stop token and with it; all when there is none."""
    positions = torch.isin(tokens, torch.tensor(list(stops or []))).nonzero()
    return int(positions[0, 0]) + 1 if len(positions) else len(tokens)


def _output(
    prompts: Sequence[torch.Tensor],
    completions: Sequence[torch.Tensor],
    logprobs: Sequence[torch.Tensor],
    config: Mapping[str, Any],
) -> Any:
    """NeMo-RL's `GenerationOutputSpec`."""
    pairs = list(zip(prompts, completions, strict=True))
    sequences = [torch.cat(pair) for pair in pairs]
    padded = [
        torch.cat([torch.zeros(len(p)), row]) for p, row in zip(prompts, logprobs, strict=True)
    ]
    stops = set(config["stop_token_ids"] or [])
    pad = torch.nn.utils.rnn.pad_sequence
    return BatchedDataDict(
        {
            "output_ids": pad(sequences, batch_first=True, padding_value=config["_pad_token_id"]),
            "logprobs": pad(padded, batch_first=True),
            "generation_lengths": torch.tensor([len(c) for _, c in pairs]),
            "unpadded_sequence_lengths": torch.tensor([len(s) for s in sequences]),
            "truncated": torch.tensor([int(c[-1]) not in stops for _, c in pairs]),
        }
    )
