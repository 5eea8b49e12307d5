"""Shards of two ranks, by torch's own writer; its processes import nothing else."""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def save_sharded(state, folder, meeting):
    """By torch's own writer, from two ranks."""
    mp.spawn(_write_shards, (state, str(folder), str(meeting)), nprocs=2)


def _write_shards(rank, whole, folder, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in whole.items()}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(folder, save_distributed=True))
    dist.destroy_process_group()
