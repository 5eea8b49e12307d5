"""Shapes of models, the layout over GPUs, and the memory that both take at least."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from equipoise.config.memory import layout_of, lora_rank, memory_of
from equipoise.files.disk import GB
from equipoise.files.model_shape import KNOWN_MODELS, model_shape
from tests.equipoise.config.conftest import on_nemo_rl

LLAMA = KNOWN_MODELS["meta-llama/Llama-3.3-70B-Instruct"]
QWEN = KNOWN_MODELS["Qwen/Qwen2.5-7B-Instruct"]
NO_LORA = "policy.dtensor_cfg.lora_cfg.enabled=false"
MEGATRON = "policy.megatron_cfg."


@pytest.fixture
def scale(load):
    return lambda *words: load(*on_nemo_rl(*words)).config


@pytest.fixture
def memory(scale):
    """The memory of a scale: large trains a Llama, medium a Qwen."""
    shapes = {"large": LLAMA, "medium": QWEN}
    return lambda name, *words: memory_of(scale(name, *words), shapes[name])


class TestLayout:
    def test_of_dtensor(self, scale):
        layout = layout_of(scale("medium"))
        assert (layout.model_parallel, layout.data_parallel) == (1, 8)
        assert layout.replicas == 8

    def test_of_megatron(self, scale):
        layout = layout_of(scale("large"))
        assert (layout.tensor, layout.pipeline, layout.context) == (8, 1, 1)
        assert (layout.data_parallel, layout.replicas) == (4, 4)

    @pytest.mark.parametrize(
        ("name", "resources", "training", "generating"),
        [
            ("medium", "{gpus_per_node: 2}", 6, 2),
            ("large", "{gpus_per_node: 8, num_nodes: 1}", 24, 8),
        ],
    )
    def test_generation_may_have_gpus_of_its_own(
        self, name, resources, training, generating, scale
    ):
        apart = "policy.generation.colocated"
        words = (f"{apart}.enabled=false", f"{apart}.resources={resources}", "--batch-size", "96")
        layout = layout_of(scale(name, *words))
        assert (layout.training_gpus, layout.generation_gpus) == (training, generating)


class TestMemory:
    def test_dtensor_shards_four_bytes_over_all_gpus(self, memory):
        least = memory("medium", NO_LORA)
        assert least.weights == pytest.approx(4 * QWEN.parameters / 8)
        assert least.gradients == least.weights
        assert least.optimizer == pytest.approx(8 * QWEN.parameters / 8)

    def test_megatron_shards_the_optimizer_alone_over_the_ranks(self, memory):
        least = memory("large", NO_LORA)
        assert least.weights == pytest.approx(2 * LLAMA.parameters / 8)
        assert least.gradients == least.weights
        assert least.optimizer == pytest.approx(12 * LLAMA.parameters / 8 / 4)

    def test_lora_trains_its_own_weights_alone(self, memory, scale):
        trained = LLAMA.lora_parameters(32, fused=True)
        assert lora_rank(scale("large")) == 32
        least = memory("large")
        assert least.weights == pytest.approx(2 * (LLAMA.parameters + trained) / 8)
        assert least.gradients == pytest.approx(2 * trained / 8)

    @pytest.mark.parametrize("fraction", [0.25, 1.0])
    def test_an_optimizer_on_the_host_takes_nothing(self, fraction, memory):
        words = ("optimizer_cpu_offload=true", f"optimizer_offload_fraction={fraction}")
        least = memory("large", *(f"{MEGATRON}optimizer.{word}" for word in words))
        assert least.optimizer == pytest.approx((1 - fraction) * memory("large").optimizer)

    @pytest.mark.parametrize("name", ["medium", "large"])
    def test_a_shipped_scale_leaves_a_third_of_its_gpus_free(self, name, memory, scale):
        limit, least = scale(name).equipoise.gpu_memory_gb * GB, memory(name)
        assert least.training < 2 / 3 * limit
        assert least.weights + least.vllm_weights < 2 / 3 * limit


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
