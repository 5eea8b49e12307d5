"""How long Megatron-Bridge takes from a torch_dist checkpoint to Hugging Face's files.

    python export_worker.py PACKAGES MODEL ITERATION OUT

MODEL is the model as a folder of Hugging Face's, which Megatron-Bridge takes its names from. Prints
the seconds of reading and of writing, imports and the empty model not counted, and the peak memory
in bytes before and after, as JSON.
"""

import json
import re
import sys
import time
from pathlib import Path

import bridge_worker
import cpu


def main(model, iteration, out):
    import torch
    from megatron.bridge import AutoBridge
    from megatron.core import dist_checkpointing

    torch.distributed.init_process_group()
    bridge = AutoBridge.from_hf_pretrained(str(model), dtype=torch.bfloat16)
    chunks = bridge_worker.build(bridge, None, load_weights=False)
    before, started = peak(), time.perf_counter()
    state = chunks[0].sharded_state_dict()
    state = {name: value for name, value in state.items() if "_extra_state" not in name}
    chunks[0].load_state_dict(dist_checkpointing.load(state, str(iteration)), strict=False)
    loaded = time.perf_counter()
    bridge.save_hf_weights(chunks, out, show_progress=False)
    seconds = {"reading": loaded - started, "writing": time.perf_counter() - loaded}
    print(json.dumps(seconds | {"before": before, "peak": peak()}))


def peak():
    """Of this process, in bytes."""
    told = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(told[1]) * 1024


if __name__ == "__main__":
    packages, *folders = sys.argv[1:]
    cpu.prepare(packages)
    main(*map(Path, folders))
