"""Memory per GPU of a NeMo-RL run, and the disk space of any, estimated from shapes alone.

An estimate, not a measurement: no figure of it was ever compared with a GPU. Weights, gradients,
optimizer states and the key-value cache are counted; activations follow a published formula for
another architecture; logits and the rest are upper guesses. Take it as right to within a third.
How NeMo-RL v0.7.0 stores things was read in its source.
"""

from dataclasses import dataclass

from equipoise.config.models import ModelShape
from equipoise.config.schema import Config

# --- parallelism ----------------------------------------------------------------------------------
# How NeMo-RL lays a configuration out over its GPUs.


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs and how training and generation split the model and the batch over them.

    The sizes need not fit together: `equipoise.config.nemo_rl.rules` says where they do not.
    """

    gpus: int
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
    """The layout that a configuration asks for."""
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
        gpus=gpus,
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


# --- memory ---------------------------------------------------------------------------------------


GB = 10**9
_BF16, _FP32 = 2, 4
_NF4 = (4 + 0.127) / 8  # with its doubly quantized constants; Dettmers et al. 2023, section 3
_ADAM = 2 * _FP32  # first and second moment
#: FSDP2 gathers the next layer while it computes one.
_GATHERED_LAYERS = 2
#: bfloat16 logits, float32 logits, log-softmax and its gradient, a token and word: an upper guess.
_LOGIT_BYTES = _BF16 + 3 * _FP32
#: Of a checkpoint, per trained parameter: float32 weights and AdamW's two moments.
_CHECKPOINT_BYTES = _FP32 + _ADAM
#: Rollouts, report, log, history; of a run of the shipped sizes it is less.
_RUN_BYTES = GB
#: CUDA context, NCCL buffers, fragmentation.
_OVERHEAD = 2 * GB


def in_gb(size: float, decimals: int = 0) -> str:
    return f"{size / GB:,.{decimals}f} GB"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes per GPU, and how they were counted."""

    name: str
    bytes: float
    formula: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one GPU. Training and generation take turns where they share the GPUs."""

    parts: tuple[Part, ...]  # the weights first
    vllm_weights: float

    @property
    def weights(self) -> float:
        return self.parts[0].bytes

    @property
    def training(self) -> float:
        """While an update is computed; vLLM sleeps and the reference policy lies on the host."""
        return sum(part.bytes for part in self.parts)

    @property
    def refit(self) -> float:
        """While vLLM is handed new weights and has its own beside those of training."""
        return self.weights + self.vllm_weights + _OVERHEAD


def estimate(config: Config, shape: ModelShape) -> Memory:
    """Memory per GPU of the fullest pipeline stage."""
    layout = layout_of(config)
    stored = (
        _megatron(config, shape, layout) if layout.megatron else _dtensor(config, shape, layout)
    )
    policy = config.policy
    tokens = policy.train_micro_batch_size * policy.max_total_sequence_length // layout.context
    parts = (
        *stored,
        _activations(config, shape, layout, tokens),
        Part(
            "logits",
            _LOGIT_BYTES * tokens * shape.vocab / layout.tensor,
            f"{_LOGIT_BYTES} x {tokens:,} tokens x {shape.vocab:,} words / {layout.tensor} tensor",
        ),
        Part("CUDA and buffers", _OVERHEAD, "assumed"),
    )
    return Memory(parts, _BF16 * shape.parameters / layout.vllm_gpus)


def host_bytes(config: Config, shape: ModelShape) -> float:
    """Memory of a node's host that NeMo-RL's workers take at least, besides the GPUs'.

    The reference policy always lies there. While it computes, training's weights do too, and
    vLLM's, which sleeps; while vLLM generates, training's weights and optimizer. PyTorch rounds
    each tensor of pinned memory up to a power of two, which is not counted.
    """
    layout, policy = layout_of(config), config.policy
    parts = {part.name: part.bytes for part in estimate(config, shape).parts}
    weights = parts["weights"]
    reference = weights if config.loss_fn.reference_policy_kl_penalty else 0.0
    swapped = weights if has_reference_pass(config) else 0.0
    shared = policy.generation.colocated.enabled
    asleep = _BF16 * shape.parameters / layout.vllm_gpus if shared else 0.0
    generating = weights + parts["optimizer"] if shared else 0.0
    gpus = min(layout.training_gpus, config.cluster.gpus_per_node)
    return gpus * (reference + max(swapped + asleep, generating))


def has_reference_pass(config: Config) -> bool:
    """Whether NeMo-RL v0.7.0 computes the reference policy's log-probabilities in a step."""
    skipped = config.grpo.skip_reference_policy_logprobs_calculation
    return not skipped and config.loss_fn.reference_policy_kl_penalty > 0


def least_local_bytes(config: Config, shape: ModelShape, *, gpu: bool) -> float:
    """Sum the local engine's minimum: weights, gradients and AdamW's moments.

    Activations, the cache and the reference model come on top of it. Below a LoRA the frozen base
    is bfloat16 on a GPU with that precision, else everything is float32; its layers may be NF4.
    """
    lora = config.policy.dtensor_cfg.lora_cfg
    trained = shape.lora_parameters(lora.dim) if lora.enabled else shape.parameters
    half = gpu and lora.enabled and config.policy.precision == "bfloat16"
    wide = _BF16 if half else _FP32
    linear = shape.layers * shape.layer_parameters if config.equipoise.load_in_4bit else 0
    frozen = wide * (shape.parameters - linear) + _NF4 * linear if lora.enabled else 0
    return frozen + (2 * _FP32 + _ADAM) * trained


def cached_tokens(config: Config, shape: ModelShape) -> int:
    """Tokens that the key-value caches of all vLLM replicas hold; at least 0.

    vLLM takes `gpu_memory_utilization` of each GPU, and what its weights leave is cache. What it
    needs to compute is not counted. Raises `ValueError` where the GPU's memory is not said.
    """
    if config.equipoise.gpu_memory_gb is None:
        raise ValueError("equipoise.gpu_memory_gb is null")
    layout = layout_of(config)
    share = vllm_share(config) * layout.vllm_gpus - _BF16 * shape.parameters
    return max(0, int(share / shape.cache_bytes_per_token)) * layout.replicas


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


def _dtensor(config: Config, shape: ModelShape, layout: Layout) -> tuple[Part, ...]:
    """FSDP2 shards float32 weights, gradients and states over all GPUs that hold one copy.

    Frozen weights are float32 too, for FSDP2 wants one type. It computes in `policy.precision`,
    for which it gathers a layer at a time; Zhao et al. 2023, arXiv:2304.11277.
    """
    shards = layout.training_gpus // config.policy.dtensor_cfg.dp_replicate_size
    trained = trained_parameters(config, shape)
    held = shape.parameters + (trained if lora_rank(config) else 0)
    largest = max(shape.layer_parameters, shape.embedding_parameters)
    divisor = f"/ {shards} shards"
    return (
        Part("weights", _FP32 * held / shards, f"4 x {held:,} {divisor}"),
        Part("gradients", _FP32 * trained / shards, f"4 x {trained:,} trained {divisor}"),
        Part("optimizer", _ADAM * trained / shards, f"8 x {trained:,} trained {divisor}"),
        Part(
            "gathered layers",
            _BF16 * _GATHERED_LAYERS * largest / layout.tensor,
            f"2 x {_GATHERED_LAYERS} x {largest:,} / {layout.tensor} tensor",
        ),
    )


def _megatron(config: Config, shape: ModelShape, layout: Layout) -> tuple[Part, ...]:
    """bfloat16 weights and gradients, split over tensor and pipeline ranks alone.

    The distributed optimizer shards float32 weights and both moments over the data-parallel ranks
    too, 12 bytes a trained parameter; Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO, stage 1).
    """
    megatron = config.policy.megatron_cfg
    trained = trained_parameters(config, shape)
    held = shape.parameters + (trained if lora_rank(config) else 0)
    wide = _FP32 if megatron.distributed_data_parallel_config.grad_reduce_in_fp32 else _BF16
    optimizer = megatron.optimizer
    offloaded = optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0
    states = (1 - offloaded) * (_FP32 + _ADAM)
    sharded = optimizer.use_distributed_optimizer
    ranks = layout.data_parallel * layout.context if sharded else 1
    split = layout.tensor * layout.pipeline
    divisor = f"/ ({layout.tensor} tensor x {layout.pipeline} pipeline)"
    return (
        Part("weights", _BF16 * held / split, f"2 x {held:,} {divisor}"),
        Part("gradients", wide * trained / split, f"{wide} x {trained:,} trained {divisor}"),
        Part(
            "optimizer",
            states * trained / split / ranks,
            f"{states:g} x {trained:,} trained {divisor} / {ranks} ranks",
        ),
    )


def _activations(config: Config, shape: ModelShape, layout: Layout, tokens: int) -> Part:
    """Of one micro batch in all layers of a stage, with as many micro batches as are in flight.

    Korthikanti et al. 2022, arXiv:2205.05198, equation 2 without the attention matrix, which
    flash attention does not keep: 10 + 24/t bytes a token, hidden unit and layer on t tensor
    ranks, and (10 + 24)/t with sequence parallelism. Checkpointing keeps 2 bytes a layer and one
    layer's whole. The first of p stages has p micro batches in flight, so it holds what p stages
    would of one.
    """
    backend = config.policy.backend
    layer_bytes = (10 / layout.tensor if backend.sequence_parallel else 10) + 24 / layout.tensor
    token_bytes = (
        2 * shape.layers + layer_bytes
        if backend.activation_checkpointing
        else layer_bytes * shape.layers
    )
    counted = (
        f"(2 x {shape.layers} layers + {layer_bytes:g})"
        if backend.activation_checkpointing
        else f"{layer_bytes:g} x {shape.layers} layers"
    )
    bytes_ = token_bytes * tokens * shape.hidden
    return Part("activations", bytes_, f"{counted} x {tokens:,} tokens x {shape.hidden:,}")


def run_bytes(config: Config, shape: ModelShape) -> float:
    """Bound the size of a run directory: the checkpoints kept, one being written, the final one.

    Trained weights count, so a LoRA's checkpoints are small.
    """
    keep = config.checkpointing.keep_top_k
    trained = trained_parameters(config, shape)
    return _RUN_BYTES + _CHECKPOINT_BYTES * trained * ((keep or 1) + 2)


def download_bytes(shape: ModelShape) -> float:
    """Size a model in the Hub's cache, in bfloat16 as most are published."""
    return _BF16 * shape.parameters


def converted_bytes(config: Config, shape: ModelShape) -> float:
    """Size the bfloat16 copy in Megatron's form that NeMo-RL makes of a model once."""
    policy = config.policy
    converts = policy.megatron_cfg.enabled and policy.pretrained_checkpoint is None
    return _BF16 * shape.parameters if converts else 0
