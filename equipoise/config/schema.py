"""The keys that Equipoise reads: of NeMo-RL's own sections, and of `equipoise`, which is ours.

`equipoise.config.validate.whole_schema` adds all other keys of NeMo-RL. A key marked `Local` is one
that the local engine honours; below a marked section every key is. A key without a default is set
in nemo_configs/base.yaml; the defaults here are NeMo-RL's own, and a run's config.yaml leaves out
what no user set, so that NeMo-RL's own file decides it.
"""

from typing import (
    Annotated,
    Any,
    Literal,
    Self,  # pydantic refuses typing's TypedDict before 3.12
    TypeVar,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from environments.base import TEST_SPLIT
from equipoise.files.disk import CACHE_DIR

T = TypeVar("T")
#: The mark of `Local`.
HONOURED = "honoured by the local engine"
Local = Annotated[T, HONOURED]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Tree = dict[str, Any]
Engine = Literal["local", "nemo_rl"]
CLASS_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
#: `package.module.Class`.
ClassName = Annotated[str, Field(pattern=CLASS_NAME)]
#: A folder's name, which has 255 bytes; what is written beside a run has a longer one than the run.
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]

#: The word in `policy.model_name` for the task's own small model.
LOCAL_MODEL = "local"


def _refused(reason: str) -> AfterValidator:
    """Refuse a feature of NeMo-RL's that a run cannot have."""

    def check(value: T) -> T:
        if value:
            raise ValueError(reason)
        return value

    return AfterValidator(check)


class Section(BaseModel):
    """A mapping of the YAML; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AsyncGrpoConfig(Section):
    """`grpo.async_grpo`: generation while training goes on."""

    enabled: bool = False  #: generate with weights that are some steps old


class GrpoConfig(Section):
    """`grpo`: how much is sampled, for how long, and what becomes of the rewards."""

    num_prompts_per_step: Local[Positive]  #: prompts of one update
    #: completions of each prompt, which are compared with each other
    num_generations_per_prompt: Local[Annotated[int, Field(ge=2)]]
    max_num_steps: Local[Positive]  #: updates at most
    max_num_epochs: Local[Positive]  #: passes over the training prompts at most
    normalize_rewards: Local[bool]  #: divide by the standard deviation of a prompt's generations
    seed: Local[Seed]  #: of the prompts' order and of sampling
    val_period: Count  #: steps between two validations; 0: none
    val_batch_size: Positive | None = 256  #: prompts validated at once
    max_val_samples: Positive | None = 256  #: prompts of a validation at most
    val_num_generations_per_prompt: Positive = 1  #: completions of each prompt of a validation
    use_dynamic_sampling: bool = False  #: draw anew for prompts whose generations all tie
    #: no pass of the reference; without a KL term alone
    skip_reference_policy_logprobs_calculation: bool = False
    async_grpo: AsyncGrpoConfig | None = None
    #: refused: no final evaluation would follow
    stop_at_validation_metric: Annotated[
        str | None,
        _refused(
            "a run that stops there has no final evaluation, which follows the last step; set it "
            "to null, and choose a checkpoint by checkpointing.metric_name"
        ),
    ] = None

    @model_validator(mode="after")
    def _validation_has_samples(self) -> Self:
        samples, batch = self.max_val_samples, self.val_batch_size
        if samples is not None and batch is not None and samples < batch:
            raise ValueError(
                f"max_val_samples {samples} is less than one val_batch_size of {batch}, so nothing "
                "would be validated"
            )
        return self

    @property
    def rollouts_per_step(self) -> int:
        return self.num_prompts_per_step * self.num_generations_per_prompt

    @property
    def is_asynchronous(self) -> bool:
        return self.async_grpo is not None and self.async_grpo.enabled


class LossConfig(Section):
    """`loss_fn`: the clipped policy gradient and its KL term."""

    reference_policy_kl_penalty: Local[NonNegative]  #: weight of the KL term
    ratio_clip_min: Local[Fraction]  #: how far below 1 a ratio of probabilities counts
    ratio_clip_max: Local[NonNegative]  #: how far above 1 it counts
    token_level_loss: Local[bool]  #: mean over all tokens; false: over completions


class TokenizerConfig(Section):
    """`policy.tokenizer`: the tokenizer, and the template of its chats."""

    name: Local[str]  #: on the hub, or a folder
    #: a file *.jinja, a text, or default; null, if set: the messages' texts alone
    chat_template: Local[str | None] = None
    chat_template_kwargs: Local[Tree | None] = None  #: arguments of the template

    @property
    def brings_template(self) -> bool:
        """Whether another template than the tokenizer's own is set; null is one to NeMo-RL."""
        is_set = "chat_template" in self.model_fields_set
        return is_set and (self.chat_template or "").lower() != "default"


class LoraConfig(Section):
    """`policy.dtensor_cfg.lora_cfg`: an adapter in place of all weights."""

    enabled: Local[bool]  #: train an adapter in place of all weights
    dim: Local[Positive]  #: rank of the adapter
    alpha: Local[Positive]  #: the adapter's scale is alpha / dim
    dropout: Local[Annotated[float, Field(ge=0, lt=1)]]  #: dropout of the adapter's input
    target_modules: Local[tuple[str, ...]]  #: layers to adapt: names, or patterns with *
    exclude_modules: Local[tuple[str, ...]]  #: adapt all linear layers but these
    match_all_linear: Local[bool]  #: adapt all linear layers
    use_triton: bool = True  #: NeMo-RL's kernels; not with tensor parallelism

    @model_validator(mode="after")
    def _names_its_layers_once(self) -> Self:
        named = [self.match_all_linear, bool(self.target_modules), bool(self.exclude_modules)]
        if self.enabled and sum(named) != 1:
            raise ValueError(
                "LoRA needs exactly one of target_modules, exclude_modules, match_all_linear, and "
                f"{sum(named)} are set: name the layers to adapt, with exclude_modules=[], or "
                "those to leave out, [lm_head], with target_modules=[]"
            )
        return self


class DTensorConfig(Section):
    """`policy.dtensor_cfg`: NeMo-RL's default training backend."""

    lora_cfg: LoraConfig
    activation_checkpointing: Local[bool]  #: compute activations twice, to save memory
    #: NeMo-RL's second worker; after v0.7.0 it is the only one, and later the key will go
    v2: Literal[True] = Field(default=True, alias="_v2")
    enabled: bool = True  #: train with this backend
    tensor_parallel_size: Positive = 1  #: GPUs that share each layer
    context_parallel_size: Positive = 1  #: GPUs that share each sequence
    dp_replicate_size: Positive = 1  #: copies of the sharded model


class MegatronPeftConfig(Section):
    """`policy.megatron_cfg.peft`: LoRA on Megatron; empty `target_modules` are all linear layers.

    Their names are Megatron's: linear_qkv, linear_proj, linear_fc1, linear_fc2.
    """

    enabled: bool  #: train an adapter in place of all weights
    dim: Positive  #: rank of the adapter
    alpha: Positive  #: the adapter's scale is alpha / dim
    target_modules: tuple[str, ...]  #: layers to adapt
    exclude_modules: tuple[str, ...] = ()  #: layers to leave out


class MegatronOptimizerConfig(Section):
    """`policy.megatron_cfg.optimizer`; an optimizer other than adam and sgd may take more."""

    model_config = ConfigDict(extra="allow")

    lr: Annotated[float, Field(gt=0, lt=1)]  #: learning rate
    min_lr: Annotated[float, Field(ge=0, lt=1)]  #: the least that the schedule comes to
    clip_grad: NonNegative | None = None  #: largest norm of a gradient; 0: any
    use_distributed_optimizer: bool = True  #: shard it over data-parallel ranks
    optimizer_cpu_offload: bool = False  #: keep the optimizer's state in the CPU's memory
    optimizer_offload_fraction: Fraction = 0.0  #: how much of its state; v0.7.0 knows 1 alone


class MegatronDdpConfig(Section):
    """`policy.megatron_cfg.distributed_data_parallel_config`: how gradients are summed."""

    grad_reduce_in_fp32: bool = False  #: sum gradients in float32


class MegatronConfig(Section):
    """`policy.megatron_cfg`: the training backend for models that one node cannot hold."""

    enabled: bool  #: train with this backend
    optimizer: MegatronOptimizerConfig
    peft: MegatronPeftConfig
    tensor_model_parallel_size: Positive = 1  #: GPUs that share each layer
    pipeline_model_parallel_size: Positive = 1  #: stages, each with a part of the layers
    context_parallel_size: Positive = 1  #: GPUs that share each sequence
    distributed_data_parallel_config: MegatronDdpConfig = MegatronDdpConfig()


class DynamicBatchingConfig(Section):
    """`policy.dynamic_batching`: micro batches of similar length."""

    enabled: bool = False  #: make them


class SequencePackingConfig(Section):
    """`policy.sequence_packing`: several sequences in one row."""

    enabled: bool  #: pack them


class VllmConfig(Section):
    """`policy.generation.vllm_cfg`: how vLLM runs."""

    async_engine: bool = False  #: vLLM's asynchronous engine
    tensor_parallel_size: Positive = 1  #: GPUs that share each layer
    pipeline_parallel_size: Positive = 1  #: stages, each with a part of the layers
    gpu_memory_utilization: Share = 0.6  #: share of a GPU's memory that vLLM takes
    max_model_len: Positive | None = None  #: tokens of a sequence; null: those of the policy


class GenerationResources(Section):
    """`policy.generation.colocated.resources`: the GPUs that only generate."""

    gpus_per_node: Positive | None = None  #: of a single node; null: all
    num_nodes: Positive | None = None  #: of several nodes, whole ones; null: 1


class ColocationConfig(Section):
    """`policy.generation.colocated`: whether generation and training share their GPUs."""

    enabled: bool = True  #: share them
    resources: GenerationResources = GenerationResources()


class GenerationConfig(Section):
    """`policy.generation`: sampling of completions."""

    max_new_tokens: Local[Positive]  #: tokens of a completion at most
    temperature: Local[Annotated[float, Field(gt=0)]]  #: of the sampling
    top_p: Local[Share]  #: sample from the likeliest tokens with this probability
    top_k: Local[Positive | None]  #: sample from so many likeliest tokens; null: all
    #: the engine that generates on NeMo-RL; its others hand single samples to the environment
    backend: Literal["vllm", "sglang"] = "vllm"
    #: refused: rewards need whole groups
    use_async_rollouts: Annotated[
        bool,
        _refused(
            "asynchronous rollouts reach the environment one by one, and rewards are of whole "
            "groups; take policy.generation.vllm_cfg.async_engine=true"
        ),
    ] = False
    vllm_cfg: VllmConfig = VllmConfig()
    colocated: ColocationConfig = ColocationConfig()


#: What `torch.optim.AdamW` can be called with besides the parameters.
_ADAMW_ARGUMENTS = (
    *("lr", "betas", "eps", "weight_decay", "amsgrad"),
    *("maximize", "foreach", "capturable", "differentiable", "fused"),
)


class OptimizerArguments(TypedDict, total=False):
    """`policy.optimizer.kwargs`; a class other than AdamW may take more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    lr: Annotated[float, Field(gt=0, lt=1)]  #: learning rate
    #: decay of both running means
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    eps: Annotated[float, Field(gt=0)]  #: added to the denominator
    weight_decay: NonNegative  #: decoupled from the gradient


class OptimizerConfig(Section):
    """`policy.optimizer`: a class by its full name, and what it is called with."""

    name: ClassName  #: a class, such as torch.optim.AdamW
    kwargs: OptimizerArguments

    @model_validator(mode="after")
    def _takes_its_arguments(self) -> Self:
        extra = sorted(set(self.kwargs).difference(_ADAMW_ARGUMENTS))
        if self.name == "torch.optim.AdamW" and extra:
            raise ValueError(
                f"{self.name} has no argument {extra[0]}; it has {', '.join(_ADAMW_ARGUMENTS)}"
            )
        return self


class SchedulerEntry(TypedDict, total=False):
    """One scheduler of the chain, or the steps at which the next one takes over."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    name: ClassName  #: a class of torch.optim.lr_scheduler
    kwargs: Tree  #: arguments of the class
    milestones: list[Count]  #: steps at which the next one takes over


class PretrainedCheckpoint(Section):
    """`policy.pretrained_checkpoint`: weights of Megatron's that training begins with.

    They take the place of those of `policy.model_name`, which still names the architecture and the
    tokenizer. `equipoise convert --to megatron` makes such a folder.
    """

    path: Annotated[str, Field(min_length=1)]  #: a folder
    format: Literal["megatron_bridge", "megatron_lm"]  #: which program wrote it


class PolicyConfig(Section):
    """`policy`: the model, its optimizer, and how it samples."""

    #: on the hub, a folder, or one of the words local and smollm2
    model_name: Local[Annotated[str, Field(min_length=1)]]
    tokenizer: TokenizerConfig
    precision: Local[Literal["float32", "bfloat16"]]  #: of weights and arithmetic
    train_global_batch_size: Local[Positive]  #: completions of one update
    train_micro_batch_size: Local[Positive]  #: completions in one pass of a GPU
    max_total_sequence_length: Local[Positive]  #: tokens of prompt and completion
    #: a larger gradient is scaled down to it; null: none is
    max_grad_norm: Local[Annotated[float, Field(gt=0)] | None]
    optimizer: Local[OptimizerConfig]
    #: Null keeps the learning rate constant.
    scheduler: Local[list[SchedulerEntry] | None]
    generation: GenerationConfig
    dtensor_cfg: DTensorConfig
    megatron_cfg: MegatronConfig
    sequence_packing: SequencePackingConfig
    dynamic_batching: DynamicBatchingConfig = DynamicBatchingConfig()
    make_sequence_length_divisible_by: Positive = 1  #: sequences are padded to a multiple
    pretrained_checkpoint: PretrainedCheckpoint | None = None

    @property
    def converts(self) -> bool:
        """Whether NeMo-RL makes Megatron's form of the model, where it has none."""
        return self.megatron_cfg.enabled and self.pretrained_checkpoint is None

    @model_validator(mode="after")
    def _schedulers_form_a_chain(self) -> Self:
        entries = self.scheduler or []
        chain = [entry for entry in entries if "name" in entry]
        steps = [entry["milestones"] for entry in entries if "milestones" in entry]
        milestones = steps[0] if steps else []
        if entries and (
            len(chain) + len(steps) != len(entries)
            or len(milestones) != len(chain) - 1
            or sorted(set(milestones)) != milestones
        ):
            raise ValueError(
                f"scheduler: {len(chain)} schedulers need one list of {max(0, len(chain) - 1)} "
                "increasing milestones, each entry being a scheduler with its name, or that list"
            )
        return self

    @model_validator(mode="after")
    def _sequences_have_room(self) -> Self:
        total, reply = self.max_total_sequence_length, self.generation.max_new_tokens
        if reply >= total:
            raise ValueError(
                f"generation.max_new_tokens {reply} leaves no room for the prompt in "
                f"max_total_sequence_length {total}, which counts both"
            )
        length = self.generation.vllm_cfg.max_model_len
        if length is not None and length < total:
            raise ValueError(
                f"generation.vllm_cfg.max_model_len: vLLM would end every prompt and reply at "
                f"{length} tokens of {total}; leave it out"
            )
        return self

    @property
    def batches_by_length(self) -> bool:
        """Whether rollouts are packed, or batched with those of a similar length."""
        return self.sequence_packing.enabled or self.dynamic_batching.enabled


class DataConfig(Section):
    """`data`: NeMo-RL's data loader. What the prompts are is said in `equipoise.data`."""

    shuffle: bool  #: false: Equipoise shuffles whole sets
    #: tokens of a prompt at most; null: what a completion leaves
    max_input_seq_length: Positive | None = None
    #: Prompts are in memory. A signal to all processes, such as Ctrl-C, would end workers at once,
    #: and training with them.
    num_workers: Count = 0


class CheckpointingConfig(Section):
    """`checkpointing`: what is kept while training goes on."""

    enabled: Local[bool]  #: write checkpoints; NeMo-RL needs them
    save_optimizer: bool = True  #: without it a resumed run has a new optimizer
    save_period: Local[Positive]  #: steps between two checkpoints
    keep_top_k: Local[Positive | None]  #: how many are kept; null: all
    #: ranks them, such as val:accuracy; null: the last are kept
    metric_name: Annotated[str, Field(pattern=r"^(val|train):.+")] | None


class WandbConfig(Section):
    """`logger.wandb`; without a name the run's own name is taken."""

    project: str  #: the runs of this project
    entity: str | None = None  #: null: the account's own
    name: str | None = None  #: null: the run's name


class LoggerConfig(Section):
    """`logger`: the trackers that training reports to."""

    wandb_enabled: Local[bool]  #: online with a key, offline without one
    wandb: Local[WandbConfig]
    #: local engine only: TRL's own trackers of each step; with wandb, in the run that is ours
    report_to: Local[list[Literal["tensorboard", "trackio", "wandb"]]] = []


class ClusterConfig(Section):
    """`cluster`: the machines. The local engine takes one node with one GPU or none."""

    gpus_per_node: Local[Positive]  #: GPUs of each node
    num_nodes: Local[Positive]  #: nodes of the cluster

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def machines(self) -> str:
        """The nodes and their GPUs, in words."""
        per_node = f"{self.gpus_per_node} GPU{'' if self.gpus_per_node == 1 else 's'}"
        return per_node if self.num_nodes == 1 else f"{self.num_nodes} nodes of {per_node}"


class DataSource(BaseModel):
    """`equipoise.data`; the other keys are those of the class's `PromptSettings`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    module: ClassName  #: what makes the prompts, a `DataModule`
    data_path: str | None = None  #: a prompts.jsonl to use in its place


class EvaluationConfig(Section):
    """`equipoise.evaluation`: how the frozen and the trained model are compared."""

    split: str = TEST_SPLIT  #: whose prompts both models are asked
    generations: Positive = 8  #: completions per prompt
    batch_size: Positive = 512  #: completions sampled at once
    bootstrap_draws: Positive = 10_000  #: resamples of an interval
    permutations: Positive = 2_000  #: permutations of a noise floor
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95  #: of the intervals
    seed: Seed = 0  #: of the sampling and of both draws


class ProbeConfig(Section):
    """`equipoise.probe`: the search for what the reward pays for nothing."""

    #: training prompts on which a constant reply is searched; 0: none
    prompts: Annotated[int, Field(ge=0)] = 32
    constants: Positive = 16  #: replies of the model that are tried
    rounds: Annotated[int, Field(ge=0)] = 2  #: sentences that may be added to the best of them


class TrainingRolloutsConfig(Section):
    """`equipoise.training_rollouts`: what is kept of the rollouts of training, for its readers."""

    #: counterfactual sets, or prompts, of a step with all generations; 0: none
    sets: Annotated[int, Field(ge=0)] = 1
    steps: Positive = 200  #: steps at most, at even distances


class DataPlaneConfig(Section):
    """`data_plane`: batches by way of a TransferQueue, with a trainer of its own."""

    #: refused: Equipoise does not follow this trainer
    enabled: Annotated[
        bool,
        _refused(
            "NeMo-RL's trainer for it has a validation of its own, in which Equipoise cannot "
            "sample the baseline and the final evaluation; set it to false"
        ),
    ] = False


class DistillationConfig(Section):
    """`on_policy_distillation`: advantages from a teacher's log-probabilities."""

    #: refused: the rewards would not be trained on
    enabled: Annotated[
        bool,
        _refused(
            "a teacher's log-probabilities would take the place of the task's reward; set it to "
            "false"
        ),
    ] = False


class EquipoiseConfig(Section):
    """`equipoise`: what NeMo-RL has no key for."""

    task: str  #: the recipe's task; names tasks/<task>.yaml
    environment: ClassName  #: class that gives reward
    engine: Literal["auto", "local", "nemo_rl"] = "auto"  #: auto: by model, GPUs and installation
    device: Literal["auto", "cpu", "cuda"] = "auto"  #: local engine only
    load_in_4bit: bool = False  #: local engine only: the base below a LoRA in 4 bits (NF4)
    threads: Positive | None = None  #: CPU threads; null for torch's choice
    #: memory of one GPU in 10^9 bytes; null leaves memory unchecked
    gpu_memory_gb: Annotated[float, Field(gt=0)] | None = None
    output_dir: str = "results"  #: folder of <task>/<run name>
    run_name: RunName | None = None  #: folder below output_dir/task; null: the model and the time
    cache_dir: str = CACHE_DIR  #: folder for what can be made again
    max_failure_rate: Fraction = 0.1  #: share of unscored rollouts that stops
    failure_window: Positive = 5  #: steps over which that share is taken
    #: NeMo-RL only: its median over as many steps stops a run in which training and generation give
    #: the same tokens other probabilities
    max_token_mult_prob_error: Annotated[float, Field(ge=1)] = 1.1
    stop_without_signal: bool = True  #: before training, where all generations of each prompt tie
    #: NeMo-RL's final_checkpoint: a LoRA as PEFT's or merged into its base; or none
    export: Literal["adapter", "hf", "none"] = "adapter"
    data: DataSource
    local_model: Tree = {}  #: keys of the data module's LocalModelSettings
    evaluation: EvaluationConfig = EvaluationConfig()
    probe: ProbeConfig = ProbeConfig()
    training_rollouts: TrainingRolloutsConfig = TrainingRolloutsConfig()


class Config(Section):
    """A whole configuration; `env.<name>` holds the environment's own settings."""

    grpo: GrpoConfig
    loss_fn: LossConfig
    policy: PolicyConfig
    data: DataConfig
    env: Local[dict[str, Tree]] = {}  #: settings of the environment, below its name
    checkpointing: CheckpointingConfig
    logger: LoggerConfig
    cluster: ClusterConfig
    data_plane: DataPlaneConfig | None = None
    on_policy_distillation: DistillationConfig | None = None
    equipoise: Local[EquipoiseConfig]
