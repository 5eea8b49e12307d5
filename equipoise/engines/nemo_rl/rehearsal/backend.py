"""Policy, generation and cluster on a CPU, with the interfaces of NeMo-RL's own.

Everything else of NeMo-RL is real: set-up, loop, advantages, loss, environment actor, validation,
checkpointing. What these three stand in for is not exercised: vLLM, FSDP and Megatron, refit,
sequence packing, bfloat16.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.distributed import virtual_cluster
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationInterface
from nemo_rl.models.policy.interfaces import ColocatablePolicyInterface
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from equipoise.config.schema import PolicyConfig
from equipoise.engines.local.trainer import build_optimizer, with_adapter
from equipoise.engines.nemo_rl.hooks import replaced

Weights = dict[str, torch.Tensor]
_STATE = "state.pt"
#: Rows that are generated at once; more would not fit into the memory of a small machine.
_ROWS = 512


@contextmanager
def cpu_backend(policy: PolicyConfig) -> Iterator[None]:
    """Inside, NeMo-RL builds the stand-ins, with the adapter and the optimizer of `policy`."""
    weights: Weights = {}  # on their way from the policy to the generation
    with (
        replaced(grpo, "Policy", lambda *_, **options: CpuPolicy(policy, weights, **options)),
        replaced(grpo, "VllmGeneration", _generation_class(weights)),
        replaced(grpo, "RayVirtualCluster", CpuCluster),
        replaced(virtual_cluster, "init_ray", start_ray),
    ):
        yield


def start_ray() -> None:
    """A Ray of its own, for NeMo-RL would join one that runs here for somebody else."""
    ray.init(address="local", include_dashboard=False, log_to_driver=True)


class CpuCluster:
    """No machines."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def world_size(self) -> int:
        """One process."""
        return 1

    def get_placement_groups(self) -> list[Any]:
        """None."""
        return []

    def shutdown(self) -> bool:
        """Nothing runs."""
        return True


def _generation_class(weights: Weights) -> type:
    """NeMo-RL asks for a class, which it calls and reads attributes of."""

    class CpuGeneration(Generation):
        def __init__(self, cluster: Any = None, config: Any = None, **_: Any) -> None:
            super().__init__(config, weights)

    return CpuGeneration


class Generation(GenerationInterface):
    """`transformers` in place of vLLM."""

    def __init__(self, config: Mapping[str, Any], weights: Weights) -> None:
        self.cfg = config
        self.model = _load(config["model_name"]).eval()
        self._weights = weights

    @torch.no_grad()
    def generate(self, data: Any, greedy: bool = False) -> Any:
        """Sample a completion for every row; sequences come back padded on the right."""
        prompts = _rows(data["input_ids"], data["input_lengths"])
        parts = [
            self._generate(prompts[start : start + _ROWS], greedy)
            for start in range(0, len(prompts), _ROWS)
        ]
        completions, logprobs = ([row for part in parts for row in part[i]] for i in range(2))
        return _output(prompts, completions, logprobs, self.cfg)

    def _generate(
        self, prompts: Sequence[torch.Tensor], greedy: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        ids, mask = _pad_left(prompts, self.cfg["_pad_token_id"])
        output = self.model.generate(
            input_ids=ids, attention_mask=mask, generation_config=self._settings(greedy)
        )
        new = output.sequences[:, ids.shape[1] :]
        logits = torch.stack(output.logits, dim=1) / self.cfg["temperature"]
        chosen = torch.log_softmax(logits, -1).gather(-1, new[..., None]).squeeze(-1)
        lengths = [_length(row, self.cfg["stop_token_ids"]) for row in new]
        cut = list(zip(new, chosen, lengths, strict=True))
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
            output_logits=True,
        )

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        """For asynchronous rollouts, which come row by row."""
        yield 0, self.generate(data, greedy)

    def update_weights_via_ipc_zmq(self) -> list[Any]:
        """Take what the policy has left."""
        self.model.load_state_dict(self._weights)
        return []

    def prepare_for_generation(self, *_: Any, **__: Any) -> bool:
        """Nothing to load."""
        return True

    def finish_generation(self, *_: Any, **__: Any) -> bool:
        """Nothing to free."""
        return True

    def prepare_refit_info(self, state_dict_info: Any) -> None:
        """The weights come as they are."""

    def init_collective(self, *_: Any, **__: Any) -> list[Any]:
        """One process needs no collective."""
        return []

    def shutdown(self) -> bool:
        """Nothing runs."""
        return True


class CpuPolicy(ColocatablePolicyInterface):
    """A Hugging Face model, trained as NeMo-RL's workers do it: a global batch in micro batches."""

    def __init__(
        self,
        policy: PolicyConfig,
        weights: Weights,
        *,
        config: Mapping[str, Any],
        tokenizer: Any,
        weights_path: Any = None,
        optimizer_path: Any = None,
        init_reference_model: bool = True,
        **_: Any,
    ) -> None:
        self.cfg, self.tokenizer, self._weights = config, tokenizer, weights
        self.model = with_adapter(_load(config["model_name"]), policy.dtensor_cfg.lora_cfg)
        self.reference = copy.deepcopy(self.model).eval() if init_reference_model else None
        self.optimizer, self.scheduler = build_optimizer(self.model, policy)
        if weights_path and optimizer_path:
            self._resume(Path(optimizer_path) / _STATE)

    def get_logprobs(self, data: Any, timer: Any = None) -> Any:
        """Of every token of every row, [B, S]."""
        return BatchedDataDict({"logprobs": self._all_logprobs(self.model, data)})

    def get_reference_policy_logprobs(
        self, data: Any, micro_batch_size: int | None = None, timer: Any = None
    ) -> Any:
        """The same of the frozen model."""
        return BatchedDataDict({"reference_logprobs": self._all_logprobs(self.reference, data)})

    @torch.no_grad()
    def _all_logprobs(self, model: Any, data: Any) -> torch.Tensor:
        batches = data.make_microbatch_iterator(self.cfg["train_micro_batch_size"])
        parts = [self._logprobs(model, batch) for batch in batches]
        return torch.nn.functional.pad(torch.cat(parts), (1, 0))

    def _logprobs(self, model: Any, data: Any) -> torch.Tensor:
        """Of the tokens after the first, [B, S - 1]."""
        ids, lengths = data["input_ids"], data["input_lengths"]
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        logits = logits / self.cfg["generation"]["temperature"]
        return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)

    def train(
        self,
        data: Any,
        loss_fn: Any,
        eval_mode: bool = False,
        *,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Any = None,
    ) -> dict[str, Any]:
        """One update per global batch; losses are normalised over the global batch."""
        size = gbs or self.cfg["train_global_batch_size"]
        micro = mbs or self.cfg["train_micro_batch_size"]
        if data.size % size:
            raise ValueError(f"{data.size} rollouts are no multiple of the batch of {size}")
        collected: dict[str, list[Any]] = {}
        losses, norm = [], torch.tensor(0.0)
        for start in range(0, data.size, size):
            batch = data.slice(start, start + size)
            losses.append(self._accumulate(batch, micro, loss_fn, collected, train=not eval_mode))
            norm = norm if eval_mode else self._update()
        if not eval_mode:
            self.scheduler.step()
        return {
            "loss": torch.tensor(losses),
            "grad_norm": norm.reshape(1),
            "all_mb_metrics": collected,
        }

    def _accumulate(
        self,
        batch: Any,
        micro: int,
        loss_fn: Any,
        collected: dict[str, list[Any]],
        *,
        train: bool,
    ) -> float:
        """Gradients and metrics of a global batch; its loss."""
        mask, sample = batch["token_mask"][:, 1:], batch["sample_mask"]
        sequences, tokens = sample.sum(), (mask * sample[:, None]).sum()
        rate = self.optimizer.param_groups[0]["lr"]
        shared = {"lr": rate, "global_valid_seqs": float(sequences)}
        shared["global_valid_toks"] = float(tokens)
        total = 0.0
        for part in batch.make_microbatch_iterator(micro):
            loss, metrics = loss_fn(
                next_token_logprobs=self._logprobs(self.model, part),
                data=part,
                global_valid_seqs=sequences,
                global_valid_toks=tokens,
            )
            if train:
                loss.backward()
            total += float(loss.detach())
            for name, value in {**metrics, **shared}.items():
                collected.setdefault(name, []).append(value)
        return total

    def _update(self) -> torch.Tensor:
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.cfg["max_grad_norm"] or float("inf")
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.detach()

    def stream_weights_via_ipc_zmq(self, *_: Any, **__: Any) -> list[Any]:
        """Leave the weights for the generation."""
        self._weights.clear()
        self._weights.update(_plain_weights(self.model))
        return []

    def save_checkpoint(
        self,
        weights_path: str,
        optimizer_path: str | None = None,
        tokenizer_path: str | None = None,
        **_: Any,
    ) -> None:
        """In the layout of the DTensor backend: an adapter, or consolidated weights."""
        folder = Path(weights_path) / "model"
        adapter = isinstance(self.model, PeftModel)
        self.model.save_pretrained(folder if adapter else folder / "consolidated")
        if optimizer_path:
            Path(optimizer_path).mkdir(parents=True, exist_ok=True)
            torch.save(self._state(), Path(optimizer_path) / _STATE)
        if tokenizer_path:
            self.tokenizer.save_pretrained(tokenizer_path)

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": torch.get_rng_state(),
        }

    def _resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])

    def prepare_for_training(self, *_: Any, **__: Any) -> None:
        """Dropout on."""
        self.model.train()

    def prepare_for_lp_inference(self, *_: Any, **__: Any) -> None:
        """Dropout off."""
        self.model.eval()

    def finish_training(self, *_: Any, **__: Any) -> None:
        """Nothing to free."""

    def offload_before_refit(self) -> None:
        """Nothing to free."""

    def offload_after_refit(self) -> None:
        """Nothing to free."""

    def offload_to_cpu(self) -> None:
        """It is there."""

    def prepare_refit_info(self) -> dict[str, Any]:
        """The weights go as they are."""
        return {}

    def get_free_memory_bytes(self) -> int:
        """Enough for a buffer of NeMo-RL's refit."""
        return 2**30

    def init_collective(self, *_: Any, **__: Any) -> list[Any]:
        """One process needs no collective."""
        return []

    def broadcast_weights_for_collective(self, *_: Any, **__: Any) -> list[Any]:
        """One process needs no collective."""
        return []

    def print_node_ip_and_gpu_id(self) -> None:
        """There is no GPU."""

    def finalize_async_save(self) -> None:
        """Checkpoints are written at once."""

    def get_topk_logits(self, *_: Any, **__: Any) -> Any:
        """Distillation's alone."""
        raise NotImplementedError

    def calibrate_qkv_fp8_scales(self, *_: Any, **__: Any) -> Any:
        """VLLM's alone."""
        raise NotImplementedError

    def shutdown(self) -> bool:
        """Nothing runs."""
        return True


def _load(name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)


def _plain_weights(model: Any) -> Weights:
    """A copy of the weights under the names that they have without an adapter, merged with it."""
    if not isinstance(model, PeftModel):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}
    merged = copy.deepcopy(model).merge_and_unload()
    return dict(merged.state_dict())


def _rows(ids: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    return [row[:n] for row, n in zip(ids, lengths.tolist(), strict=True)]


def _pad_left(rows: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, [B, longest]."""
    flipped = [row.flip(0) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(flipped, batch_first=True, padding_value=pad).flip(1)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(ids.shape[1]).flip(0)[None] < lengths[:, None]
    return ids, mask.long()


def _length(tokens: torch.Tensor, stops: Sequence[int] | None) -> int:
    """Tokens up to the first stop token and with it; all when there is none."""
    at = torch.isin(tokens, torch.tensor(list(stops or []))).nonzero()
    return int(at[0, 0]) + 1 if len(at) else len(tokens)


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
