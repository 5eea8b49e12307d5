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
    """Bound the size of a run directory: the checkpoints kept, one being written, the final one.

    Trained weights count, so a LoRA's checkpoints are small.
    """
    keep = config.checkpointing.keep_top_k
    trained = trained_parameters(config, shape)
    return _RUN_BYTES + _CHECKPOINT_BYTES * trained * ((keep or 1) + 2)


def download_bytes(shape: ModelShape) -> float:
    """Size a model in the Hub's cache, in bfloat16 as most are published."""
    return _BF16 * shape.parameters


def converted_bytes(config: Config, shape: ModelShape) -> float:
    """Size the bfloat16 copy in Megatron's form that NeMo-RL makes of a model once."""
    policy = config.policy
    converts = policy.megatron_cfg.enabled and policy.pretrained_checkpoint is None
    return _BF16 * shape.parameters if converts else 0
