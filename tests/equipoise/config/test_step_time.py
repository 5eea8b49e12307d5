"""The estimate of a step's time, held to steps that NeMo-RL's authors published."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.models import KNOWN_MODELS, ModelShape
from equipoise.config.schema import GpuName
from equipoise.config.workload import (
    FASTEST,
    GPUS,
    SLOWEST,
    Lengths,
    sampling_seconds,
    step_time,
    total,
)
from tests.equipoise.config.conftest import scale

DOCS = Path(__file__).resolve().parents[3] / "docs" / "scaling.md"
LLAMA_8B = KNOWN_MODELS["meta-llama/Llama-3.1-8B-Instruct"]
QWEN3_32B = ModelShape(64, 5_120, 25_600, 64, 8, 151_936, qk_norm=True)
MEMORY_GB = {"H100": 80, "GB200": 186}


@dataclass(frozen=True)
class Published:
    """A row of NeMo-RL's docs/about/performance-summary.md, dense model, bfloat16, Megatron.

    2,048 rollouts of at most 4,096 tokens. `reply` is the published mean length; the tokens per
    second leave 128 (Llama) and 103 (Qwen) a rollout for the prompt. `ahead` generates the next
    step on as many GPUs of its own while it trains ("1-step off").
    """

    version: str
    model: str
    gpu: str
    gpus: int
    train: tuple[int, int]  # tensor, pipeline
    vllm: int
    reply: int
    seconds: float
    ahead: bool = False

    def __str__(self):
        kind = "ahead" if self.ahead else "in turn"
        return f"{self.version}-{self.model}-{self.gpus}x{self.gpu}-{kind}"


FITTED = [
    Published("v0.4", "8B", "H100", 16, (1, 2), 1, 1_060, 97.7),
    Published("v0.4", "8B", "H100", 16, (1, 2), 1, 1_129, 74.6, ahead=True),
    Published("v0.4", "32B", "H100", 32, (4, 4), 4, 3_206, 393),
    Published("v0.4", "32B", "H100", 64, (4, 4), 4, 3_207, 215, ahead=True),
    Published("v0.5", "8B", "H100", 16, (1, 2), 1, 1_019, 92.8),
    Published("v0.5", "8B", "H100", 16, (1, 1), 1, 1_123, 64.8, ahead=True),
    Published("v0.5", "32B", "H100", 32, (4, 4), 4, 3_251, 376),
    Published("v0.5", "32B", "H100", 64, (4, 4), 4, 3_252, 200, ahead=True),
]
HELD_OUT = [
    Published("v0.7", "32B", "H100", 32, (4, 4), 4, 3_256, 323),
    Published("v0.7", "32B", "H100", 64, (4, 4), 4, 3_258, 161, ahead=True),
    Published("v0.5", "8B", "GB200", 8, (1, 1), 1, 1_066, 91.0),
    Published("v0.5", "8B", "GB200", 8, (1, 1), 1, 1_107, 71.1, ahead=True),
    Published("v0.5", "32B", "GB200", 16, (2, 1), 1, 3_253, 381),
    Published("v0.5", "32B", "GB200", 32, (2, 1), 1, 3_258, 210, ahead=True),
    Published("v0.7", "32B", "GB200", 16, (2, 4), 2, 3_254, 295),
    Published("v0.7", "32B", "GB200", 32, (2, 1), 1, 3_255, 140, ahead=True),
]


def words(row):
    """The recipe of a row, as far as the estimate reads it."""
    tensor, pipeline = row.train
    one_update = row.version == "v0.7"
    half = f"{{gpus_per_node: 4, num_nodes: {row.gpus // 8}}}"
    yield from ("--config", str(CONFIG_FOLDER / "large.yaml"), "--engine", "nemo_rl")
    yield from (f"cluster.num_nodes={row.gpus // 4}", "cluster.gpus_per_node=4")
    yield from ("grpo.num_prompts_per_step=64", "grpo.num_generations_per_prompt=32")
    yield "policy.model_name=published/" + row.model
    yield f"policy.train_global_batch_size={2048 if one_update else 512}"
    yield f"loss_fn.force_on_policy_ratio={str(one_update).lower()}"
    yield from ("policy.train_micro_batch_size=1", "policy.max_total_sequence_length=4096")
    yield "policy.dtensor_cfg.lora_cfg.enabled=false"
    yield f"policy.megatron_cfg.tensor_model_parallel_size={tensor}"
    yield f"policy.megatron_cfg.pipeline_model_parallel_size={pipeline}"
    yield f"policy.megatron_cfg.activation_checkpointing={str(row.model == '8B').lower()}"
    yield f"policy.generation.vllm_cfg.tensor_parallel_size={row.vllm}"
    yield f"policy.generation.vllm_cfg.gpu_memory_utilization={0.8 if row.ahead else 0.6}"
    if row.ahead:
        yield "policy.generation.colocated.enabled=false"
        yield f"policy.generation.colocated.resources={half}"
    yield from (f"equipoise.gpu={row.gpu}", f"equipoise.gpu_memory_gb={MEMORY_GB[row.gpu]}")


def estimated(row, load):
    """Seconds of the row's step; one that generates ahead takes the longer of its two sides."""
    shape = {"8B": LLAMA_8B, "32B": QWEN3_32B}[row.model]
    prompt = {"8B": 128, "32B": 103}[row.model]
    config = load(*words(row)).config
    parts = step_time(config, shape, Lengths(prompt, row.reply, prompt, 4_096 - prompt))
    if not row.ahead:
        return total(parts)
    generation = parts[0].seconds
    return max(generation, total(parts[1:4])) + total(parts[4:])


def ratio(row, load):
    return row.seconds / estimated(row, load)


@pytest.mark.parametrize("row", FITTED + HELD_OUT, ids=str)
def test_a_published_step_lies_within_the_range_that_is_printed(row, load):
    assert FASTEST <= ratio(row, load) <= SLOWEST


def test_the_errors_that_the_docs_name(load):
    """docs/scaling.md repeats these figures."""

    def error(rows):
        return math.sqrt(sum(math.log(ratio(row, load)) ** 2 for row in rows) / len(rows))

    hopper, blackwell = HELD_OUT[:2], HELD_OUT[2:]
    assert [round(error(rows), 2) for rows in (FITTED, hopper, blackwell)] == [0.09, 0.08, 0.28]


@pytest.mark.deep
def test_the_table_of_the_docs_is_this_one(load):
    names = {"8B": "Llama 3.1 8B", "32B": "Qwen3 32B"}
    expected = [
        [
            *(row.version, names[row.model], f"{row.gpus} {row.gpu}"),
            "ahead" if row.ahead else "in turn",
            *(f"{row.seconds:g} s", f"{estimated(row, load):.0f} s", f"{ratio(row, load):.2f}"),
        ]
        for row in FITTED + HELD_OUT
    ]
    lines = DOCS.read_text("utf-8").splitlines()
    shown = [line.strip("| ").split(" | ") for line in lines if line.startswith("| v0.")]
    assert shown == expected


FULL = Lengths(prompt=250, reply=256, longest_prompt=250, longest_reply=256)


def seconds(config, shape, lengths=FULL):
    return {part.name: part.seconds for part in step_time(config, shape, lengths)}


LLAMA_70B = KNOWN_MODELS["meta-llama/Llama-3.3-70B-Instruct"]
QWEN_7B = KNOWN_MODELS["Qwen/Qwen2.5-7B-Instruct"]


class TestParts:
    def test_training_costs_passes_and_logprobs_one_for_each_policy(self, load):
        """Recomputed and with LoRA: 3 passes; recomputed, all weights: 4; two of log-probs."""
        lora = seconds(scale(load, "large"), LLAMA_70B)
        full = seconds(scale(load, "large", "policy.dtensor_cfg.lora_cfg.enabled=false"), LLAMA_70B)
        assert lora["training"] == pytest.approx(1.5 * lora["log-probabilities"])
        assert full["training"] == pytest.approx(2 * lora["log-probabilities"])

    def test_without_kl_the_reference_is_not_asked(self, load):
        both = seconds(scale(load, "large"), LLAMA_70B)["log-probabilities"]
        one = seconds(scale(load, "large", "loss_fn.reference_policy_kl_penalty=0"), LLAMA_70B)
        assert one["log-probabilities"] == pytest.approx(both / 2)

    def test_twice_the_nodes_halve_the_passes_but_for_the_pipelines_wait(self, load):
        four, eight = (
            seconds(scale(load, "large", f"cluster.num_nodes={nodes}"), LLAMA_70B)["training"]
            for nodes in (4, 8)
        )
        assert four / 2 < eight < 0.52 * four

    def test_a_pass_is_no_quicker_than_its_weights_are_gathered(self, load):
        """256 GPUs with 4 micro batches each: 15 GB at 300 GB/s for each, in each of 2 passes."""
        words = ("cluster.num_nodes=32", "policy.train_micro_batch_size=1")
        gathered = seconds(scale(load, "medium", *words), QWEN_7B)["log-probabilities"]
        assert gathered == pytest.approx(2 * 4 * 2 * QWEN_7B.parameters / 300e9)

    def test_caches_that_are_too_small_make_waves(self, load):
        small = scale(load, "medium", "policy.generation.vllm_cfg.gpu_memory_utilization=0.2")
        assert (
            seconds(small, QWEN_7B)["generation"]
            > 1.5 * seconds(scale(load, "medium"), QWEN_7B)["generation"]
        )

    def test_the_handover_sends_weights_and_moves_training_where_gpus_are_shared(self, load):
        apart = (
            "policy.generation.colocated.enabled=false",
            "policy.generation.colocated.resources={gpus_per_node: 4}",
        )
        alone = seconds(scale(load, "medium", *apart), QWEN_7B)["handover"]
        assert alone == pytest.approx(2 * QWEN_7B.parameters / 30e9)
        assert seconds(scale(load, "medium"), QWEN_7B)["handover"] > alone

    def test_the_reference_takes_the_place_of_training_once_a_step(self, load):
        """A GPU's 17.7 GB go to the host, the reference's come, and its own come back."""
        large = seconds(scale(load, "large"), LLAMA_70B)["reference swap"]
        assert large == pytest.approx(3 * 17.7e9 / 30e9, rel=0.01)
        off = ("loss_fn.reference_policy_kl_penalty=0",)
        assert seconds(scale(load, "large", *off), LLAMA_70B)["reference swap"] == 0

    def test_a_faster_memory_generates_faster_and_trains_no_faster(self, load):
        h100, h200 = (
            seconds(scale(load, "large", f"equipoise.gpu={gpu}"), LLAMA_70B)
            for gpu in ("H100", "H200")
        )
        assert h200["generation"] < h100["generation"]
        assert h200["training"] == h100["training"]


def test_evaluations_are_asked_for_in_batches(load):
    config = scale(load, "large")
    one, two, more = (
        sampling_seconds(config, LLAMA_70B, FULL, completions, 512)
        for completions in (512, 1_024, 1_100)
    )
    assert two == pytest.approx(2 * one)
    assert two < more < 3 * one
    assert sampling_seconds(config, LLAMA_70B, FULL, 0, 512) == 0


def test_packs_of_4096_tokens_are_enough_for_the_large_scale(load):
    """What nemo_configs/large.yaml says: 1,024 waste a part of each pack, 8,192 gain nothing."""
    one, four, eight = (
        seconds(scale(load, "large", f"policy.train_micro_batch_size={size}"), LLAMA_70B)
        for size in (1, 4, 8)
    )
    assert scale(load, "large").policy.train_micro_batch_size == 4
    assert four["training"] < 0.93 * one["training"]
    assert four["training"] < 1.01 * eight["training"]


def test_the_peaks_of_every_gpu_that_may_be_named_are_known():
    assert set(get_args(GpuName)) == set(GPUS)


def test_a_step_of_1b_on_8_gpus_is_below_the_bound_of_its_authors(load):
    """NeMo-RL v0.7.0 tests/test_suites/llm/grpo-llama3.2-1b-instruct-1n8g-fsdp2tp1.v3.sh: 10 s."""
    config = scale(
        load,
        "medium",
        *("policy.model_name=meta-llama/Llama-3.2-1B-Instruct", "grpo.num_prompts_per_step=32"),
        *("policy.max_total_sequence_length=512", "policy.generation.max_new_tokens=400"),
        "policy.dtensor_cfg.lora_cfg.enabled=false",
    )
    shape = KNOWN_MODELS["meta-llama/Llama-3.2-1B-Instruct"]
    parts = step_time(config, shape, Lengths(112, 400, 112, 400))
    assert 2 < SLOWEST * total(parts) < 10
