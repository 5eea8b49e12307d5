"""A Hugging Face model in place of vLLM; NeMo-RL's `VllmGeneration` drives it, and refits it."""

# ruff: noqa: E402
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
import torch
import zmq

# As in vLLM's own environment; it takes seconds to load.
sys.modules["nemo_automodel"] = None  # type: ignore[assignment]

from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.policy.utils import IPCProtocol, calculate_aligned_size
from torch.multiprocessing.reductions import rebuild_tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from equipoise.train.nemo_rl.rehearsal.cpu import device_id


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

    def _do_nothing(self, **_: Any) -> bool:
        return True

    post_init = wake_up = sleep = shutdown = _do_nothing

    def report_device_id(self) -> list[str]:
        return [device_id()]

    def _get_raw_spec_counters(self) -> dict[str, float]:
        return {}

    def prepare_refit_info(self, state_dict_info: Mapping[str, Any]) -> None:
        self._expected = state_dict_info

    @torch.no_grad()
    def update_weights_via_ipc_zmq(self) -> bool:
        """Take the weights from the policy's worker of the same rank, buffer by buffer.

        Raises `RuntimeError` when a parameter was not among them. As vLLM does, it passes over a
        head that is tied to the embeddings.
        """
        if self._socket is None:
            self._socket = zmq.Context().socket(zmq.REP)
            self._socket.setsockopt(zmq.RCVTIMEO, 120_000)  # ms, as on the other side
            self._socket.connect(f"ipc:///tmp/{device_id()}.sock")
        digest, loaded = hashlib.blake2b(), set()
        while (payload := self._socket.recv_pyobj()) != IPCProtocol.COMPLETE:
            handle, names, _ = payload
            buffer = rebuild_tensor(*handle[0])  # type: ignore[no-untyped-call]
            for name, weight in self._unpacked(buffer, names):
                digest.update(weight.view(torch.uint8).numpy().tobytes())
                if not (name.startswith("lm_head.") and self.model.config.tie_word_embeddings):
                    self.model.get_parameter(name).copy_(weight)
                    loaded.add(name)
            self._socket.send(IPCProtocol.ACK.value.encode())
        self._socket.send(IPCProtocol.ACK.value.encode())
        if missing := dict(self.model.named_parameters()).keys() - loaded:
            raise RuntimeError(f"the policy did not send {', '.join(sorted(missing))}")
        self._digest = digest.digest()
        return True

    def _unpacked(
        self, buffer: torch.Tensor, names: Sequence[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        start = 0
        for name in names:
            shape, dtype = self._expected[name]
            size = dtype.itemsize * torch.Size(shape).numel()
            yield name, buffer[start : start + size].view(dtype).view(shape)
            start += calculate_aligned_size(size)

    @torch.no_grad()
    def generate(self, data: Any, greedy: bool = False) -> Any:
        """NeMo-RL's `GenerationOutputSpec`: a completion for every row, padded on the right."""
        cfg, lengths = self.cfg, data["input_lengths"]
        pad = cfg["_pad_token_id"]
        pairs = zip(data["input_ids"], lengths.tolist(), strict=True)
        prompts = [row[:length] for row, length in pairs]
        torch.manual_seed(self._seed(prompts))
        ids = pad_sequence(prompts, True, pad, padding_side="left")
        mask = torch.arange(ids.shape[1]).flip(0)[None] < lengths[:, None]
        settings = GenerationConfig(
            do_sample=not greedy,
            temperature=None if greedy else cfg["temperature"],
            top_p=None if greedy else cfg["top_p"],
            top_k=None if greedy else cfg["top_k"] or 0,
            max_new_tokens=cfg["max_new_tokens"],
            pad_token_id=pad,
            eos_token_id=cfg["stop_token_ids"],
            return_dict_in_generate=True,
            output_scores=True,
        )
        output = self.model.generate(
            input_ids=ids, attention_mask=mask.long(), generation_config=settings
        )
        completions = output.sequences[:, ids.shape[1] :]
        scores = torch.stack(output.scores, dim=1)  # after temperature, top_k and top_p
        chosen = torch.log_softmax(scores, -1).gather(-1, completions[..., None]).squeeze(-1)
        stops = torch.isin(completions, torch.tensor(cfg["stop_token_ids"] or []))
        before = stops.cumsum(1) - stops.long()  # stop tokens before a token
        written = (before == 0).sum(1)
        rows = list(zip(prompts, completions, chosen, written.tolist(), strict=True))
        sequences = [torch.cat((prompt, tokens[:n])) for prompt, tokens, _, n in rows]
        logprobs = [torch.cat((torch.zeros(len(p)), values[:n])) for p, _, values, n in rows]
        return BatchedDataDict(
            {
                "output_ids": pad_sequence(sequences, True, pad),
                "logprobs": pad_sequence(logprobs, True),
                "generation_lengths": written,
                "unpadded_sequence_lengths": lengths + written,
                "truncated": ~stops.any(1),
            }
        )

    def _seed(self, prompts: Sequence[torch.Tensor]) -> int:
        """Of weights, prompts and rank alone, so that a run that is resumed repeats itself."""
        digest = hashlib.blake2b(self._digest + os.environ["RANK"].encode(), digest_size=8)
        for prompt in prompts:
            digest.update(prompt.numpy().tobytes())
        return int.from_bytes(digest.digest()) >> 1


CpuGenerationWorker = ray.remote(CpuGenerationWorkerImpl)  # as in policy_worker.py
