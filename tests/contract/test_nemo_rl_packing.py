"""How full NeMo-RL's packer fills its packs, against what the estimate of a step assumes.

Runs the packer of the checkout that NEMO_RL_PATH names, which needs no package.
"""

import importlib.util
import os
import random
from pathlib import Path

import pytest

from equipoise.config import Options, load_config
from equipoise.config.flags import CONFIG_FOLDER, Setting
from equipoise.config.workload import Lengths, computed_tokens

SOURCE = Path(os.environ.get("NEMO_RL_PATH", "")) / "nemo_rl" / "data" / "packing" / "algorithms.py"
if not SOURCE.exists():
    pytest.skip("NEMO_RL_PATH names no checkout of NeMo-RL", allow_module_level=True)

PROMPT, SHORTEST, LONGEST = 240, 60, 256


@pytest.fixture(scope="module")
def packer():
    spec = importlib.util.spec_from_file_location("algorithms", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ModifiedFirstFitDecreasingPacker


def rollouts(seed):
    """Tokens of the 512 rollouts that a rank of the large scale packs: fairness prompts."""
    draw = random.Random(seed)
    return [PROMPT + draw.randint(SHORTEST, LONGEST) for _ in range(512)]


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_the_assumed_room_in_packs_is_the_packers(micro, packer):
    """With pipeline stages every pack of a rank is padded to the fullest one."""
    words = (
        Setting("", "equipoise.engine", "nemo_rl"),
        Setting("", "policy.train_micro_batch_size", micro),
    )
    config = load_config("fairness", Options((CONFIG_FOLDER / "large.yaml",), words)).config
    lengths = rollouts(seed=micro)
    packs = packer(1_024 * micro).pack(lengths)
    fullest = max(sum(lengths[index] for index in pack) for pack in packs)
    packed = len(packs) * fullest / sum(lengths)

    reply = (SHORTEST + LONGEST) / 2
    tokens, _ = computed_tokens(config, Lengths(PROMPT, reply, PROMPT, LONGEST))
    assert tokens / (2_048 * (PROMPT + reply)) == pytest.approx(packed, rel=0.06)
