"""The layout over GPUs, and the memory that it is estimated to take."""

import pytest

from equipoise.config.memory import GB, cached_tokens, estimate, layout_of, lora_rank, vllm_share
from equipoise.config.models import KNOWN_MODELS
from tests.equipoise.config.conftest import on_nemo_rl

LLAMA = KNOWN_MODELS["meta-llama/Llama-3.3-70B-Instruct"]
QWEN = KNOWN_MODELS["Qwen/Qwen2.5-7B-Instruct"]
NO_LORA = "policy.dtensor_cfg.lora_cfg.enabled=false"
MEGATRON = "policy.megatron_cfg."


@pytest.fixture
def scale(load):
    return lambda *words: load(*on_nemo_rl(*words)).config


@pytest.fixture
def parts(scale):
    """The bytes of each part on a scale: large trains a Llama, medium a Qwen."""

    def of(name, *words):
        shape = LLAMA if name == "large" else QWEN
        return {part.name: part.bytes for part in estimate(scale(name, *words), shape).parts}

    return of


class TestLayout:
    def test_of_dtensor(self, scale):
        layout = layout_of(scale("medium"))
        assert (layout.gpus, layout.model_parallel, layout.data_parallel) == (8, 1, 8)
        assert layout.replicas == 8

    def test_of_megatron(self, scale):
        layout = layout_of(scale("large"))
        assert (layout.tensor, layout.pipeline, layout.context) == (8, 1, 1)
        assert (layout.gpus, layout.data_parallel, layout.replicas) == (32, 4, 4)

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


class TestEstimate:
    def test_dtensor_shards_four_bytes_over_all_gpus(self, parts):
        found = parts("medium", NO_LORA)
        assert found["weights"] == pytest.approx(4 * QWEN.parameters / 8)
        assert found["gradients"] == found["weights"]
        assert found["optimizer"] == pytest.approx(8 * QWEN.parameters / 8)

    def test_megatron_shards_the_optimizer_alone_over_the_ranks(self, parts):
        found = parts("large", NO_LORA)
        assert found["weights"] == pytest.approx(2 * LLAMA.parameters / 8)
        assert found["gradients"] == found["weights"]
        assert found["optimizer"] == pytest.approx(12 * LLAMA.parameters / 8 / 4)

    def test_lora_trains_its_own_weights_alone(self, parts, scale):
        trained = LLAMA.lora_parameters(32, fused=True)
        assert lora_rank(scale("large")) == 32
        found = parts("large")
        assert found["weights"] == pytest.approx(2 * (LLAMA.parameters + trained) / 8)
        assert found["gradients"] == pytest.approx(2 * trained / 8)

    @pytest.mark.parametrize("fraction", [0.25, 1.0])
    def test_an_optimizer_on_the_host_takes_nothing(self, fraction, parts):
        words = ("optimizer_cpu_offload=true", f"optimizer_offload_fraction={fraction}")
        found = parts("large", *(f"{MEGATRON}optimizer.{word}" for word in words))
        here = parts("large")["optimizer"]
        assert found["optimizer"] == pytest.approx((1 - fraction) * here)

    def test_checkpointing_and_sequence_parallelism_save_activations(self, parts):
        plain = f"{MEGATRON}activation_checkpointing=false"
        whole, split, kept = (
            parts("large", *words)["activations"]
            for words in ((plain,), (plain, f"{MEGATRON}sequence_parallel=true"), ())
        )
        # Korthikanti et al. 2022, table 2, without the attention matrix.
        tokens, hidden, layers, t = 4096, 8192, 80, 8
        assert whole == pytest.approx(tokens * hidden * layers * (10 + 24 / t))
        assert split == pytest.approx(tokens * hidden * layers * 34 / t)
        assert kept < split < whole


class TestCache:
    def test_it_is_what_the_weights_leave_of_vllms_share(self, scale):
        config = scale("medium")
        assert vllm_share(config) == pytest.approx(48 * GB)
        per_replica = (48 * GB - 2 * QWEN.parameters) / QWEN.cache_bytes_per_token
        assert cached_tokens(config, QWEN) == 8 * int(per_replica)

    def test_a_gpu_of_unknown_size_has_none(self, scale):
        with pytest.raises(ValueError, match="gpu_memory_gb"):
            cached_tokens(scale("medium", "equipoise.gpu_memory_gb=null"), QWEN)


@pytest.mark.parametrize(("name", "shape"), [("medium", QWEN), ("large", LLAMA)])
def test_a_shipped_scale_leaves_a_third_of_its_gpus_free(name, shape, scale):
    config = scale(name)
    limit, memory = config.equipoise.gpu_memory_gb * GB, estimate(config, shape)
    assert memory.training < 2 / 3 * limit
    assert memory.weights + memory.vllm_weights < memory.refit < 2 / 3 * limit
