"""Memory of a run, counted from shapes alone: what it takes at least, before anything is loaded.

Weights, gradients and optimizer states are counted, and vLLM's share; activations, logits, caches
and buffers come on top. How NeMo-RL v0.7.0 stores things was read in its source.
"""

from dataclasses import dataclass

from equipoise.config.schema import Config
from equipoise.files.disk import GB
from equipoise.files.model_shape import ModelShape

# --- Layout over GPUs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs and how training and generation split the model and the batch over them.

    The sizes need not fit together: NeMo-RL refuses those that do not.
    """

    training_gpus: int
    generation_gpus: int
    tensor: int
    pipeline: int
    context: int
    vllm_tensor: int
    vllm_pipeline: int
    megatron: bool

    @property
    def model_parallel(self) -> int:
        """GPUs that one copy of the model trains on."""
        return self.tensor * self.pipeline * self.context

    @property
    def data_parallel(self) -> int:
        """Copies of the model that share a batch; at least 1."""
        return max(1, self.training_gpus // self.model_parallel)

    @property
    def vllm_gpus(self) -> int:
        """GPUs that one copy of the model generates on."""
        return self.vllm_tensor * self.vllm_pipeline

    @property
    def replicas(self) -> int:
        """Copies of the model that generate; at least 1."""
        return max(1, self.generation_gpus // self.vllm_gpus)


def layout_of(config: Config) -> Layout:
    """Lay a configuration out over its GPUs as NeMo-RL does."""
    policy, generation = config.policy, config.policy.generation
    megatron, dtensor = policy.megatron_cfg, policy.dtensor_cfg
    gpus = config.cluster.gpus
    per_node, resources = config.cluster.gpus_per_node, generation.colocated.resources
    generation_gpus = 0
    if not generation.colocated.enabled:  # a part of one node, or whole nodes of several
        generation_gpus = (
            resources.gpus_per_node or per_node
            if config.cluster.num_nodes == 1
            else per_node * (resources.num_nodes or 1)
        )
    on_megatron = megatron.enabled
    return Layout(
        training_gpus=gpus - generation_gpus,
        generation_gpus=generation_gpus or gpus,
        tensor=(
            megatron.tensor_model_parallel_size if on_megatron else dtensor.tensor_parallel_size
        ),
        pipeline=megatron.pipeline_model_parallel_size if on_megatron else 1,
        context=megatron.context_parallel_size if on_megatron else dtensor.context_parallel_size,
        vllm_tensor=generation.vllm_cfg.tensor_parallel_size,
        vllm_pipeline=generation.vllm_cfg.pipeline_parallel_size,
        megatron=on_megatron,
    )


# --- Memory ---------------------------------------------------------------------------------------

_BF16, _FP32 = 2, 4
_NF4 = (4 + 0.127) / 8  # with its doubly quantized constants; Dettmers et al. 2023, section 3
_ADAM = 2 * _FP32  # first and second moment


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at least: of each GPU while it trains and while vLLM has its weights, and of a host."""

    weights: float
    gradients: float
    optimizer: float
    vllm_weights: float
    host: float

    @property
    def training(self) -> float:
        return self.weights + self.gradients + self.optimizer


def memory_of(config: Config, shape: ModelShape) -> Memory:
    """Memory per GPU of the fullest pipeline stage, and per node of the host.

    DTensor: FSDP2 shards float32 weights, gradients and states over all GPUs that hold one copy;
    Zhao et al. 2023, arXiv:2304.11277. Megatron: bfloat16 weights and gradients are split over
    tensor and pipeline ranks, and the distributed optimizer's 12 bytes a trained parameter over the
    data-parallel ranks too; Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO, stage 1).

    On the host the reference policy always lies. While it computes, training's weights do too, and
    vLLM's, which sleeps; while vLLM generates, training's weights and optimizer.
    """
    layout, policy = layout_of(config), config.policy
    trained = trained_parameters(config, shape)
    held = shape.parameters + (trained if lora_rank(config) else 0)
    if layout.megatron:
        megatron = policy.megatron_cfg
        optimizer, ddp = megatron.optimizer, megatron.distributed_data_parallel_config
        offloaded = optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0
        copies = layout.tensor * layout.pipeline
        ranks = layout.data_parallel * layout.context if optimizer.use_distributed_optimizer else 1
        weights = _BF16 * held / copies
        gradients = (_FP32 if ddp.grad_reduce_in_fp32 else _BF16) * trained / copies
        states = (1 - offloaded) * (_FP32 + _ADAM) * trained / copies / ranks
    else:
        shards = layout.training_gpus // policy.dtensor_cfg.dp_replicate_size
        weights, gradients, states = (
            size / shards for size in (_FP32 * held, _FP32 * trained, _ADAM * trained)
        )
    vllm = _BF16 * shape.parameters / layout.vllm_gpus
    shared = policy.generation.colocated.enabled
    penalty = config.loss_fn.reference_policy_kl_penalty
    skipped = config.grpo.skip_reference_policy_logprobs_calculation or not penalty
    computing = (0 if skipped else weights) + (vllm if shared else 0)
    generating = weights + states if shared else 0
    gpus = min(layout.training_gpus, config.cluster.gpus_per_node)
    host = gpus * ((weights if penalty else 0) + max(computing, generating))
    return Memory(weights, gradients, states, vllm, host)


def local_bytes(config: Config, shape: ModelShape, *, gpu: bool) -> float:
    """Sum the local engine's minimum: weights, gradients and AdamW's moments.

    Below a LoRA the frozen base is bfloat16 on a GPU with that precision, else everything is
    float32; its layers may be NF4.
    """
    lora = config.policy.dtensor_cfg.lora_cfg
    trained = shape.lora_parameters(lora.dim) if lora.enabled else shape.parameters
    half = gpu and lora.enabled and config.policy.precision == "bfloat16"
    linear = shape.layers * shape.layer_parameters if config.equipoise.load_in_4bit else 0
    frozen = (_BF16 if half else _FP32) * (shape.parameters - linear) + _NF4 * linear
    return (frozen if lora.enabled else 0) + (2 * _FP32 + _ADAM) * trained


def vllm_share(config: Config) -> float:
    """Bytes of each GPU that vLLM takes while it generates; 0 where the memory is not said."""
    memory = config.equipoise.gpu_memory_gb or 0.0
    return memory * GB * config.policy.generation.vllm_cfg.gpu_memory_utilization


def trained_parameters(config: Config, shape: ModelShape) -> int:
    """Parameters that have gradients and optimizer states."""
    rank, fused = lora_rank(config), config.policy.megatron_cfg.enabled
    return shape.lora_parameters(rank, fused=fused) if rank else shape.parameters


def lora_rank(config: Config) -> int:
    """The rank of the backend's LoRA; 0 without one."""
    policy = config.policy
    lora = policy.megatron_cfg.peft if policy.megatron_cfg.enabled else policy.dtensor_cfg.lora_cfg
    return lora.dim if lora.enabled else 0
