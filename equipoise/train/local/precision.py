"""Use of bfloat16 by the local engine."""

import torch
from transformers import PreTrainedModel

from equipoise.config.schema import Config


def in_half(config: Config, model: PreTrainedModel) -> bool:
    """On a GPU as the configuration says; on a CPU where the base of a LoRA was loaded in it."""
    is_bfloat16 = config.policy.precision == "bfloat16"
    return is_bfloat16 and (model.device.type != "cpu" or model.dtype == torch.bfloat16)


def has_bfloat16(device: torch.device) -> bool:
    """Without such instructions a CPU computes in bfloat16 more slowly than in float32."""
    if device.type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
