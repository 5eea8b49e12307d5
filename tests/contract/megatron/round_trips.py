"""Models through Megatron and back, in one process for all: to import Megatron takes longest.

    python -P round_trips.py MODELS OUT < peft.json

with site/ on PYTHONPATH. MODELS has a folder of Hugging Face's for each model. What converts is the
script that `equipoise convert` runs. OUT gets

    megatron/NAME, exported/NAME      each model through Megatron-Bridge, and back
    padded/, padded-exported/         a vocabulary that is filled up to a multiple of 128
    parallel/, parallel-exported/     written by four processes: two by two of tensors and layers
    lora/, lora.safetensors           adapters of two processes, and what Megatron-Bridge merges
"""

import json
import os
import runpy
import signal
import sys
import traceback
import zlib
from functools import partial
from multiprocessing import util
from pathlib import Path

import bridge_worker
import stand_ins

SCRIPT = Path(__file__).parents[3] / "equipoise" / "checkpoints" / "bridge_script.py"
ITERATION = "iter_0000000"
PADDED, PARALLEL = "llama-bfloat16-untied", "qwen3-float32-untied-1024"


def main(models, out, peft):
    import megatron.bridge.training.checkpointing  # noqa: F401  before the processes part
    from megatron.bridge import AutoBridge  # noqa: F401

    script = runpy.run_path(str(SCRIPT))
    script["forget_gpus"]()
    model, written = models / PARALLEL, out / "megatron" / PARALLEL / ITERATION
    parts = out / "parallel"
    apart(lambda: one_by_one(script, models, out))
    in_ranks(4, out, lambda: save_in_parts(script, model, written, parts))
    apart(lambda: script["export_model"](parts / ITERATION, model, out / "parallel-exported"))
    stand_ins.adapt_lora()
    in_ranks(2, out, lambda: save_adapters(script, model, written, out, peft))


def one_by_one(script, models, out):
    for model in sorted(models.iterdir()):
        checkpoint = out / "megatron" / model.name
        script["import_model"](model, checkpoint)
        script["export_model"](checkpoint / ITERATION, model, out / "exported" / model.name)
    pad(script, models / PADDED, out / "padded")
    script["export_model"](out / "padded" / ITERATION, models / PADDED, out / "padded-exported")


def pad(script, model, out):
    """As Megatron-LM does, with rows that are not words of the model's."""
    import torch
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.model_load_save import temporary_distributed_context

    with temporary_distributed_context(backend="gloo"):
        bridge = AutoBridge.from_hf_pretrained(str(model))
        (own,), _ = script["build"](bridge.to_megatron_provider(load_weights=True))
        provider = bridge.to_megatron_provider(load_weights=False)
        provider.should_pad_vocab, provider.make_vocab_size_divisible_by = True, 128
        (padded,), _ = script["build"](provider)
        weights = dict(own.named_parameters())
        for name, weight in padded.named_parameters():
            torch.nn.init.ones_(weight.data)
            weight.data[: len(weights[name])] = weights[name].data
        bridge.save_megatron_model([padded], str(out))


def in_ranks(count, out, work):
    """Run it in as many processes that talk to each other over gloo."""
    store = str(out / f"store-{count}")

    def join_and_work(rank):
        import torch

        meeting = torch.distributed.FileStore(store, count)
        torch.distributed.init_process_group("gloo", store=meeting, rank=rank, world_size=count)
        work()
        torch.distributed.barrier()

    wait([forked(partial(join_and_work, rank)) for rank in range(count)])


def apart(work):
    """Run it in a process of its own: one that used gloo has threads, which no fork of it has."""
    wait([forked(work)])


def forked(work):
    """The process, which need not import Megatron again."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        util._exit_function()  # ends the process that Megatron's writer keeps for its results
        sys.stdout.flush()
        os._exit(code)


def wait(children):
    """Until all have ended; when one fails, the others would wait for it for ever."""
    left = set(children)
    while left:
        child, status = os.wait()
        left.discard(child)
        if status and child in children:
            for other in left:
                os.kill(other, signal.SIGKILL)
            raise SystemExit(f"a process of {len(children)} has failed")


def loaded(script, model, checkpoint, tensors, layers):
    """This rank's part of the model. Weights are read by Megatron's own reader, for over gloo
    Megatron-Bridge scatters those of Hugging Face's wrongly: gloo does not mind strides.
    """
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.checkpointing import _load_model_weights_from_checkpoint
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensors, layers)
    bridge = AutoBridge.from_hf_pretrained(str(model))
    provider = bridge.to_megatron_provider(load_weights=False)
    provider.perform_initialization = False
    provider.tensor_model_parallel_size, provider.pipeline_model_parallel_size = tensors, layers
    provider.pipeline_dtype = provider.params_dtype
    chunks, _ = script["build"](provider)
    _load_model_weights_from_checkpoint(str(checkpoint), chunks)
    return bridge, chunks


def save_in_parts(script, model, checkpoint, out):
    bridge, chunks = loaded(script, model, checkpoint, 2, 2)
    bridge.save_megatron_model(chunks, str(out))


def save_adapters(script, model, checkpoint, out, peft):
    import torch
    from megatron.bridge.peft.lora import LoRA
    from safetensors.torch import save_file

    bridge, chunks = loaded(script, model, checkpoint, 2, 1)
    lora = LoRA(**peft)
    chunks = lora(chunks, training=True)
    rank = torch.distributed.get_rank()
    for name, parameter in chunks[0].named_parameters():
        if parameter.requires_grad:
            own = rank if getattr(parameter, "tensor_model_parallel", False) else 0
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + own)
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            parameter.data.copy_(values)
    weights = bridge_worker.exported(bridge, chunks)
    if rank == 0:
        save_file(weights, out / "lora.safetensors")
    bridge_worker.save_checkpoint(chunks, lora, model, out / "lora")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]), json.load(sys.stdin))
