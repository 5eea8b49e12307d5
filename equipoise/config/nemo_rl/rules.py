"""Rules for what NeMo-RL refuses, or lacks memory for, minutes after its start.

Each stands with its sources: where NeMo-RL's code says so, which a start compares with the version
that is installed, or in words what else makes it a rule.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch

from equipoise.config.memory import GB, cached_tokens, estimate, in_gb, layout_of, vllm_share
from equipoise.config.models import model_shape
from equipoise.config.nemo_rl.assumptions import (
    ASYNC_GRPO,
    ASYNC_SCRIPT,
    BASE_CONFIG,
    BATCHES,
    DTENSOR_SETUP,
    GRPO_SETUP,
    MEGATRON_BATCHES,
    MEGATRON_SETUP,
    POLICY_SETUP,
    SAVED_METRIC,
    VALIDATION,
    VLLM_SETUP,
    Assumption,
)
from equipoise.config.problems import Problem
from equipoise.config.schema import LOCAL_MODEL, Config, LoraConfig, MegatronPeftConfig

Rule = Callable[[Config], Iterator[Problem]]
Sources = tuple[Assumption | str, ...]

_MEGATRON, _DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
_LORA, _PEFT = f"{_DTENSOR}.lora_cfg", f"{_MEGATRON}.peft"
_VLLM = "policy.generation.vllm_cfg"
_APART = "policy.generation.colocated"
_GPUS = ("cluster.gpus_per_node", "cluster.num_nodes")
#: The estimate is rough, so only what is clearly above the GPU's memory is refused.
_CLEARLY_ABOVE, _NEARLY_FULL = 1.33, 0.85
#: From this size on NeMo-RL asks for equal micro batches, for results depend on them.
_BATCH_VARIANT_TENSOR_SIZE = 4
_VALIDATION_METRICS = ("accuracy", "avg_length")


def check_nemo_rl(config: Config) -> Iterator[Problem]:
    """Every combination that NeMo-RL cannot run.

    The local model is a rehearsal's, which has one process and no GPU, whatever the layout.
    """
    is_local = config.policy.model_name == LOCAL_MODEL
    for rule in RULES if is_local else (*RULES, *LAYOUT_RULES):
        yield from rule(config)


def nemo_rl_warnings(config: Config) -> Iterator[str]:
    """Warn of what NeMo-RL does not do, and of memory that by a rough estimate may not suffice."""
    if config.equipoise.first_stage.passes:
        yield "equipoise.first_stage is the local engine's alone: NeMo-RL begins with GRPO"
    shape, limit = model_shape(config.policy.model_name), config.equipoise.gpu_memory_gb
    if shape is None or limit is None:
        return
    needed = estimate(config, shape).training
    if needed > limit * GB * _NEARLY_FULL:
        yield (
            f"training takes about {in_gb(needed)} of each GPU, which has {limit:g} GB by "
            "equipoise.gpu_memory_gb; on CUDA out of memory lower policy.train_micro_batch_size"
        )


def _trainer_is_followed(config: Config) -> Iterator[Problem]:
    data_plane, distillation = config.data_plane, config.on_policy_distillation
    if data_plane and data_plane.enabled:
        yield Problem(
            "nemo-rl.data-plane",
            ("data_plane.enabled",),
            "NeMo-RL's trainer for it has a validation of its own, in which Equipoise cannot "
            "sample the baseline and the final evaluation; set it to false",
        )
    if config.async_rl is not None:
        yield Problem(
            "nemo-rl.async-rl",
            ("async_rl",),
            "it is read by NeMo-RL's Single Controller alone, which has no validation and so no "
            "baseline and no final evaluation; leave it out",
        )
    if distillation and distillation.enabled:
        yield Problem(
            "nemo-rl.distillation",
            ("on_policy_distillation.enabled",),
            "a teacher's log-probabilities would take the place of the task's reward; set it to "
            "false",
        )
    if config.grpo.stop_at_validation_metric is not None:
        yield Problem(
            "nemo-rl.early-stop",
            ("grpo.stop_at_validation_metric",),
            "a run that stops there has no final evaluation, which follows the last step; set it "
            "to null, and choose a checkpoint by checkpointing.metric_name",
        )


def _one_backend_trains(config: Config) -> Iterator[Problem]:
    megatron, dtensor = config.policy.megatron_cfg.enabled, config.policy.dtensor_cfg.enabled
    if megatron == dtensor:
        yield Problem(
            "nemo-rl.two-backends",
            (f"{_MEGATRON}.enabled", f"{_DTENSOR}.enabled"),
            f"{'both' if megatron else 'none'} of them is true; one backend trains: set one to "
            "true and the other to false",
        )


def _backends_agree(config: Config) -> Iterator[Problem]:
    policy, megatron = config.policy, config.policy.megatron_cfg
    if not megatron.enabled:
        return
    lora, peft = policy.dtensor_cfg.lora_cfg, megatron.peft
    rate, base_rate = megatron.optimizer.lr, policy.optimizer.kwargs.get("lr")
    pairs = (
        (f"{_MEGATRON}.optimizer.lr", rate, "policy.optimizer.kwargs.lr", base_rate),
        (f"{_PEFT}.enabled", peft.enabled, f"{_LORA}.enabled", lora.enabled),
        (f"{_PEFT}.dim", peft.dim, f"{_LORA}.dim", lora.dim),
        (f"{_PEFT}.alpha", peft.alpha, f"{_LORA}.alpha", lora.alpha),
    )
    for key, value, followed, source_value in pairs:
        if value != source_value:
            yield Problem(
                "megatron-keys.divergent-value",
                (key, followed),
                f"{key} is {value}, and {followed} is {source_value}; leave the former out, "
                "it follows the latter",
            )


def _megatron_schedules_itself(config: Config) -> Iterator[Problem]:
    megatron = config.policy.megatron_cfg
    if not megatron.enabled:
        return
    if config.policy.scheduler:
        yield Problem(
            "megatron-keys.unread-scheduler",
            ("policy.scheduler", f"{_MEGATRON}.enabled"),
            f"Megatron does not read it; set it to null and say {_MEGATRON}.scheduler",
        )
    optimizer = megatron.optimizer
    has_clip_grad = "clip_grad" in optimizer.model_fields_set
    if (optimizer.clip_grad if has_clip_grad else config.policy.max_grad_norm) is None:
        yield Problem(
            "megatron-keys.null-clipping",
            ("policy.max_grad_norm",),
            f"Megatron cannot clip at null; not to clip, set {_MEGATRON}.optimizer.clip_grad=0.0",
        )
    if max(optimizer.min_lr, megatron.scheduler.lr_warmup_init) > optimizer.lr:
        yield Problem(
            "megatron-keys.rates-above-lr",
            (f"{_MEGATRON}.optimizer.min_lr", f"{_MEGATRON}.scheduler.lr_warmup_init"),
            f"min_lr and lr_warmup_init must not be above lr, which is {optimizer.lr}",
        )


def _megatron_options_fit(config: Config) -> Iterator[Problem]:
    policy, megatron = config.policy, config.policy.megatron_cfg
    if not megatron.enabled:
        return
    if megatron.context_parallel_size > 1 and not policy.sequence_packing.enabled:
        yield Problem(
            "megatron-keys.unpacked-context",
            (f"{_MEGATRON}.context_parallel_size", "policy.sequence_packing.enabled"),
            "Megatron splits contexts of packed sequences alone; set "
            "policy.sequence_packing.enabled=true",
        )
    if policy.logprob_chunk_size and not megatron.defer_fp32_logits:
        yield Problem(
            "megatron-keys.chunked-logprobs",
            ("policy.logprob_chunk_size",),
            f"it needs {_MEGATRON}.defer_fp32_logits=true",
        )
    optimizer = megatron.optimizer
    if optimizer.optimizer_cpu_offload and not optimizer.optimizer_offload_fraction:
        yield Problem(
            "megatron-keys.empty-offload",
            (f"{_MEGATRON}.optimizer.optimizer_offload_fraction",),
            f"{_MEGATRON}.optimizer.optimizer_cpu_offload offloads nothing with 0; set it to 1.0",
        )


def _lora_is_supported(config: Config) -> Iterator[Problem]:
    policy = config.policy
    lora, dtensor, peft = policy.dtensor_cfg.lora_cfg, policy.dtensor_cfg, policy.megatron_cfg.peft
    if policy.megatron_cfg.enabled:
        if lora.enabled and lora.target_modules:
            yield Problem(
                "megatron-keys.lora-names",
                (f"{_LORA}.target_modules", f"{_PEFT}.target_modules"),
                f"Megatron's layers have other names: list {_PEFT}.target_modules, such as "
                f"[linear_qkv, linear_proj], and leave {_LORA}.target_modules empty",
            )
        if peft.target_modules and peft.exclude_modules:
            yield Problem(
                "megatron-keys.excluded-lora",
                (f"{_PEFT}.exclude_modules",),
                "it needs target_modules to be empty, which means all linear layers",
            )
        return
    if lora.enabled and not dtensor.v2:
        yield Problem(
            "dtensor-keys.lora-of-v1",
            (f"{_DTENSOR}._v2",),
            "the first DTensor backend has no LoRA; set it to true",
        )
    if lora.enabled and lora.use_triton and dtensor.tensor_parallel_size > 1:
        yield Problem(
            "dtensor-keys.triton-lora",
            (f"{_LORA}.use_triton", f"{_DTENSOR}.tensor_parallel_size"),
            f"its kernels know no tensor parallelism; set {_LORA}.use_triton=false",
        )


def _output_layer_is_refitted(config: Config) -> Iterator[Problem]:
    """VLLM drops an `lm_head` that is sent for a model whose embeddings are its output layer."""
    policy = config.policy
    shape = model_shape(policy.model_name)
    lora: LoraConfig | MegatronPeftConfig = policy.dtensor_cfg.lora_cfg
    section, layer = _LORA, "lm_head"
    if policy.megatron_cfg.enabled:
        section, lora, layer = _PEFT, policy.megatron_cfg.peft, "output_layer"
    if not lora.enabled or (shape is not None and not shape.tied):
        return
    if adapts(layer, lora.target_modules, lora.exclude_modules):
        yield Problem(
            "lora-keys.unshared-output",
            (f"{section}.target_modules", f"{section}.exclude_modules"),
            f"they adapt {layer}, and {policy.model_name} is not known to have an output layer of "
            "its own: vLLM would sample without that adapter, so from another policy than the one "
            f"that is trained; take exclude_modules=[{layer}] with target_modules=[]",
        )


def adapts(layer: str, targets: Sequence[str], excluded: Sequence[str]) -> bool:
    """Whether a layer outside the blocks gets an adapter; no targets are all linear layers."""
    patterns = targets or excluded
    named = any(fnmatch(layer, pattern.removeprefix("*.")) for pattern in patterns)
    return named if targets else not named


def _pretrained_weights_are_used(config: Config) -> Iterator[Problem]:
    """DTensor starts from `policy.model_name` whatever is said, and an adapter needs its base."""
    policy, key = config.policy, "policy.pretrained_checkpoint"
    if policy.pretrained_checkpoint is None:
        return
    if not policy.megatron_cfg.enabled:
        yield Problem(
            "dtensor-keys.unread-checkpoint",
            (key, f"{_MEGATRON}.enabled"),
            "DTensor does not read it and would begin with policy.model_name; name the model's "
            "form of Hugging Face's there, see `equipoise convert`",
        )
    elif policy.megatron_cfg.peft.enabled:
        yield Problem(
            "megatron-keys.lora-on-checkpoint",
            (f"{key}.path", f"{_PEFT}.enabled"),
            "the final adapter would name policy.model_name as its base, whose weights are not "
            "those that it was trained on; with LoRA name the model's form of Hugging Face's in "
            "policy.model_name, see `equipoise convert`",
        )


def _one_way_to_batch(config: Config) -> Iterator[Problem]:
    policy = config.policy
    packing, dynamic = policy.sequence_packing.enabled, policy.dynamic_batching.enabled
    if packing and dynamic:
        yield Problem(
            "batch.packed-and-sorted",
            ("policy.dynamic_batching.enabled", "policy.sequence_packing.enabled"),
            "sequences are packed or batched by length, not both; set one of them to false",
        )
    if dynamic and policy.megatron_cfg.enabled and layout_of(config).pipeline > 1:
        yield Problem(
            "batch.sorted-in-pipeline",
            ("policy.dynamic_batching.enabled",),
            "pipeline stages need micro batches of one shape; take policy.sequence_packing",
        )
    if packing and not policy.megatron_cfg.enabled and layout_of(config).context > 1:
        yield Problem(
            "dtensor-keys.packed-context",
            ("policy.sequence_packing.enabled", f"{_DTENSOR}.context_parallel_size"),
            "DTensor packs sequences only without context parallelism; set one of them back",
        )


def _loss_gets_its_terms(config: Config) -> Iterator[Problem]:
    grpo, loss, policy = config.grpo, config.loss_fn, config.policy
    if grpo.skip_reference_policy_logprobs_calculation and loss.reference_policy_kl_penalty:
        yield Problem(
            "loss.no-reference",
            ("grpo.skip_reference_policy_logprobs_calculation",),
            "loss_fn.reference_policy_kl_penalty needs the reference policy; set it to 0 or this "
            "to false",
        )
    rollouts = grpo.rollouts_per_step
    if loss.force_on_policy_ratio and policy.train_global_batch_size != rollouts:
        yield Problem(
            "loss.several-updates",
            ("loss_fn.force_on_policy_ratio", "policy.train_global_batch_size"),
            f"it holds for one update per step: train_global_batch_size must be {rollouts}",
        )
    if grpo.batch_multiplier != 1 and not grpo.use_dynamic_sampling:
        yield Problem(
            "grpo.unused-multiplier",
            ("grpo.batch_multiplier",),
            "it needs grpo.use_dynamic_sampling",
        )


def _asynchronous_grpo_can_run(config: Config) -> Iterator[Problem]:
    grpo, generation, async_grpo = config.grpo, config.policy.generation, config.grpo.async_grpo
    if async_grpo is None or not async_grpo.enabled:
        return
    colocated = generation.colocated
    requirements = {
        f"{_VLLM}.async_engine": (generation.vllm_cfg.async_engine, "true"),
        f"{_APART}.enabled": (not colocated.enabled, "false"),
        f"{_APART}.resources.gpus_per_node": (
            not colocated.enabled or colocated.resources.gpus_per_node is not None,
            "the GPUs that generate",
        ),
        "loss_fn.use_importance_sampling_correction": (
            config.loss_fn.use_importance_sampling_correction,
            "true",
        ),
        "grpo.use_dynamic_sampling": (not grpo.use_dynamic_sampling, "false"),
        **{
            f"grpo.{name}.enabled": (change is None or not change.enabled, "false")
            for name, change in (
                ("reward_scaling", grpo.reward_scaling),
                ("reward_shaping", grpo.reward_shaping),
            )
        },
    }
    for key, (holds, value) in requirements.items():
        if not holds:
            yield Problem(
                "async-grpo.other-setting", (key,), f"grpo.async_grpo needs it: set it to {value}"
            )


def _generation_has_its_gpus(config: Config) -> Iterator[Problem]:
    colocated, cluster = config.policy.generation.colocated, config.cluster
    gpus, nodes = colocated.resources.gpus_per_node, colocated.resources.num_nodes
    gpus_key, nodes_key = (f"{_APART}.resources.{name}" for name in ("gpus_per_node", "num_nodes"))
    if colocated.enabled:
        return
    if cluster.num_nodes == 1:
        if gpus is None:
            yield Problem(
                "generation.no-gpus",
                (gpus_key,),
                f"set it to how many of the node's {cluster.gpus_per_node} GPUs generate",
            )
        if nodes not in (None, 1):
            yield Problem(
                "generation.nodes-of-one", (nodes_key,), "the run has one node; set it to null"
            )
        return
    if nodes is None:
        yield Problem(
            "generation.no-nodes",
            (nodes_key,),
            f"with several nodes whole ones generate; set it to how many of the "
            f"{cluster.num_nodes}",
        )
    if gpus != cluster.gpus_per_node:
        yield Problem(
            "generation.partial-node",
            (gpus_key,),
            f"with several nodes whole ones generate; set it to {cluster.gpus_per_node}",
        )


def _metric_will_exist(config: Config) -> Iterator[Problem]:
    """NeMo-RL validates with two metrics; those of the environment are added below env/."""
    kind, _, name = (config.checkpointing.metric_name or "").partition(":")
    several = config.grpo.val_num_generations_per_prompt > 1
    exists = name in _VALIDATION_METRICS or name.startswith("env/") or several
    if kind == "val" and not exists:
        yield Problem(
            "checkpointing.unknown-metric",
            ("checkpointing.metric_name",),
            f"NeMo-RL's validation has no {name}; it has {', '.join(_VALIDATION_METRICS)}, and "
            "env/<metric> for those of the environment",
        )
    grpo = config.grpo
    later = grpo.use_dynamic_sampling or (grpo.async_grpo is not None and grpo.async_grpo.enabled)
    if kind == "train" and name.startswith("env/") and later:
        yield Problem(
            "checkpointing.late-metric",
            ("checkpointing.metric_name",),
            f"with grpo.use_dynamic_sampling or grpo.async_grpo {name} of training is not known "
            f"when a checkpoint is saved; choose by val:{name}",
        )


def _gpus_hold_copies(config: Config) -> Iterator[Problem]:
    layout = layout_of(config)
    if layout.training_gpus < 1:
        yield Problem(
            "layout.no-training-gpus",
            (f"{_APART}.resources", *_GPUS),
            f"{layout.generation_gpus} GPUs for generation leave none of {layout.gpus} to train on",
        )
    elif layout.training_gpus % layout.model_parallel:
        yield Problem(
            "layout.uneven-copies",
            (*_parallel_keys(config), *_GPUS),
            f"tensor x pipeline x context = {layout.tensor} x {layout.pipeline} x "
            f"{layout.context} = {layout.model_parallel} does not divide the "
            f"{layout.training_gpus} GPUs that train",
        )


def _dtensor_copies_fit(config: Config) -> Iterator[Problem]:
    dtensor, layout = config.policy.dtensor_cfg, layout_of(config)
    copies, key = dtensor.dp_replicate_size, f"{_DTENSOR}.dp_replicate_size"
    if layout.megatron:
        return
    if copies > 1 and not dtensor.v2:
        yield Problem(
            "dtensor-keys.shards-of-v1",
            (key, f"{_DTENSOR}._v2"),
            "the first DTensor backend shards one copy over all ranks; set it to 1",
        )
    elif layout.data_parallel % copies:
        yield Problem(
            "dtensor-keys.uneven-shards",
            (key, *_GPUS),
            f"{copies} copies do not share {layout.data_parallel} data-parallel ranks evenly",
        )
    if dtensor.sequence_parallel and layout.tensor > 1 and layout.context > 1:
        yield Problem(
            "dtensor-keys.two-sequence-splits",
            (f"{_DTENSOR}.sequence_parallel", f"{_DTENSOR}.context_parallel_size"),
            "DTensor shares sequences in one of the two ways; set sequence_parallel=false",
        )


def _vllm_fits_the_nodes(config: Config) -> Iterator[Problem]:
    layout, per_node = layout_of(config), config.cluster.gpus_per_node
    if layout.vllm_pipeline > 1 and not config.policy.generation.vllm_cfg.async_engine:
        yield Problem(
            "vllm.pipeline",
            (f"{_VLLM}.pipeline_parallel_size",),
            "vLLM's pipeline needs its asynchronous engine; take tensor parallelism",
        )
    if layout.generation_gpus % layout.vllm_gpus:
        yield Problem(
            "vllm.uneven-gpus",
            (f"{_VLLM}.tensor_parallel_size", *_GPUS),
            f"one vLLM takes {layout.vllm_gpus} GPUs, which does not divide the "
            f"{layout.generation_gpus} that generate",
        )
    elif per_node % layout.vllm_tensor and layout.vllm_tensor % per_node:
        yield Problem(
            "vllm.uneven-node",
            (f"{_VLLM}.tensor_parallel_size", "cluster.gpus_per_node"),
            f"{layout.vllm_tensor} GPUs of one vLLM do not fill nodes of {per_node}",
        )


def _ranks_share_the_batch(config: Config) -> Iterator[Problem]:
    policy, layout = config.policy, layout_of(config)
    batch, micro, ranks = (
        policy.train_global_batch_size,
        policy.train_micro_batch_size,
        layout.data_parallel,
    )
    by_length = policy.batches_by_length
    share = ranks if by_length else ranks * micro
    if layout.training_gpus % layout.model_parallel == 0 and batch % share:
        shape = f"{ranks} data-parallel ranks" + ("" if by_length else f" x {micro} rollouts")
        yield Problem(
            "layout.unfilled-batch",
            ("policy.train_global_batch_size", "policy.train_micro_batch_size", *_GPUS),
            f"a batch of {batch} does not fill {shape}; take a multiple of {share}",
        )


def _lengths_split_evenly(config: Config) -> Iterator[Problem]:
    layout, policy = layout_of(config), config.policy
    multiple = layout.tensor * (2 * layout.context if layout.context > 1 else 1)
    if layout.megatron and policy.make_sequence_length_divisible_by % multiple:
        yield Problem(
            "lengths.uneven-divisor",
            ("policy.make_sequence_length_divisible_by",),
            f"Megatron's {layout.tensor} tensor and {layout.context} context ranks need a multiple "
            f"of {multiple}, not {policy.make_sequence_length_divisible_by}",
        )
    elif policy.max_total_sequence_length % policy.make_sequence_length_divisible_by:
        yield Problem(
            "lengths.uneven-total",
            ("policy.max_total_sequence_length", "policy.make_sequence_length_divisible_by"),
            f"{policy.max_total_sequence_length} is no multiple of "
            f"{policy.make_sequence_length_divisible_by}",
        )


def _logprobs_are_computed_alike(config: Config) -> Iterator[Problem]:
    policy, layout = config.policy, layout_of(config)
    if (
        layout.tensor >= _BATCH_VARIANT_TENSOR_SIZE
        and policy.logprob_batch_size not in (None, policy.train_micro_batch_size)
        and not config.loss_fn.force_on_policy_ratio
    ):
        yield Problem(
            "batch.other-logprob-size",
            ("policy.logprob_batch_size", "policy.train_micro_batch_size"),
            f"on {layout.tensor} tensor ranks results depend on the batch, so log-probabilities "
            f"must be computed in micro batches of {policy.train_micro_batch_size} too",
        )


def _model_splits(config: Config) -> Iterator[Problem]:
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return
    layout, megatron = layout_of(config), config.policy.megatron_cfg
    uneven = (
        megatron.num_layers_in_first_pipeline_stage or megatron.num_layers_in_last_pipeline_stage
    )
    tensor, pipeline, _ = _parallel_keys(config)
    name = config.policy.model_name
    if shape.heads % layout.tensor or shape.kv_heads % layout.tensor:
        yield Problem(
            "layout.uneven-heads",
            (tensor,),
            f"{name} has {shape.heads} attention heads and {shape.kv_heads} of keys and values, "
            f"which {layout.tensor} GPUs cannot share",
        )
    if shape.heads % layout.vllm_tensor:
        yield Problem(
            "vllm.uneven-heads",
            (f"{_VLLM}.tensor_parallel_size",),
            f"{name} has {shape.heads} attention heads, which {layout.vllm_tensor} GPUs cannot "
            "share",
        )
    if shape.layers % layout.pipeline and not uneven:
        yield Problem(
            "layout.uneven-layers",
            (pipeline,),
            f"{name} has {shape.layers} layers, no multiple of {layout.pipeline} stages",
        )


def memory_problems(config: Config) -> Iterator[Problem]:
    """An estimate that is above `equipoise.gpu_memory_gb`, by what its roughness allows."""
    shape, limit = model_shape(config.policy.model_name), config.equipoise.gpu_memory_gb
    layout = layout_of(config)
    if shape is None or limit is None or layout.training_gpus < layout.model_parallel:
        return
    memory = estimate(config, shape)
    if memory.training > limit * GB * _CLEARLY_ABOVE:
        yield Problem(
            "memory.training",
            ("equipoise.gpu_memory_gb", "policy.model_name", *_GPUS),
            f"training takes about {in_gb(memory.training)} of each GPU, which has {limit:g} "
            "GB; take LoRA, smaller micro batches, activation checkpointing or more GPUs",
        )
    if memory.refit > limit * GB:
        yield Problem(
            "memory.vllm-weights",
            (f"{_VLLM}.tensor_parallel_size", "equipoise.gpu_memory_gb"),
            f"vLLM's weights take {in_gb(memory.vllm_weights)} beside the "
            f"{in_gb(memory.weights)} of training on a GPU of {limit:g} GB; raise it",
        )
    elif cached_tokens(config, shape) < config.policy.max_total_sequence_length * layout.replicas:
        yield Problem(
            "memory.no-generation",
            (f"{_VLLM}.gpu_memory_utilization", f"{_VLLM}.tensor_parallel_size"),
            f"vLLM may use {in_gb(vllm_share(config))} of a GPU, and its weights of "
            f"{in_gb(memory.vllm_weights)} leave no room to generate; raise one of them",
        )


def _parallel_keys(config: Config) -> tuple[str, str, str]:
    """The keys of the tensor, pipeline and context sizes of the backend."""
    if config.policy.megatron_cfg.enabled:
        kinds = ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel")
        first, second, third = (f"{_MEGATRON}.{kind}_size" for kind in kinds)
        return first, second, third
    tensor, context = (f"{_DTENSOR}.{kind}_parallel_size" for kind in ("tensor", "context"))
    return tensor, tensor, context


#: Every rule and its sources.
RULES: Mapping[Rule, Sources] = {
    _trainer_is_followed: (
        "ours: hooks.py watches two trainers up to their last step, these keys lead elsewhere",
    ),
    _one_backend_trains: (POLICY_SETUP,),
    _backends_agree: ("ours: flags set DTensor's keys, and Megatron must not do something else",),
    _megatron_schedules_itself: (MEGATRON_SETUP, BASE_CONFIG, "Megatron-Core: its scheduler"),
    _megatron_options_fit: (MEGATRON_SETUP,),
    _lora_is_supported: (MEGATRON_SETUP, POLICY_SETUP, DTENSOR_SETUP, "Megatron-Bridge: its LoRA"),
    _pretrained_weights_are_used: (MEGATRON_SETUP, "ours: a final adapter names its base"),
    _one_way_to_batch: (POLICY_SETUP, DTENSOR_SETUP),
    _loss_gets_its_terms: (GRPO_SETUP,),
    _asynchronous_grpo_can_run: (ASYNC_GRPO, ASYNC_SCRIPT, GRPO_SETUP),
    _generation_has_its_gpus: (GRPO_SETUP,),
    _metric_will_exist: (VALIDATION, SAVED_METRIC),
}
#: Those of a model that is spread over GPUs, which the local one is not.
LAYOUT_RULES: Mapping[Rule, Sources] = {
    _output_layer_is_refitted: ("vLLM: load_weights of models whose embeddings are tied",),
    _gpus_hold_copies: (POLICY_SETUP, GRPO_SETUP),
    _dtensor_copies_fit: (POLICY_SETUP, DTENSOR_SETUP),
    _vllm_fits_the_nodes: (VLLM_SETUP,),
    _ranks_share_the_batch: (BATCHES,),
    _lengths_split_evenly: (MEGATRON_BATCHES,),
    _logprobs_are_computed_alike: (POLICY_SETUP,),
    _model_splits: ("PyTorch, Megatron-Core, vLLM: whole heads and layers on a GPU",),
    memory_problems: ("ours: the estimate of memory.py",),
}
