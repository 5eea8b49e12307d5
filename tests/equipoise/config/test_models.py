"""Parameter counts against the ones that the models' authors publish."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from equipoise.config.models import KNOWN_MODELS, model_shape

#: Totals that Hugging Face shows for the safetensors files of each model.
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "smollm2": 134_515_008,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
}
TINY = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def test_known_models_have_the_published_sizes():
    assert {name: KNOWN_MODELS[name].parameters for name in PUBLISHED} == PUBLISHED
    cache = KNOWN_MODELS["meta-llama/Llama-3.3-70B-Instruct"].cache_bytes_per_token
    assert cache == 320 * 1024


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("config_class", "model_class"),
    [(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)],
)
def test_a_local_folder_has_the_parameters_that_its_model_has(
    config_class, model_class, tied, tmp_path
):
    config = config_class(**TINY, tie_word_embeddings=tied)
    config.save_pretrained(tmp_path)
    model = model_class(config)
    shape = model_shape(str(tmp_path))
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())


def test_lora_has_two_matrices_for_each_linear_map():
    from peft import LoraConfig, get_peft_model

    config = Qwen2Config(**TINY)
    model = get_peft_model(Qwen2ForCausalLM(config), LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    shape = KNOWN_MODELS["Qwen/Qwen2.5-0.5B"]
    tiny = type(shape)(3, 64, 96, 4, 2, 128, qkv_bias=True, head_size=16)
    assert tiny.lora_parameters(4) == trained


@pytest.mark.parametrize(
    "text", [None, "no JSON", "[]", "{}", json.dumps({"model_type": "mamba"}), "\udcff"]
)
def test_what_is_not_known_is_not_guessed(text, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text, errors="surrogateescape")
    assert model_shape(str(tmp_path)) is None
    assert model_shape("nobody/has-this") is None
