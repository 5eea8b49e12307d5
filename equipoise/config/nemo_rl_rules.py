"""Rules against what NeMo-RL would do wrong silently, or refuse only after hours.

What it refuses itself when it starts is not repeated here: engine.py shows its words. Read in
v0.7.0, whose baseline and reference are drawn between its start and the first training step.
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch

from equipoise.config.memory import layout_of, memory_of
from equipoise.config.schema import LOCAL_MODEL, Config, LoraConfig, MegatronPeftConfig
from equipoise.config.validate import Problem
from equipoise.files.disk import GB, in_gb
from equipoise.files.model_shape import model_shape

Rule = Callable[[Config], Iterator[Problem]]

_MEGATRON, _DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
_LORA, _PEFT = f"{_DTENSOR}.lora_cfg", f"{_MEGATRON}.peft"
_VLLM = "policy.generation.vllm_cfg"
_GPUS = ("cluster.gpus_per_node", "cluster.num_nodes")
#: A share of a GPU's memory after which activations hardly fit, and the most that vLLM may share.
_NEARLY_FULL, _FULL = 0.7, 0.9
_VALIDATION_METRICS = ("accuracy", "avg_length")


def check_nemo_rl(config: Config) -> Iterator[Problem]:
    """Yield every combination that NeMo-RL would get wrong, or refuse after hours.

    The local model is a rehearsal's, which has one process and no GPU, whatever the layout.
    """
    is_local = config.policy.model_name == LOCAL_MODEL
    for rule in RULES if is_local else (*RULES, *LAYOUT_RULES):
        yield from rule(config)


def nemo_rl_warnings(config: Config) -> Iterator[str]:
    """Warn of what NeMo-RL does silently, and of memory that may be too small."""
    yield from memory_warnings(config)
    generation = config.policy.generation
    share = generation.vllm_cfg.gpu_memory_utilization
    if generation.colocated.enabled and share > _FULL:
        yield (
            f"{_VLLM}.gpu_memory_utilization {share:g} leaves too little of a GPU that training "
            "shares; NeMo-RL's own recipes take 0.5 to 0.8"
        )
    if not config.checkpointing.save_optimizer:
        yield (
            "checkpointing.save_optimizer is false: a resumed run has a new optimizer, so it "
            "differs from one that was not stopped"
        )


def memory_warnings(config: Config) -> Iterator[str]:
    """Warn where weights, gradients and optimizer leave little of a GPU to compute in."""
    shape, limit = model_shape(config.policy.model_name), config.equipoise.gpu_memory_gb
    if shape is None or limit is None:
        return
    needed = memory_of(config, shape).training
    if needed > limit * GB * _NEARLY_FULL:
        yield (
            f"training takes at least {in_gb(needed)} of each GPU, which has {limit:g} GB by "
            "equipoise.gpu_memory_gb; on CUDA out of memory lower policy.train_micro_batch_size"
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
            "Megatron does not read policy.scheduler; set it to null and say "
            f"{_MEGATRON}.scheduler",
        )
    optimizer = megatron.optimizer
    has_clip_grad = "clip_grad" in optimizer.model_fields_set
    if (optimizer.clip_grad if has_clip_grad else config.policy.max_grad_norm) is None:
        yield Problem(
            "megatron-keys.null-clipping",
            ("policy.max_grad_norm",),
            f"Megatron cannot clip at null; not to clip, set {_MEGATRON}.optimizer.clip_grad=0.0",
        )


def _lora_names_are_read(config: Config) -> Iterator[Problem]:
    lora = config.policy.dtensor_cfg.lora_cfg
    if config.policy.megatron_cfg.enabled and lora.enabled and lora.target_modules:
        yield Problem(
            "megatron-keys.lora-names",
            (f"{_LORA}.target_modules", f"{_PEFT}.target_modules"),
            f"Megatron does not read it, for its layers have other names: list "
            f"{_PEFT}.target_modules, such as [linear_qkv, linear_proj], and leave "
            f"{_LORA}.target_modules empty",
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


def _checkpoints_are_written(config: Config) -> Iterator[Problem]:
    if not config.checkpointing.enabled:
        yield Problem(
            "checkpointing.none-saved",
            ("checkpointing.enabled",),
            "NeMo-RL would save nothing: after the last step there would be no model to evaluate "
            "and to export; set it to true",
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
    later = grpo.use_dynamic_sampling or grpo.is_asynchronous
    if kind == "train" and name.startswith("env/") and later:
        yield Problem(
            "checkpointing.late-metric",
            ("checkpointing.metric_name",),
            f"with grpo.use_dynamic_sampling or grpo.async_grpo {name} of training is not known "
            f"when a checkpoint is saved; choose by val:{name}",
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
            f"{policy.max_total_sequence_length} is not a multiple of "
            f"{policy.make_sequence_length_divisible_by}",
        )


def memory_problems(config: Config) -> Iterator[Problem]:
    """Refuse what `equipoise.gpu_memory_gb` cannot hold, activations and caches not counted."""
    shape, limit = model_shape(config.policy.model_name), config.equipoise.gpu_memory_gb
    layout = layout_of(config)
    if shape is None or limit is None or layout.training_gpus < layout.model_parallel:
        return
    memory = memory_of(config, shape)
    if memory.training > limit * GB:
        yield Problem(
            "memory.training",
            ("equipoise.gpu_memory_gb", "policy.model_name", *_GPUS),
            f"weights, gradients and optimizer take {in_gb(memory.training)} of each GPU, which "
            f"has {limit:g} GB; take LoRA or more GPUs",
        )
    if memory.weights + memory.vllm_weights > limit * GB:
        yield Problem(
            "memory.vllm-weights",
            (f"{_VLLM}.tensor_parallel_size", "equipoise.gpu_memory_gb"),
            f"vLLM's weights take {in_gb(memory.vllm_weights)} beside the "
            f"{in_gb(memory.weights)} of training on a GPU of {limit:g} GB; raise it",
        )


RULES: Sequence[Rule] = (
    _backends_agree,
    _megatron_schedules_itself,
    _lora_names_are_read,
    _pretrained_weights_are_used,
    _checkpoints_are_written,
    _metric_will_exist,
)
#: Those of a model that is spread over GPUs, which the local one is not.
LAYOUT_RULES: Sequence[Rule] = (
    _output_layer_is_refitted,
    _ranks_share_the_batch,
    _lengths_split_evenly,
    memory_problems,
)
