"""Disk space of a run, estimated from shapes alone."""

from equipoise.config.memory import trained_parameters
from equipoise.config.models import ModelShape
from equipoise.config.schema import Config

#: Of a checkpoint, per trained parameter: float32 weights and AdamW's two moments.
_CHECKPOINT_BYTES = 12
_BF16 = 2
#: Rollouts, report, log, history; of a run of the shipped sizes it is less.
_RUN_BYTES = 10**9


def run_bytes(config: Config, shape: ModelShape) -> float:
    """What a run directory takes at most: the checkpoints kept, one being written, the final one.

    What is trained counts, so a LoRA's checkpoints are small.
    """
    keep = config.checkpointing.keep_top_k
    trained = trained_parameters(config, shape)
    return _RUN_BYTES + _CHECKPOINT_BYTES * trained * ((keep or 1) + 2)


def download_bytes(shape: ModelShape) -> float:
    """What a model takes in the Hub's cache, as most are published: bfloat16."""
    return _BF16 * shape.parameters


def converted_bytes(config: Config, shape: ModelShape) -> float:
    """What Megatron's form of a model takes, which NeMo-RL makes of it once: bfloat16 too."""
    policy = config.policy
    converts = policy.megatron_cfg.enabled and policy.pretrained_checkpoint is None
    return _BF16 * shape.parameters if converts else 0
