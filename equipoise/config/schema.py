"""The keys that Equipoise reads: of NeMo-RL's own sections, and of `equipoise`, which is ours.

`equipoise.config.nemo_rl.schema` adds all other keys of NeMo-RL. A key marked `Local` is one that
the local engine honours; below a marked section every key is. A key without a default is set in
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
#: A folder's name has 255 bytes; what is written beside a run has a longer one than the run.
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]

#: GPUs whose peaks `equipoise.config.step_time` knows.
GpuName = Literal["A100-40GB", "A100-80GB", "L40S", "H100", "H200", "B200", "GB200"]

#: Where what can be made again is kept unless `equipoise.cache_dir` says otherwise.
CACHE_DIR = "~/.cache/equipoise"
#: The word in `policy.model_name` for the task's own small model.
LOCAL_MODEL = "local"


class Section(BaseModel):
    """A mapping of the YAML; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AsyncGrpoConfig(Section):
    """`grpo.async_grpo`."""

    enabled: bool = False


class GrpoConfig(Section):
    """`grpo`: how much is sampled, for how long, and what becomes of the rewards."""

    num_prompts_per_step: Local[Positive]
    num_generations_per_prompt: Local[Positive]
    max_num_steps: Local[Count]  # 0: the first stage alone
    max_num_epochs: Local[Positive]
    normalize_rewards: Local[bool]
    seed: Local[Seed]
    val_period: Count
    val_batch_size: Positive | None = 256
    max_val_samples: Positive | None = 256
    val_num_generations_per_prompt: Positive = 1
    use_dynamic_sampling: bool = False
    batch_multiplier: Annotated[float, Field(gt=0)] = 1.0
    skip_reference_policy_logprobs_calculation: bool = False
    async_grpo: AsyncGrpoConfig | None = None


class LossConfig(Section):
    """`loss_fn`: the clipped policy gradient and its KL term."""

    use_importance_sampling_correction: bool = False
    reference_policy_kl_penalty: Local[NonNegative]
    ratio_clip_min: Local[Fraction]
    ratio_clip_max: Local[NonNegative]
    token_level_loss: Local[bool]
    force_on_policy_ratio: bool = False


class TokenizerConfig(Section):
    """`policy.tokenizer`."""

    name: Local[str]
    chat_template: Local[str | None] = None
    chat_template_kwargs: Local[Tree | None] = None

    @property
    def brings_template(self) -> bool:
        """Whether another template than the tokenizer's own is set; null is one to NeMo-RL."""
        is_set = "chat_template" in self.model_fields_set
        return is_set and (self.chat_template or "").lower() != "default"


class LoraConfig(Section):
    """`policy.dtensor_cfg.lora_cfg`."""

    enabled: Local[bool]
    dim: Local[Positive]
    alpha: Local[Positive]
    dropout: Local[Annotated[float, Field(ge=0, lt=1)]]
    target_modules: Local[tuple[str, ...]]
    exclude_modules: Local[tuple[str, ...]]
    match_all_linear: Local[bool]
    use_triton: bool = True


class DTensorConfig(Section):
    """`policy.dtensor_cfg`: NeMo-RL's default training backend."""

    lora_cfg: LoraConfig
    activation_checkpointing: Local[bool]
    v2: bool = Field(default=True, alias="_v2")
    enabled: bool = True
    sequence_parallel: bool = False
    tensor_parallel_size: Positive = 1
    context_parallel_size: Positive = 1
    dp_replicate_size: Positive = 1


class MegatronPeftConfig(Section):
    """`policy.megatron_cfg.peft`: LoRA on Megatron; empty `target_modules` are all linear layers.

    Their names are Megatron's: linear_qkv, linear_proj, linear_fc1, linear_fc2.
    """

    enabled: bool
    dim: Positive
    alpha: Positive
    target_modules: tuple[str, ...]
    exclude_modules: tuple[str, ...] = ()


class MegatronOptimizerConfig(Section):
    """`policy.megatron_cfg.optimizer`; an optimizer other than adam and sgd may take more."""

    model_config = ConfigDict(extra="allow")

    lr: Annotated[float, Field(gt=0, lt=1)]
    min_lr: Annotated[float, Field(ge=0, lt=1)]
    clip_grad: NonNegative | None = None
    use_distributed_optimizer: bool = True
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: Fraction = 0.0


class MegatronSchedulerConfig(Section):
    """`policy.megatron_cfg.scheduler`: the learning rate over the steps."""

    lr_warmup_init: NonNegative


class MegatronDdpConfig(Section):
    """`policy.megatron_cfg.distributed_data_parallel_config`."""

    grad_reduce_in_fp32: bool = False


class MegatronConfig(Section):
    """`policy.megatron_cfg`: the training backend for models that one node cannot hold."""

    enabled: bool
    optimizer: MegatronOptimizerConfig
    scheduler: MegatronSchedulerConfig
    peft: MegatronPeftConfig
    tensor_model_parallel_size: Positive = 1
    pipeline_model_parallel_size: Positive = 1
    context_parallel_size: Positive = 1
    num_layers_in_first_pipeline_stage: Positive | None = None
    num_layers_in_last_pipeline_stage: Positive | None = None
    sequence_parallel: bool = False
    activation_checkpointing: bool = False
    distributed_data_parallel_config: MegatronDdpConfig = MegatronDdpConfig()
    defer_fp32_logits: bool = False


class DynamicBatchingConfig(Section):
    """`policy.dynamic_batching`: micro batches of similar length."""

    enabled: bool = False


class SequencePackingConfig(Section):
    """`policy.sequence_packing`: several sequences in one row."""

    enabled: bool


class VllmConfig(Section):
    """`policy.generation.vllm_cfg`."""

    async_engine: bool = False
    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    gpu_memory_utilization: Share = 0.6


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
    colocated: ColocationConfig = ColocationConfig()


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


class PretrainedCheckpoint(Section):
    """`policy.pretrained_checkpoint`: weights of Megatron's that training begins with.

    They take the place of those of `policy.model_name`, which still names the architecture and the
    tokenizer. `equipoise convert --to megatron` makes such a folder.
    """

    path: Annotated[str, Field(min_length=1)]
    format: Literal["megatron_bridge", "megatron_lm"]


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
    megatron_cfg: MegatronConfig
    sequence_packing: SequencePackingConfig
    dynamic_batching: DynamicBatchingConfig = DynamicBatchingConfig()
    logprob_batch_size: Positive | None = None
    logprob_chunk_size: Positive | None = None
    make_sequence_length_divisible_by: Positive = 1
    pretrained_checkpoint: PretrainedCheckpoint | None = None


class DataConfig(Section):
    """`data`: NeMo-RL's data loader. What the prompts are is said in `equipoise.data`."""

    shuffle: bool
    max_input_seq_length: Positive | None = None
    # Prompts are in memory. A signal to all processes, such as Ctrl-C, would end workers at once,
    # and training with them.
    num_workers: Count = 0


class CheckpointingConfig(Section):
    """`checkpointing`: what is kept while training goes on."""

    enabled: Local[bool]
    save_period: Local[Positive]
    keep_top_k: Local[Positive | None]
    metric_name: str | None


class WandbConfig(Section):
    """`logger.wandb`; without a name the run's own name is taken."""

    project: str
    entity: str | None = None
    name: str | None = None


class LoggerConfig(Section):
    """`logger`: what is told to whom while training goes on."""

    wandb_enabled: Local[bool]
    wandb: Local[WandbConfig]


class ClusterConfig(Section):
    """`cluster`: the machines. The local engine takes one node with one GPU or none."""

    gpus_per_node: Local[Positive]
    num_nodes: Local[Positive]


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


class ProbeConfig(Section):
    """`equipoise.probe`: the search for what the reward pays for nothing."""

    prompts: Annotated[int, Field(ge=0)] = Field(
        default=32, description="training prompts on which a constant reply is searched; 0: none"
    )
    constants: Positive = Field(default=16, description="replies of the model that are tried")
    rounds: Annotated[int, Field(ge=0)] = Field(
        default=2, description="sentences that may be added to the best of them"
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


class TrainingRolloutsConfig(Section):
    """`equipoise.training_rollouts`: what is kept of the rollouts of training, for its readers."""

    sets: Annotated[int, Field(ge=0)] = Field(
        default=1,
        description="counterfactual sets, or prompts, of a step with all generations; 0: none",
    )
    steps: Positive = Field(default=200, description="steps at most, at even distances")


class ColdStartConfig(Section):
    """`equipoise.cold_start`: what `equipoise cold-start` shows a model before its training."""

    replies: str | None = Field(
        default=None,
        description="a file of replies to imitate, or a run whose reference is dealt out; null: "
        "the data module's own",
    )
    examples: Positive = Field(default=2000, description="replies shown, a file's repeatedly")
    batch_size: Positive = 16
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5.0e-4

    @property
    def steps(self) -> int:
        """Each example is shown once."""
        return -(-self.examples // self.batch_size)


class FirstStageConfig(Section):
    """`equipoise.first_stage`: supervised training on replies of the frozen model, before GRPO.

    For a task whose environment deals them out (`DealsReference`).
    """

    passes: Count = Field(default=0, description="over the training prompts; 0: GRPO alone")
    batch_size: Positive = 64
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5.0e-4


class TrackingConfig(Section):
    """`equipoise.tracking`: what a tracker is told besides figures and the configuration."""

    examples: bool | None = Field(
        default=None, description="of rollouts with their prompts; null: of invented prompts alone"
    )


class DataPlaneConfig(Section):
    """`data_plane`: batches by way of a TransferQueue, with a trainer of its own."""

    enabled: bool = False


class DistillationConfig(Section):
    """`on_policy_distillation`: advantages from a teacher's log-probabilities."""

    enabled: bool = False


class EquipoiseConfig(Section):
    """`equipoise`: what NeMo-RL has no key for."""

    task: str = Field(description="the recipe's task; names tasks/<task>.yaml")
    environment: ClassName = Field(description="class that gives reward")
    engine: Literal["auto", "local", "nemo_rl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="local engine only")
    load_in_4bit: bool = Field(
        default=False, description="local engine only: the base below a LoRA in 4 bits (NF4)"
    )
    threads: Positive | None = Field(
        default=None, description="CPU threads; null for torch's choice"
    )
    gpu_memory_gb: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="memory of one GPU in 10^9 bytes; null leaves memory unchecked"
    )
    gpu: GpuName | None = Field(
        default=None, description="which GPUs they are; null leaves a step's time unestimated"
    )
    output_dir: str = "results"
    run_name: RunName | None = Field(
        default=None, description="folder below output_dir/task; null: the model and the time"
    )
    cache_dir: str = CACHE_DIR
    max_failure_rate: Fraction = Field(
        default=0.1, description="share of unscored rollouts that stops"
    )
    failure_window: Positive = Field(default=5, description="steps over which that share is taken")
    max_token_mult_prob_error: Annotated[float, Field(ge=1)] = Field(
        default=1.1,
        description="NeMo-RL only: its median over as many steps stops a run in which training and "
        "generation give the same tokens other probabilities",
    )
    stop_without_signal: bool = Field(
        default=True, description="before training, where all generations of each prompt tie"
    )
    export: Literal["adapter", "hf", "none"] = Field(
        default="adapter",
        description="NeMo-RL's final_checkpoint: a LoRA as PEFT's or merged into its base; or none",
    )
    data: DataSource
    local_model: Tree = Field(
        default={}, description="keys of the data module's LocalModelSettings"
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    probe: ProbeConfig = ProbeConfig()
    environment_actor: ActorConfig = ActorConfig()
    cold_start: ColdStartConfig = ColdStartConfig()
    first_stage: FirstStageConfig = FirstStageConfig()
    tracking: TrackingConfig = TrackingConfig()
    training_rollouts: TrainingRolloutsConfig = TrainingRolloutsConfig()


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
    data_plane: DataPlaneConfig | None = None
    on_policy_distillation: DistillationConfig | None = None
    equipoise: Local[EquipoiseConfig]
