"""Which layers get an adapter: the same words mean the same layers as on NeMo-RL."""

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.train.local import with_adapter

LORA = "policy.dtensor_cfg.lora_cfg"
BLOCK = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture
def adapted():
    """The last names of the layers that a configuration adapts in a model with tied embeddings."""

    def layers(*words):
        config = load_config("fairness", parse_flags("x", (f"{LORA}.enabled=true", *words))).config
        sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
        layout = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, **layout, tie_word_embeddings=True))
        model = with_adapter(model, config.policy.dtensor_cfg.lora_cfg)
        names = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
        return len(names), {name.rpartition(".")[2] for name in names}

    return layers


def test_every_linear_map_of_every_block_and_not_the_output_layer(adapted):
    assert adapted() == (14, BLOCK)


@pytest.mark.parametrize(
    ("targets", "excluded", "expected"),
    [
        ("['*_proj']", "[]", (14, BLOCK)),
        ("[q_proj, v_proj]", "[]", (4, {"q_proj", "v_proj"})),
        ("['model.layers.0.*.q_proj']", "[]", (1, {"q_proj"})),
        ("[]", "[lm_head, '*.mlp.*']", (8, {"q_proj", "k_proj", "v_proj", "o_proj"})),
    ],
)
def test_layers_by_name_and_by_pattern(targets, excluded, expected, adapted):
    words = (f"{LORA}.target_modules={targets}", f"{LORA}.exclude_modules={excluded}")
    assert adapted(*words) == expected
