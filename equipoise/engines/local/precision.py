"""Whether the local engine computes in bfloat16."""

import torch
from transformers import PreTrainedModel

from equipoise.config.schema import Config


def in_half(config: Config, model: PreTrainedModel) -> bool:
    """On a GPU as the configuration says; on a CPU where the base of a LoRA was loaded in it."""
    asked = config.policy.precision == "bfloat16"
    return asked and (model.device.type != "cpu" or model.dtype == torch.bfloat16)
