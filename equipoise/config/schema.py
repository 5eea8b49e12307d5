"""The keys of the configuration: NeMo-RL's own sections, and `equipoise`, which is ours.

The names are those of NeMo-RL v0.7.0 and of its main branch. A key marked `Local` is one that the
local engine honours; below a marked section every key is. A key without a default is set in
nemo_configs/base.yaml; the defaults here are NeMo-RL's own, and a run's config.yaml leaves out
what nobody set, so that NeMo-RL's own file decides it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from environments.base import TEST_SPLIT
from equipoise.evaluation.statistics import StatisticsSettings


@dataclass(frozen=True, slots=True)
class _HonouredByLocal:
    """The mark of `Local`."""


HONOURED = _HonouredByLocal()

T = TypeVar("T")
Local = Annotated[T, HONOURED]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Tree = dict[str, Any]
#: `package.module` and `package.module.Class`.
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
#: A run's name is a folder's name.
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

#: The word in `policy.model_name` that stands for the task's own small model.
LOCAL_MODEL = "local"


class Section(BaseModel):
    """A mapping of the YAML whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AsyncGrpoConfig(Section):
    """`grpo.async_grpo`."""

    enabled: bool = False
    max_trajectory_age_steps: Positive = 1
    max_generation_failures: Count = 0
    in_flight_weight_updates: bool = False
    recompute_kv_cache_after_weight_updates: bool = False


class GrpoConfig(Section):
    """`grpo`: how much is sampled, for how long, and what becomes of the rewards."""

    num_prompts_per_step: Local[Positive]
    num_generations_per_prompt: Local[Positive]
    max_num_steps: Local[Positive]
    max_num_epochs: Local[Positive]
    normalize_rewards: Local[bool]
    seed: Local[Seed]
    val_period: Count
    use_leave_one_out_baseline: bool = True
    max_rollout_turns: Positive = 1
    val_batch_size: Positive | None = 256
    max_val_samples: Positive | None = 256
    val_num_generations_per_prompt: Positive = 1
    val_start_at: int = -1
    val_at_start: bool = False
    val_at_end: bool = False
    stop_at_validation_metric: str | None = None
    stop_at_validation_threshold: float | None = None
    overlong_filtering: bool = False
    advantage_clip_low: float | None = None
    advantage_clip_high: float | None = None
    use_dynamic_sampling: bool = False
    dynamic_sampling_max_gen_batches: Positive = 10
    batch_multiplier: Annotated[float, Field(gt=0)] = 1.0
    skip_reference_policy_logprobs_calculation: bool = False
    calculate_advantages_on_gpu: bool = False
    seq_logprob_error_threshold: float | None = None
    invalid_tool_call_advantage: float | None = None
    malformed_thinking_advantage: float | None = None
    deduplicate_multimodal_data: bool = False
    debug_payload_metrics: bool = False
    async_grpo: AsyncGrpoConfig | None = None
    adv_estimator: Tree = {}
    reward_shaping: Tree = {}
    reward_scaling: Tree = {}


class LossConfig(Section):
    """`loss_fn`: the clipped policy gradient and its KL term."""

    reference_policy_kl_penalty: Local[NonNegative]
    ratio_clip_min: Local[Fraction]
    ratio_clip_max: Local[NonNegative]
    token_level_loss: Local[bool]
    ratio_clip_c: float | None = None
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    kl_input_clamp_value: float | None = 20.0
    kl_output_clamp_value: float | None = 10.0
    use_kl_in_reward: bool = False
    use_on_policy_kl_approximation: bool = False
    use_importance_sampling_correction: bool = False
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    truncated_importance_sampling_ratio: float | None = None
    truncated_importance_sampling_ratio_min: float | None = None
    sequence_level_importance_ratios: bool = False
    force_on_policy_ratio: bool = False
    disable_ppo_ratio: bool = False
    use_cispo: bool = False
    positive_example_nll_weight: float = 0.0


class TokenizerConfig(Section):
    """`policy.tokenizer`."""

    name: Local[str]
    chat_template: str | None = None
    chat_template_kwargs: Tree | None = None
    use_processor: bool = False
    use_fastokens: bool = False
    audio: Tree = {}
    video: Tree = {}


class LoraConfig(Section):
    """`policy.dtensor_cfg.lora_cfg`."""

    enabled: Local[bool]
    dim: Local[Positive]
    alpha: Local[Positive]
    dropout: Local[Annotated[float, Field(ge=0, lt=1)]]
    target_modules: Local[tuple[str, ...]]
    exclude_modules: Local[tuple[str, ...]]
    match_all_linear: Local[bool]
    dropout_position: Literal["pre", "post"] = "post"
    lora_a_init: str = Field(default="xavier", alias="lora_A_init")
    use_triton: bool = True


class DTensorConfig(Section):
    """`policy.dtensor_cfg`: NeMo-RL's default training backend."""

    lora_cfg: LoraConfig
    activation_checkpointing: Local[bool]
    v2: bool = Field(default=True, alias="_v2")
    enabled: bool = True
    cpu_offload: bool = False
    sequence_parallel: bool = False
    tensor_parallel_size: Positive = 1
    context_parallel_size: Positive = 1
    expert_parallel_size: Positive = 1
    dp_replicate_size: Positive = 1
    custom_parallel_plan: str | None = None
    defer_fsdp_grad_sync: bool = True
    clear_cache_every_n_steps: Positive | None = None
    moe_parallelizer: Tree = {}
    automodel_kwargs: Tree = {}
    env_vars: dict[str, str] | None = None


class MegatronPeftConfig(Section):
    """`policy.megatron_cfg.peft`: LoRA on Megatron; empty `target_modules` are all linear layers.

    Their names are Megatron's: linear_qkv, linear_proj, linear_fc1, linear_fc2.
    """

    enabled: bool = False
    dim: Positive = 8
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    dropout_position: Literal["pre", "post"] = "post"
    lora_a_init_method: str = Field(default="xavier", alias="lora_A_init_method")
    lora_b_init_method: str = Field(default="zero", alias="lora_B_init_method")
    a2a_experimental: bool = False
    lora_dtype: str | None = None


class MegatronOptimizerConfig(TypedDict, total=False):
    """`policy.megatron_cfg.optimizer`; an optimizer other than adam and sgd may take more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    optimizer: str
    lr: Annotated[float, Field(gt=0, lt=1)]
    min_lr: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_eps: Annotated[float, Field(gt=0)]
    sgd_momentum: Annotated[float, Field(ge=0, lt=1)]
    bf16: bool
    fp16: bool
    params_dtype: str
    clip_grad: NonNegative
    use_distributed_optimizer: bool
    use_precision_aware_optimizer: bool
    optimizer_cpu_offload: bool
    optimizer_offload_fraction: Fraction


class MegatronSchedulerConfig(Section):
    """`policy.megatron_cfg.scheduler`: the learning rate over the steps."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = (
        "constant"
    )
    lr_decay_iters: Positive | None = 1000
    lr_warmup_iters: Count = 13
    lr_warmup_init: NonNegative = 5.0e-7
    start_weight_decay: NonNegative = 0.01
    end_weight_decay: NonNegative = 0.01
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"


class MegatronDdpConfig(Section):
    """`policy.megatron_cfg.distributed_data_parallel_config`."""

    grad_reduce_in_fp32: bool = False
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    use_custom_fsdp: bool = False
    data_parallel_sharding_strategy: str = "optim_grads_params"


class MegatronConfig(Section):
    """`policy.megatron_cfg`: the training backend for models that one node cannot hold."""

    enabled: bool = False
    tensor_model_parallel_size: Positive = 1
    pipeline_model_parallel_size: Positive = 1
    context_parallel_size: Positive = 1
    expert_model_parallel_size: Positive = 1
    expert_tensor_parallel_size: Positive = 1
    num_layers_in_first_pipeline_stage: Positive | None = None
    num_layers_in_last_pipeline_stage: Positive | None = None
    sequence_parallel: bool = False
    pipeline_dtype: str | None = None
    activation_checkpointing: bool = False
    recompute_granularity: Literal["full", "selective"] = "full"
    recompute_modules: list[str] | None = None
    empty_unused_memory_level: Annotated[int, Field(ge=0, le=2)] = 1
    optimizer: MegatronOptimizerConfig = {}
    scheduler: MegatronSchedulerConfig = MegatronSchedulerConfig()
    peft: MegatronPeftConfig = MegatronPeftConfig()
    distributed_data_parallel_config: MegatronDdpConfig = MegatronDdpConfig()
    defer_fp32_logits: bool = False
    apply_rope_fusion: bool = True
    bias_activation_fusion: bool = True
    gradient_accumulation_fusion: bool = False
    attention_backend: str | None = None
    force_reconvert_from_hf: bool = False
    clear_memory_caches_before_refit: bool = False
    freeze_moe_router: bool = True
    moe_router_dtype: str | None = "fp64"
    moe_router_load_balancing_type: str = "none"
    moe_router_bias_update_rate: float = 0.0
    moe_router_num_groups: Positive | None = None
    moe_router_group_topk: Positive | None = None
    moe_permute_fusion: bool = True
    moe_grouped_gemm: bool = True
    moe_per_layer_logging: bool = False
    moe_enable_deepep: bool = False
    moe_token_dispatcher_type: str = "alltoall"  # noqa: S105  no password
    moe_shared_expert_overlap: bool = False
    env_vars: dict[str, str] | None = None
    fp8_cfg: Tree = {}
    checkpoint: Tree = {}
    model_overrides: Tree = {}


class BatchTokensConfig(Section):
    """`policy.dynamic_batching` and `policy.sequence_packing`."""

    enabled: bool = False
    train_mb_tokens: Positive | None = None
    logprob_mb_tokens: Positive | None = None
    sequence_length_round: Positive = 64
    algorithm: str = "modified_first_fit_decreasing"
    microbatch_order: Literal["packer", "largest_first"] = "packer"


class VllmConfig(Section):
    """`policy.generation.vllm_cfg`."""

    async_engine: bool = False
    precision: str | None = None
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = "auto"
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    expert_parallel_size: Positive = 1
    gpu_memory_utilization: Share = 0.6
    max_model_len: Positive | None = None
    enforce_eager: bool = False
    load_format: str | None = None
    skip_tokenizer_init: bool = False
    enable_prefix_caching: bool | None = None
    enable_return_routed_experts: bool = False
    use_tqdm: bool = True
    use_deep_gemm: bool = False
    quantization_ignored_layer_kws: list[str] = []
    num_first_layers_in_bf16: Count = 0
    num_last_layers_in_bf16: Count = 0
    enable_vllm_metrics_logger: bool = True
    vllm_metrics_logger_interval: Annotated[float, Field(gt=0)] = 0.5
    logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] = "processed_logprobs"
    cap_max_tokens_to_context: bool = False
    expose_http_server: bool = False
    http_server_serving_chat_kwargs: Tree = {}
    http_refit_api_key_env_var: str | None = None
    http_refit_server_port: Positive | None = None
    zmq_refit_server_port: Positive | None = None
    reset_encoder_cache_after_weight_update: bool = False
    tool_parser_plugin: str | None = None
    reasoning_parser_plugin: str | None = None
    is_mx: bool = False
    video: Tree = {}
    env_vars: dict[str, str] = {}


class GenerationResources(Section):
    """`policy.generation.colocated.resources`: the GPUs that only generate."""

    gpus_per_node: Positive | None = None
    num_nodes: Positive | None = None


class ColocationConfig(Section):
    """`policy.generation.colocated`: whether generation and training share their GPUs."""

    enabled: bool = True
    resources: GenerationResources = GenerationResources()


class GenerationConfig(Section):
    """`policy.generation`: sampling of completions."""

    max_new_tokens: Local[Positive]
    temperature: Local[Annotated[float, Field(gt=0)]]
    top_p: Local[Share]
    top_k: Local[Positive | None]
    backend: Literal["vllm", "sglang", "megatron", "trtllm", "dynamo"] = "vllm"
    use_async_rollouts: bool = False
    vllm_cfg: VllmConfig = VllmConfig()
    vllm_kwargs: Tree = {}
    model_name: str | None = None
    val_temperature: Annotated[float, Field(gt=0)] = 1.0
    val_top_p: Share = 1.0
    val_top_k: Positive | None = None
    stop_token_ids: list[int] | None = None
    stop_strings: list[str] | None = None
    bad_words: list[str] | None = None
    port_range_low: Positive | None = None
    port_range_high: Positive | None = None
    colocated: ColocationConfig = ColocationConfig()
    quant_cfg: str | None = None
    real_quant: bool = False
    real_quant_ignore: list[str] = []
    real_quant_export_cpu_offload: bool = True
    refit_transport: str | None = None
    refit_cfg: Tree | None = None
    mcore_generation_config: Tree = {}
    sglang_cfg: Tree = {}
    sglang_kwargs: Tree = {}
    trtllm_cfg: Tree = {}
    dynamo_cfg: Tree = {}


class OptimizerArguments(TypedDict, total=False):
    """`policy.optimizer.kwargs`; a class other than AdamW may take more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    lr: Annotated[float, Field(gt=0, lt=1)]
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    eps: Annotated[float, Field(gt=0)]
    weight_decay: NonNegative


def _refuse_no_optimizer(value: Any) -> Any:
    if value is None:
        raise ValueError(
            "is where Megatron's optimizer takes its learning rate from too; leave the key out "
            "instead of setting it to null"
        )
    return value


class OptimizerConfig(Section):
    """`policy.optimizer`: a class by its full name, and what it is called with."""

    name: ClassName
    kwargs: OptimizerArguments


class SchedulerEntry(TypedDict, total=False):
    """One scheduler of the chain, or the steps at which the next one takes over."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    name: ClassName
    kwargs: Tree
    milestones: list[Count]


class PolicyConfig(Section):
    """`policy`: the model, its optimizer, and how it samples."""

    model_name: Local[Annotated[str, Field(min_length=1)]]
    tokenizer: TokenizerConfig
    precision: Local[Literal["float32", "bfloat16", "float16"]]
    train_global_batch_size: Local[Positive]
    train_micro_batch_size: Local[Positive]
    max_total_sequence_length: Local[Positive]
    max_grad_norm: Local[Annotated[float, Field(gt=0)] | None]
    optimizer: Local[Annotated[OptimizerConfig, BeforeValidator(_refuse_no_optimizer)]]
    #: Null keeps the learning rate constant.
    scheduler: Local[list[SchedulerEntry] | None]
    generation: GenerationConfig
    dtensor_cfg: DTensorConfig
    logprob_batch_size: Positive | None = None
    logprob_chunk_size: Positive | None = None
    generation_batch_size: Positive | None = None
    make_sequence_length_divisible_by: Positive = 1
    offload_optimizer_for_logprob: bool = False
    refit_buffer_size_gb: Annotated[float, Field(gt=0)] | None = None
    dynamic_batching: BatchTokensConfig = BatchTokensConfig()
    sequence_packing: BatchTokensConfig = BatchTokensConfig()
    megatron_cfg: MegatronConfig = MegatronConfig()
    hf_config_overrides: Tree = {}
    pretrained_checkpoint: Tree = {}
    reward_model_cfg: Tree = {}
    router_replay: Tree = {}
    draft: Tree = {}
    quant_cfg: str | None = None
    quant_calib_data: str | None = None
    quant_calib_size: Positive | None = None
    quant_batch_size: Positive | None = None
    quant_sequence_length: Positive | None = None
    disable_modelopt_layer_spec: bool = False
    is_vlm: bool = False


class DataConfig(Section):
    """`data`: NeMo-RL's data loader. What the prompts are stands in `equipoise.data`."""

    shuffle: bool
    max_input_seq_length: Positive | None = None
    num_workers: Count = 1
    add_bos: bool = False
    add_eos: bool = False
    add_generation_prompt: bool = False
    add_system_prompt: bool = False
    use_multiple_dataloader: bool = False
    num_prompts_per_dataloader: Positive | None = None
    custom_dataloader: str | None = None
    train: Tree | list[Tree] = {}
    validation: Tree | list[Tree] | None = None
    default: Tree | None = None


class CheckpointingConfig(Section):
    """`checkpointing`: what is kept while training goes on."""

    enabled: Local[bool]
    save_period: Local[Positive]
    keep_top_k: Local[Positive | None]
    metric_name: str | None
    higher_is_better: bool
    checkpoint_dir: str | None = None
    checkpoint_must_save_by: str | None = None
    save_optimizer: bool = True
    save_consolidated: bool = False
    model_save_format: Literal["safetensors", "torch_save"] | None = None
    model_cache_dir: str | None = None
    model_repo_id: str | None = None
    is_peft: bool = False
    is_async: bool = False
    ft_keep_latest_k: Positive | None = None
    ft_save_period: Positive | None = None
    peft_config: Tree = {}
    pretrained_checkpoint: Tree = {}


class WandbConfig(Section):
    """`logger.wandb`; without a name the run's own name is taken."""

    project: str
    entity: str | None = None
    name: str | None = None
    log_nemo_gym_full_result_tables: bool = False


class LoggerConfig(Section):
    """`logger`: what is told to whom while training goes on."""

    wandb_enabled: Local[bool]
    wandb: Local[WandbConfig]
    log_dir: str | None = None
    num_val_samples_to_print: Count = 0
    monitor_gpus: bool = True
    tensorboard_enabled: bool = False
    mlflow_enabled: bool = False
    swanlab_enabled: bool = False
    tensorboard: Tree = {}
    mlflow: Tree = {}
    swanlab: Tree = {}
    gpu_monitoring: Tree = {}


class ClusterConfig(Section):
    """`cluster`: the machines. The local engine takes one node with one GPU or none."""

    gpus_per_node: Local[Positive]
    num_nodes: Local[Positive]
    segment_size: Positive | None = None
    master_port_range_low: Positive | None = None
    master_port_range_high: Positive | None = None


class DataSource(BaseModel):
    """`equipoise.data`; the other keys are those of the module's `PromptSettings`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    module: ModuleName = Field(description="what makes the prompts, a module of data_prep")
    data_path: str | None = Field(default=None, description="a prompts.jsonl to use in its place")


class EvaluationConfig(Section):
    """`equipoise.evaluation`: how the frozen and the trained model are compared."""

    split: str = TEST_SPLIT
    generations: Positive = Field(default=8, description="completions per prompt")
    batch_size: Positive = Field(default=512, description="completions sampled at once")
    bootstrap_draws: Positive = 10_000
    permutations: Positive = 2_000
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    seed: Seed = 0

    @property
    def statistics(self) -> StatisticsSettings:
        """The part that the statistics need."""
        return StatisticsSettings(
            self.bootstrap_draws, self.permutations, self.confidence, self.seed
        )


class ActorConfig(Section):
    """`equipoise.environment_actor`: where NeMo-RL's Ray runs what gives reward."""

    node: Literal["driver", "any"] = Field(
        default="driver",
        description="any lets Ray choose by resources; what the actor reads must be shared then",
    )
    num_gpus: NonNegative = Field(
        default=0.0, description="GPUs for models in the actor, besides those of cluster"
    )
    resources: dict[str, float] = Field(
        default={}, description="custom resources of Ray that its node must have"
    )


class TrackingConfig(Section):
    """`equipoise.tracking`: what a tracker is told besides figures and the configuration."""

    examples: bool | None = Field(
        default=None, description="of rollouts with their prompts; null: of invented prompts alone"
    )


class EquipoiseConfig(Section):
    """`equipoise`: what NeMo-RL has no key for."""

    task: str = Field(description="the recipe's task; names tasks/<task>.yaml")
    environment: ClassName = Field(description="class that gives reward")
    engine: Literal["auto", "local", "nemo_rl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="local engine only")
    threads: Positive | None = Field(
        default=None, description="CPU threads; null for torch's choice"
    )
    gpu_memory_gb: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="memory of one GPU in 10^9 bytes; null leaves memory unchecked"
    )
    output_dir: str = "results"
    run_name: RunName | None = Field(
        default=None, description="folder below output_dir/task; null: the model and the time"
    )
    cache_dir: str = "~/.cache/equipoise"
    max_failure_rate: Fraction = Field(
        default=0.1, description="share of unscored rollouts that stops"
    )
    failure_window: Positive = Field(default=5, description="steps over which that share is taken")
    stop_without_signal: bool = Field(
        default=True, description="before training, where all generations of each prompt tie"
    )
    data: DataSource
    local_model: Tree = Field(
        default={}, description="keys of the data module's LocalModelSettings"
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    environment_actor: ActorConfig = ActorConfig()
    tracking: TrackingConfig = TrackingConfig()


class Config(Section):
    """A whole configuration; `env.<name>` holds the environment's own settings."""

    grpo: GrpoConfig
    loss_fn: LossConfig
    policy: PolicyConfig
    data: DataConfig
    env: Local[dict[str, Tree]] = {}
    checkpointing: CheckpointingConfig
    logger: LoggerConfig
    cluster: ClusterConfig
    equipoise: Local[EquipoiseConfig]
