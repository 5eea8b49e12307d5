"""Causal language models of this process, from a folder or the Hugging Face hub."""

import torch
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from equipoise.files.hub import explain
from equipoise.files.pretrained import (
    LOADING_ERRORS,
    OWN_TEMPLATE,
    Template,
    load_config,
    load_tokenizer,
)


def load_model(
    name: str,
    tokenizer_name: str,
    template: Template = OWN_TEMPLATE,
    *,
    dtype: torch.dtype,
    device: torch.device,
    four_bit: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer. Raises `EquipoiseError` with the remedy."""
    tokenizer = load_tokenizer(name, tokenizer_name, template)
    try:
        model = load_weights(name, dtype, device, four_bit=four_bit)
    except LOADING_ERRORS as error:
        raise explain(name, error) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(device).eval()
    return model, tokenizer


def load_weights(
    name: str, dtype: torch.dtype, device: torch.device, *, four_bit: bool
) -> PreTrainedModel:
    model: PreTrainedModel
    config = load_config(name)
    if not four_bit:
        model = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=dtype, trust_remote_code=False
        )
        return model
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
