"""A model passes through in blocks: the process is given a fraction of the model's size.

RLIMIT_DATA limits what torch may allocate; files that are mapped to be read do not count.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.equipoise.checkpoints.large import Stack, megatron_tensors, save_megatron, shape
from tests.equipoise.checkpoints.samples import same

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[3]
#: 319 MB, of which fc1 of all layers takes 134, and one tensor at most 17.
CONFIG = shape(16, 1024, 2048, 8192)
#: A merge of one weight in float32, and what Python and libraries take.
ROOM = 100 * 10**6
RANKS = 2
FC1, FACTORS = "decoder.layers.mlp.linear_fc1.weight", "model.layers.3.mlp.down_proj"

_CONVERT = f"""
import json, logging, resource, sys, traceback
from pathlib import Path
import psutil, torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
from equipoise.checkpoints.convert import convert
logging.basicConfig(level=logging.INFO, stream=sys.stdout)

folder = Path(sys.argv[1])
MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.from_pretrained(folder / "base"))]  # imported now
resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + {ROOM},) * 2)
try:
    torch.empty({ROOM + 2**23}, dtype=torch.uint8)
except RuntimeError:
    print("limited")
for source in sys.argv[2:]:
    try:
        convert(folder / source, folder / source / "made", base=str(folder / "base"))
    except Exception:
        traceback.print_exc()
"""


@pytest.fixture(scope="module")
def tensors():
    """The model's, by Hugging Face's names."""
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(CONFIG).state_dict()
    return {name: Stack(*one.shape).part((0,)) for name, one in state.items()}


@pytest.fixture(scope="module")
def folder(tensors, tmp_path_factory):
    """One model in all forms; one process with little memory has converted each of them."""
    assert sum(tensor.nbytes for tensor in tensors.values()) > 3 * ROOM
    assert megatron_tensors(CONFIG)[FC1].nbytes > 1.3 * ROOM
    folder = tmp_path_factory.mktemp("large")
    for name in ("base", "sharded", "adapter"):
        (folder / name).mkdir()
    for name in ("layers", "stacked"):
        save_megatron(CONFIG, folder / name, stacked=name == "stacked")
    CONFIG.save_pretrained(folder / "base")
    save_file(tensors, folder / "base" / "model.safetensors")
    save_shards(tensors, folder / "sharded")
    save_file(factors(), folder / "adapter" / "adapter_model.safetensors")
    lora = LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", target_modules=[FACTORS])
    lora.save_pretrained(folder / "adapter")
    sources = ["layers", "stacked", "sharded", "adapter"]
    words = [sys.executable, "-c", _CONVERT, folder, *sources]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.startswith("limited"), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout.count("not checked: whether it loads") == len(sources)
    return folder


def save_shards(tensors, folder):
    """As DTensor has them: each rank's part of every tensor."""
    for rank in range(RANKS):
        parts = {name: tensor.chunk(RANKS)[rank].contiguous() for name, tensor in tensors.items()}
        told = {
            name: {"saved_offsets": [rank * len(part), *(0 for _ in part.shape[1:])]}
            for name, part in parts.items()
        }
        path = folder / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
        save_file(parts, path, {"DCP_SHARDING_INFO": json.dumps(told)})


def factors():
    generator = torch.Generator().manual_seed(1)
    return {
        f"base_model.model.{FACTORS}.lora_{name}.weight": torch.randn(sizes, generator=generator)
        for name, sizes in (("A", (4, 2048)), ("B", (1024, 4)))
    }


def made(folder):
    return load_file(folder / "made" / "model.safetensors")


@pytest.mark.parametrize("name", ["layers", "stacked"])
def test_megatron(name, folder):
    fc1, layer, inner = megatron_tensors(CONFIG, stacked=name == "stacked")[FC1], 5, 2048
    if name == "stacked":
        gate, up = fc1.part((0, 0, 0))[layer].split(inner)
    else:
        gate, up = (fc1.part((layer, row, 0))[0] for row in (0, inner))
    written = made(folder / name)
    assert torch.equal(written[f"model.layers.{layer}.mlp.gate_proj.weight"], gate)
    assert torch.equal(written[f"model.layers.{layer}.mlp.up_proj.weight"], up)


def test_shards(folder, tensors):
    assert same(made(folder / "sharded"), tensors)


def test_an_adapter_is_merged(folder, tensors):
    a, b = factors().values()
    name = f"{FACTORS}.weight"
    merged = (tensors[name].float() + 2 * (b @ a)).bfloat16()
    assert same(made(folder / "adapter"), tensors | {name: merged})
