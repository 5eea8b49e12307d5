"""One rank of NeMo-RL's DTensor worker on a CPU, in several settings in turn.

    python -m tests.contract.dtensor_worker OUT CASE...
        # with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, and PORTS, two for each case

OUT has CASE.yaml, what Equipoise writes for a run. Rank 0
writes into OUT what it sees of a batch at the start, after two updates, and when a second worker
has loaded the first one's checkpoint. NeMo-RL's Ray and worker group do not take part.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from equipoise.files.nemo_rl import find_installation
from equipoise.train.nemo_rl.process import before_nemo_rl
from tests.contract.batch import random_batch

#: Uneven, so that batches by tokens are others than those by rows.
LENGTHS, VOCABULARY, UPDATES = (16, 5, 12, 7, 16, 3, 9, 14), 250, 2


def main(out, *cases):
    find_installation().make_importable()
    before_nemo_rl()
    del sys.modules["nemo_automodel"]  # drivers do without it, the worker does not
    from equipoise.train.nemo_rl.rehearsal.policy_worker import CpuPolicyWorkerImpl

    # Each worker has a port of its own: at one that is used again a rank meets the last group.
    ports = iter(os.environ["PORTS"].split(","))
    for case in cases:
        take(case, partial(build, CpuPolicyWorkerImpl, ports), out)


def take(case, build, out):
    """One setting."""
    settings = resolved(out / f"{case}.yaml")
    policy = settings["policy"]
    shards, batch = shards_as(policy), random_batch(LENGTHS, VOCABULARY)
    trained = build(policy)
    logprobs = {"start": seen_by(trained, shards, batch)}
    gradients = train(trained, shards, batch, settings["loss_fn"], logprobs["start"])
    logprobs["trained"] = seen_by(trained, shards, batch)
    paths = save(trained, settings["checkpointing"], out / case)
    torch.distributed.destroy_process_group()
    resumed = build(policy, **paths)
    logprobs["resumed"] = seen_by(resumed, shards, batch)
    torch.distributed.destroy_process_group()
    if os.environ["RANK"] == "0":
        from safetensors.torch import save_file

        save_file({"input_ids": batch["input_ids"]} | logprobs, out / f"{case}.safetensors")
        micro_batches = shards.logprob(batch)[0][0].micro_batch_indices
        record = {"gradients": gradients, "micro_batches": micro_batches}
        (out / f"{case}.json").write_text(json.dumps(record))


def resolved(config):
    """The run's configuration, as NeMo-RL reads it."""
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()
    return OmegaConf.to_container(load_config(str(config)), resolve=True)


def build(worker, ports, policy, **paths):
    """The worker that Ray would build."""
    import ray

    os.environ["MASTER_PORT"] = next(ports)
    with mock.patch.object(ray, "get_gpu_ids", lambda: [0]):
        return worker(policy, **paths)


def save(worker, checkpointing, folder):
    """Write a checkpoint as NeMo-RL does, and return what a resume is given."""
    from nemo_rl.models.policy.lm_policy import Policy

    paths = {f"{kind}_path": str(folder / kind) for kind in ("weights", "optimizer")}
    group = SimpleNamespace(
        run_all_workers_single_data=lambda name, **words: [getattr(worker, name)(**words)]
    )
    policy = SimpleNamespace(cfg=worker.cfg, worker_group=group)
    with mock.patch("nemo_rl.models.policy.lm_policy.ray.get"):
        Policy.save_checkpoint(policy, **paths, checkpointing_cfg=checkpointing)
    return paths


def shards_as(policy):
    """NeMo-RL's own ways to give a batch to its workers, for one data-parallel rank."""
    from nemo_rl.models.policy.lm_policy import Policy

    dynamic, packing = policy["dynamic_batching"], policy["sequence_packing"]
    keys = {"input_key": "input_ids", "input_lengths_key": "input_lengths"}
    of = SimpleNamespace(
        cfg=policy,
        data_parallel_size=1,
        use_dynamic_batches=dynamic["enabled"],
        use_sequence_packing=packing["enabled"],
        dynamic_batching_args=keys | {"sequence_length_round": dynamic["sequence_length_round"]},
        sequence_packing_args=keys
        | {
            "algorithm": packing["algorithm"],
            "sequence_length_pad_multiple": policy["make_sequence_length_divisible_by"],
        },
    )
    return SimpleNamespace(
        logprob=lambda batch: Policy._shard_for_logprob(of, batch),
        train=lambda batch: Policy._shard_for_train(of, batch, len(LENGTHS)),
    )


def seen_by(worker, shards, batch):
    """Log-probabilities of a batch, in its own order."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    (shard,), order = shards.logprob(batch)
    seen = BatchedDataDict(worker.get_logprobs(data=shard, micro_batch_size=2))
    if order is not None:
        seen.reorder_data(order)
    found = seen["logprobs"]
    values = torch.zeros(batch["input_ids"].shape)
    values[:, : found.shape[1]] = found
    return values * batch["token_mask"]


def train(worker, shards, batch, loss, logprobs):
    """Two updates; returns the norms of their gradients."""
    from nemo_rl.algorithms.loss import loss_functions

    for key in ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs"):
        batch[key] = logprobs
    loss_function = loss_functions.ClippedPGLossFn(loss_functions.ClippedPGLossConfig(**loss))
    worker.prepare_for_training()
    norms = []
    for _ in range(UPDATES):
        (shard,) = shards.train(batch)
        update = worker.train(shard, loss_function, gbs=len(LENGTHS), mbs=2)
        norms.append(float(update["grad_norm"]))
    return norms


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
