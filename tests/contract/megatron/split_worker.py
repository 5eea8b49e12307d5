"""NeMo-RL's Megatron worker on one rank or two, with sequences packed or apart.

    python split_worker.py PACKAGES NEMO_RL MODEL OUT nemo_rl.yaml NAME
        # with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for more than one rank

NAME is a case of test_megatron_bridge.py: with "packed" in it, sequences are. The ranks share the
model by tensor and sequence parallelism. Rank 0 writes NAME.safetensors and NAME.json into OUT, as
tests/contract/dtensor_worker.py does.
"""

import json
import os
import sys
from pathlib import Path
from unittest import mock

import cpu
import policy_worker

#: Uneven, so that packs are of several.
LENGTHS, TOKENS = (16, 5, 12, 7, 16, 3, 9, 14), 48


def main(model, out, config, name):
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from safetensors.torch import save_file

    from tests.contract.batch import random_batch
    from tests.contract.dtensor_worker import seen_by, shards_as, train

    settings = policy_worker.resolved(config, str(model))
    policy, ranks = settings["policy"], int(os.environ["WORLD_SIZE"])
    megatron = policy["megatron_cfg"]
    # Core's own norm knows no sequence parallelism.
    megatron |= {"tensor_model_parallel_size": ranks, "sequence_parallel": False}
    megatron["peft"]["enabled"] = False  # each rank draws another part of an adapter
    megatron["optimizer"] |= {"lr": 0.002, "min_lr": 0.002}
    packing = {f"{stage}_mb_tokens": TOKENS for stage in ("train", "logprob")}
    policy["sequence_packing"] |= packing | {"enabled": "packed" in name.name}
    shards, batch = shards_as(policy), random_batch(LENGTHS, policy_worker.VOCABULARY)
    apart = one_by_one(DotProductAttention.forward)
    with mock.patch.object(DotProductAttention, "forward", apart):
        worker = policy_worker.build(policy)
        logprobs = {"start": seen_by(worker, shards, batch)}
        gradients = train(worker, shards, batch, settings["loss_fn"], logprobs["start"])
        logprobs["trained"] = seen_by(worker, shards, batch)
    if os.environ["RANK"] == "0":
        save_file({"input_ids": batch["input_ids"]} | logprobs, out / f"{name}.safetensors")
        (out / f"{name}.json").write_text(json.dumps({"gradients": gradients}))


def one_by_one(attend):
    """Megatron core's own attention, sequence by sequence: it refuses packs, as FlashAttention's
    place is Transformer Engine's."""
    import torch

    def forward(self, query, key, value, mask, *args, packed_seq_params=None, **words):
        if packed_seq_params is None:
            return attend(self, query, key, value, mask, *args, **words)
        packs = packed_seq_params
        ends = (
            packs.cu_seqlens_q if packs.cu_seqlens_q_padded is None else packs.cu_seqlens_q_padded
        )
        sizes = ends.diff().tolist()
        parts = zip(*(tensor[:, None].split(sizes) for tensor in (query, key, value)), strict=True)
        return torch.cat([attend(self, *part, None, *args, **words)[:, 0] for part in parts])

    return forward


if __name__ == "__main__":
    packages, nemo_rl, *words = sys.argv[1:]
    sys.path.insert(0, nemo_rl)
    cpu.prepare(packages)
    os.environ["NRL_MEGATRON_CHECKPOINT_DIR"] = str(Path(words[1]) / f"imported-{words[3]}")
    sys.modules["nemo_automodel"] = None  # NeMo-RL's environment for Megatron has none
    main(*map(Path, words))
