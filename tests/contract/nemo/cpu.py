"""What stands in for a GPU's software where NeMo runs on a CPU; `prepare` comes before its import.

Transformer Engine   absent, as NeMo's and megatron-core's own probes find it
ModelOpt             its part for speculative decoding, which does not import with this torch,
                     is an empty module; NeMo reads one dictionary of it
torch.cuda           four calls do nothing
fused kernels        off in every configuration that is built, after it was recorded
"""

import contextlib
import os
import sys
import types
import warnings

#: Megatron-core's settings whose kernels need a GPU.
UNFUSED = {
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "cross_entropy_loss_fusion": False,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
    "use_cpu_initialization": True,
}


def prepare() -> None:
    """Replace them."""
    import torch

    warnings.filterwarnings("ignore")
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "NEMO_TESTING": "1"}
    os.environ["NVIDIA_PYTORCH_VERSION"] = "25.01"  # NeMo compares it
    sys.modules["modelopt.torch.speculative"] = types.SimpleNamespace(EAGLE3_DEFAULT_CFG={})
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.get_rng_state = lambda *_: torch.empty(0, dtype=torch.uint8)
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.set_device = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self


def adjust() -> None:
    """Turn off the fused kernels, after NeMo was imported."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.transformer_config import TransformerConfig

    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    check = TransformerConfig.__post_init__

    def check_unfused(self) -> None:
        for key, value in UNFUSED.items():
            setattr(self, key, value)
        check(self)

    TransformerConfig.__post_init__ = check_unfused
