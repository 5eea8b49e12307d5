"""Loading a causal language model for the local engine."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from data_prep.hub import model_identity
from equipoise.config.schema import Config
from equipoise.files.errors import EquipoiseError
from equipoise.models.hub import explain
from equipoise.models.pretrained import (
    LOADING_ERRORS,
    OWN_TEMPLATE,
    Template,
    identity_of,
    load_config,
    load_tokenizer,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer; `identity` says what both are, see `identity_of`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: str


def load_model(
    name: str,
    tokenizer_name: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    four_bit: bool = False,
    template: Template = OWN_TEMPLATE,
) -> LoadedModel:
    """Load from a folder or the Hugging Face hub. Raises `EquipoiseError` with the remedy."""
    tokenizer = load_tokenizer(name, tokenizer_name, template)
    try:
        model = _pretrained(name, dtype, device, four_bit=four_bit)
    except LOADING_ERRORS as error:
        raise explain(name, error) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(device).eval()
    identity = identity_of(name, tokenizer_name, template) + (", 4 bits" if four_bit else "")
    return LoadedModel(model, tokenizer, identity)


def load_trained(base: LoadedModel, checkpoint: Path, device: torch.device) -> LoadedModel:
    """The trained model of a final checkpoint: a whole model, or `base` with the adapter.

    The adapter is put on a fresh copy of the base, so that nothing of the training run is left.
    """
    if (checkpoint / "adapter_config.json").exists():
        source = base.model.get_base_model() if isinstance(base.model, PeftModel) else base.model
        four_bit = getattr(source, "is_loaded_in_4bit", False)
        fresh = _pretrained(source.name_or_path, source.dtype, device, four_bit=four_bit)
        model = PeftModel.from_pretrained(fresh, str(checkpoint))
    else:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=base.model.dtype, trust_remote_code=False
        )
    model.to(device).eval()
    return LoadedModel(model, base.tokenizer, model_identity(str(checkpoint)))


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


def _pretrained(
    name: str, dtype: torch.dtype, device: torch.device, *, four_bit: bool
) -> PreTrainedModel:
    model: PreTrainedModel
    config = load_config(name)
    if not four_bit:
        model = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=dtype, trust_remote_code=False
        )
        return model
    if find_spec("bitsandbytes") is None:
        raise EquipoiseError(
            "model.no-bitsandbytes",
            "equipoise.load_in_4bit needs bitsandbytes, which is not installed",
            "Start the recipe with `uv run --extra 4bit`.",
        )
    # NF4 with quantized constants, as in QLoRA: Dettmers et al. 2023, arXiv:2305.14314.
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        name,
        config=config,
        dtype=dtype,
        quantization_config=settings,
        device_map={"": device},
        trust_remote_code=False,
    )
    # A processor's fast layout, into which generating would pack the weights, gives no gradient.
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model
