"""The layout over GPUs, and the memory that it is estimated to take."""

import pytest

from equipoise.config.memory import GB, cached_tokens, estimate, layout_of, lora_rank, vllm_share
from equipoise.config.models import KNOWN_MODELS
from tests.equipoise.config.conftest import scale

LLAMA = KNOWN_MODELS["meta-llama/Llama-3.3-70B-Instruct"]
QWEN = KNOWN_MODELS["Qwen/Qwen2.5-7B-Instruct"]
NO_LORA = "policy.dtensor_cfg.lora_cfg.enabled=false"


def parts(config, shape):
    return {part.name: part.bytes for part in estimate(config, shape).parts}


class TestLayout:
    def test_of_dtensor(self, load):
        layout = layout_of(scale(load, "medium"))
        assert (layout.gpus, layout.model_parallel, layout.data_parallel) == (8, 1, 8)
        assert layout.replicas == 8

    def test_of_megatron(self, load):
        layout = layout_of(scale(load, "large"))
        assert (layout.tensor, layout.pipeline, layout.context) == (8, 1, 1)
        assert (layout.gpus, layout.data_parallel, layout.replicas) == (32, 4, 4)

    @pytest.mark.parametrize(
        ("name", "resources", "training", "generating"),
        [
            ("medium", "{gpus_per_node: 2}", 6, 2),
            ("large", "{gpus_per_node: 8, num_nodes: 1}", 24, 8),
        ],
    )
    def test_generation_may_have_gpus_of_its_own(self, name, resources, training, generating, load):
        config = scale(
            load,
            name,
            *("policy.generation.colocated.enabled=false", "--batch-size", "96"),
            f"policy.generation.colocated.resources={resources}",
        )
        layout = layout_of(config)
        assert (layout.training_gpus, layout.generation_gpus) == (training, generating)


class TestEstimate:
    def test_dtensor_shards_four_bytes_over_all_gpus(self, load):
        found = parts(scale(load, "medium", NO_LORA), QWEN)
        assert found["weights"] == pytest.approx(4 * QWEN.parameters / 8)
        assert found["gradients"] == found["weights"]
        assert found["optimizer"] == pytest.approx(8 * QWEN.parameters / 8)

    def test_megatron_shards_the_optimizer_alone_over_the_ranks(self, load):
        config = scale(load, "large", NO_LORA)
        found = parts(config, LLAMA)
        assert found["weights"] == pytest.approx(2 * LLAMA.parameters / 8)
        assert found["gradients"] == found["weights"]
        assert found["optimizer"] == pytest.approx(12 * LLAMA.parameters / 8 / 4)

    def test_lora_trains_its_own_weights_alone(self, load):
        config = scale(load, "large")
        trained = LLAMA.lora_parameters(32, fused=True)
        assert lora_rank(config) == 32
        found = parts(config, LLAMA)
        assert found["weights"] == pytest.approx(2 * (LLAMA.parameters + trained) / 8)
        assert found["gradients"] == pytest.approx(2 * trained / 8)

    @pytest.mark.parametrize("fraction", [0.25, 1.0])
    def test_an_optimizer_on_the_host_takes_nothing(self, fraction, load):
        words = ("optimizer_cpu_offload=true", f"optimizer_offload_fraction={fraction}")
        prefix = "policy.megatron_cfg.optimizer."
        config = scale(load, "large", *(prefix + word for word in words))
        here = parts(scale(load, "large"), LLAMA)["optimizer"]
        assert parts(config, LLAMA)["optimizer"] == pytest.approx((1 - fraction) * here)

    def test_checkpointing_and_sequence_parallelism_save_activations(self, load):
        key = "policy.megatron_cfg."
        whole = parts(scale(load, "large", key + "activation_checkpointing=false"), LLAMA)
        split = parts(
            scale(
                load,
                "large",
                *(key + "activation_checkpointing=false", key + "sequence_parallel=true"),
            ),
            LLAMA,
        )
        kept = parts(scale(load, "large"), LLAMA)
        # Korthikanti et al. 2022, table 2, without the attention matrix.
        tokens, hidden, layers, t = 4096, 8192, 80, 8
        assert whole["activations"] == pytest.approx(tokens * hidden * layers * (10 + 24 / t))
        assert split["activations"] == pytest.approx(tokens * hidden * layers * 34 / t)
        assert kept["activations"] < split["activations"] < whole["activations"]

    def test_training_is_the_sum_of_its_parts_and_all_have_a_formula(self, load):
        memory = estimate(scale(load, "large"), LLAMA)
        assert memory.training == sum(part.bytes for part in memory.parts)
        assert all(part.formula for part in memory.parts)
        assert memory.refit > memory.weights + memory.vllm_weights


class TestCache:
    def test_it_is_what_the_weights_leave_of_vllms_share(self, load):
        config = scale(load, "medium")
        assert vllm_share(config) == pytest.approx(48 * GB)
        per_replica = (48 * GB - 2 * QWEN.parameters) / QWEN.cache_bytes_per_token
        assert cached_tokens(config, QWEN) == 8 * int(per_replica)

    def test_a_gpu_of_unknown_size_has_none(self, load):
        config = scale(load, "medium", "equipoise.gpu_memory_gb=null")
        with pytest.raises(ValueError, match="gpu_memory_gb"):
            cached_tokens(config, QWEN)


@pytest.mark.parametrize(("name", "shape"), [("medium", QWEN), ("large", LLAMA)])
def test_a_shipped_scale_leaves_a_third_of_its_gpus_free(name, shape, load):
    config = scale(load, name)
    limit = config.equipoise.gpu_memory_gb * GB
    memory = estimate(config, shape)
    assert memory.training < 2 / 3 * limit
    assert memory.refit < 2 / 3 * limit
