"""Samples of a run, its prompts and the completions of every stage, and the hours of NeMo-RL's."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord
from equipoise.config.checks import Engine
from equipoise.config.memory import (
    GB,
    Memory,
    cached_tokens,
    estimate,
    has_reference_pass,
    in_gb,
    layout_of,
    lora_rank,
)
from equipoise.config.models import ModelShape, model_shape
from equipoise.config.schedule import total_steps
from equipoise.config.schema import Config

# --- step time ------------------------------------------------------------------------------------
# Seconds of a NeMo-RL step, estimated from shapes, lengths and a data sheet.
#
# Three constants were fitted to steps that NeMo-RL's authors published, others are marked as
# assumed; docs/scaling.md has the formulas, the fit and its error. A dense model on GPUs of one
# kind, one step after the other: what an asynchronous run overlaps is not taken off.


#: Fitted: of the peak, in training and log-probabilities; of the bandwidth, while vLLM decodes.
_PEAK_SHARE, _BANDWIDTH_SHARE = 0.44, 0.6
#: Fitted: of one iteration of vLLM, beside reading and computing.
_ITERATION_SECONDS = 0.003
#: Assumed: of a step, beside its stages.
_STEP_SECONDS = 2.0
#: A lower bound, from published steps: weights from training to vLLM. Assumed: to the host too.
_HANDOVER_BYTES = 30 * GB
#: Assumed: weights that FSDP2 gathers on each GPU; two thirds of what NVLink of an H100 sends.
_GATHER_BYTES = 300 * GB
#: The slowest reward of rules, on one core; docs/performance.md. Other models are slower.
_SCORED_PER_SECOND = 3_300
#: Published seconds of a step over those estimated, least and most; docs/scaling.md.
FASTEST, SLOWEST = 0.85, 1.6


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one GPU, dense bfloat16."""

    flops: float  # per second
    bandwidth: float  # bytes per second


#: From NVIDIA's data sheets, SXM where there are several; half of a figure "with sparsity".
GPUS = {
    "A100-40GB": Gpu(312e12, 1.555e12),
    "A100-80GB": Gpu(312e12, 2.039e12),
    "L40S": Gpu(362e12, 0.864e12),
    "H100": Gpu(989e12, 3.35e12),
    "H200": Gpu(989e12, 4.8e12),
    "B200": Gpu(2_250e12, 8e12),
    "GB200": Gpu(2_500e12, 8e12),
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a rollout: means, and those that all others wait for or are padded to."""

    prompt: float
    reply: float
    longest_prompt: float
    longest_reply: float

    @property
    def rollout(self) -> float:
        """The mean of prompt and reply together."""
        return self.prompt + self.reply


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds of one part of a step, and how they were counted."""

    name: str
    seconds: float
    formula: str


def step_time(config: Config, shape: ModelShape, lengths: Lengths) -> tuple[Duration, ...]:
    """The parts of a step, one after the other. Raises `KeyError` where the GPU is not said."""
    rollouts, memory = config.grpo.rollouts_per_step, estimate(config, shape)
    referenced = has_reference_pass(config)
    logprob_passes = int(not config.loss_fn.force_on_policy_ratio) + int(referenced)
    # Forward, again with checkpointing, and backward: two, or one where weights are frozen.
    checkpointing = config.policy.backend.activation_checkpointing
    training_passes = 1 + int(checkpointing) + (1 if lora_rank(config) else 2)
    # A worker's weights to the host, the reference's in their place, and its own back.
    swapped = 3 * memory.weights if referenced else 0.0
    note = f"3 x {in_gb(memory.weights, 1)} of weights" if swapped else "no reference is asked"
    note = f"{note} at {in_gb(_HANDOVER_BYTES)}/s"
    return (
        _generation(config, shape, lengths, rollouts),
        _forward("log-probabilities", logprob_passes, config, shape, lengths),
        Duration("reference swap", swapped / _HANDOVER_BYTES, note),
        _forward("training", training_passes, config, shape, lengths),
        _handover(config, shape, memory),
        Duration("reward", rollouts / _SCORED_PER_SECOND, f"{_SCORED_PER_SECOND:,} a second"),
        Duration("rest", _STEP_SECONDS, "data, logs, waiting"),
    )


def sampling_seconds(
    config: Config, shape: ModelShape, lengths: Lengths, completions: int, at_once: int
) -> float:
    """Of completions that are asked for in batches, as evaluations do."""
    full, remainder = divmod(completions, at_once)
    seconds = full * _generation(config, shape, lengths, at_once).seconds if full else 0.0
    return seconds + (_generation(config, shape, lengths, remainder).seconds if remainder else 0.0)


def _generation(config: Config, shape: ModelShape, lengths: Lengths, rollouts: int) -> Duration:
    """Iterations of a vLLM replica: as many as the longest reply has tokens, or more in waves.

    Each reads the weights and the caches of the rollouts that are in flight. The prompt is
    computed once for its siblings.
    """
    layout, gpu = layout_of(config), _gpu(config)
    split, share = layout.vllm_gpus, rollouts / layout.replicas
    context = lengths.prompt + lengths.reply / 2
    waves = 1.0
    if config.equipoise.gpu_memory_gb is not None:  # else nothing limits the caches
        room = max(1, cached_tokens(config, shape) // layout.replicas)
        waves = max(1.0, share * context / room)
    iterations = max(lengths.longest_reply, lengths.reply * waves)
    weights = 2 * shape.parameters / split
    cache = share * lengths.reply * context * shape.cache_bytes_per_token / split
    computed = share * (lengths.reply + lengths.prompt / config.grpo.num_generations_per_prompt)
    seconds = (
        iterations * _ITERATION_SECONDS
        + (iterations * weights + cache) / (gpu.bandwidth * _BANDWIDTH_SHARE)
        + computed * _token_flops(shape, context) / split / (gpu.flops * _PEAK_SHARE)
    )
    counted = f"{share:,.0f} rollouts a replica, {iterations:,.0f} iterations"
    read = f"{in_gb(weights, 1)} of weights and {in_gb(cache / iterations, 1)} of caches each"
    return Duration("generation", seconds, f"{counted}, {read}")


def _gpu(config: Config) -> Gpu:
    return GPUS[config.equipoise.gpu or "none"]


def _forward(
    name: str, passes: int, config: Config, shape: ModelShape, lengths: Lengths
) -> Duration:
    """Passes over the tokens of a step; each costs what a forward one does.

    The first and the last of p stages wait for p - 1 micro batches. FSDP2 gathers all weights for
    each micro batch, while it computes; Megatron keeps them in place.
    """
    layout, gpu = layout_of(config), _gpu(config)
    tokens, micro_batches = computed_tokens(config, lengths)
    flops = _token_flops(shape, lengths.rollout)
    peak = layout.training_gpus * gpu.flops * _PEAK_SHARE
    idle = 1 + (layout.pipeline - 1) / micro_batches
    gathered = 0 if layout.megatron or layout.training_gpus == 1 else 2 * shape.parameters
    updates = _updates(config)
    slower = max(tokens * flops / peak * idle, updates * micro_batches * gathered / _GATHER_BYTES)
    counted = f"{passes} passes x {tokens:,.0f} tokens x {flops / GB:,.0f} GFLOP"
    return Duration(name, passes * slower, f"{counted}; {micro_batches:,.0f} micro batches a rank")


def computed_tokens(config: Config, lengths: Lengths) -> tuple[float, float]:
    """Tokens of a step with their padding, and the micro batches of a rank in an update.

    What is not packed is padded to the longest rollout. A pack has room left for a quarter of a
    rollout (NeMo-RL's packer, docs/scaling.md), which pipeline stages compute too, for they take
    packs of one size.
    """
    policy, rollouts, layout = config.policy, config.grpo.rollouts_per_step, layout_of(config)
    ranks = layout.data_parallel * _updates(config)
    if not policy.batches_by_length:
        longest = lengths.longest_prompt + lengths.longest_reply
        return rollouts * longest, max(1.0, rollouts / ranks / policy.train_micro_batch_size)
    pack = policy.train_micro_batch_size * policy.max_total_sequence_length
    filled = max(lengths.rollout, pack - lengths.rollout / 4)
    packs = max(1.0, rollouts * lengths.rollout / filled / ranks)
    tokens = rollouts * lengths.rollout
    return tokens * (pack / filled if layout.pipeline > 1 else 1), packs


def _updates(config: Config) -> int:
    return max(1, config.grpo.rollouts_per_step // config.policy.train_global_batch_size)


def _token_flops(shape: ModelShape, length: float) -> float:
    """Of a forward pass, for one token of a sequence: two per weight, and causal attention."""
    weights = shape.layers * shape.layer_parameters + shape.embedding_parameters
    return 2 * weights + 2 * shape.layers * shape.heads * shape.head_size * length


def _handover(config: Config, shape: ModelShape, memory: Memory) -> Duration:
    """New weights to vLLM; where it shares the GPUs, training moves to the host and back too."""
    parts = {part.name: part.bytes for part in memory.parts}
    shared = config.policy.generation.colocated.enabled
    moved = 2 * (parts["weights"] + parts["optimizer"]) if shared else 0
    sent = 2 * shape.parameters
    note = f"({in_gb(sent, 1)} of weights + {in_gb(moved, 1)} to the host and back)"
    seconds = (sent + moved) / _HANDOVER_BYTES
    return Duration("handover", seconds, f"{note} at {in_gb(_HANDOVER_BYTES)}/s")


def total(parts: Iterable[Duration]) -> float:
    """Seconds of all parts."""
    return sum(part.seconds for part in parts)


# --- workload -------------------------------------------------------------------------------------


#: Of English text, in vocabularies of 100,000 words and more.
_CHARACTERS_PER_TOKEN = 4
#: Models are loaded and vLLM is compiled; assumed.
START_SECONDS = 900
#: Replies as short as this share of `max_new_tokens` in the mean, and ...
_SHORT_REPLIES, _FULL_REPLIES = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A task's prompts and the sets that they form, counted by split."""

    prompts: Mapping[str, int]
    sets: Mapping[str, int]
    set_size: int  # 1 when the environment needs no sets
    reference_generations: int  # per prompt; 0 when the environment needs no reference
    prompt_characters: float = 0.0  # the mean over the prompts to train on
    longest_prompt: int = 0  # of them, in characters
    blinds: bool = False  # the environment can take out of a prompt what must not decide
    mixed: bool = False  # several tasks, whose sets differ in size; `set_size` is that of a round
    reference_prompts: int | None = None  # None: all

    def steps(self, config: Config) -> int:
        """How many steps a run trains."""
        return total_steps(self.prompts.get(TRAIN_SPLIT, 0), config)


def workload_of(
    records: Sequence[PromptRecord],
    set_size: int = 1,
    reference_generations: int = 0,
    *,
    blinds: bool = False,
    mixed: bool = False,
    reference_prompts: int | None = None,
) -> Workload:
    """Count the prompts and sets of each split, and measure those to train on."""
    prompts = Counter(record.split for record in records)
    sets = Counter(split for split, _ in {(record.split, record.set_id) for record in records})
    lengths = [
        sum(len(message["content"]) for message in record.messages)
        for record in records
        if record.split == TRAIN_SPLIT
    ] or [0]
    mean = sum(lengths) / len(lengths)
    return Workload(
        *(prompts, sets, set_size, reference_generations, mean, max(lengths)),
        *(blinds, mixed, reference_prompts),
    )


def total_generations(config: Config, engine: Engine, workload: Workload) -> int:
    """How many completions a run samples, stages and training together."""
    return sum(count for count, _ in generations(config, engine, workload).values())


def generations(config: Config, engine: Engine, workload: Workload) -> dict[str, tuple[int, str]]:
    """Stage -> its completions, and how they come about."""
    grpo, evaluation = config.grpo, config.equipoise.evaluation
    steps = workload.steps(config)
    rollouts = grpo.rollouts_per_step
    referenced, number = workload.reference_prompts, workload.reference_generations
    reference = number * (sum(workload.prompts.values()) if referenced is None else referenced)
    of_prompts = "every prompt" if referenced is None else f"{referenced:,} prompts"
    evaluated = workload.prompts.get(evaluation.split, 0) * evaluation.generations
    of_each = f"{evaluation.generations} of every {evaluation.split} prompt"
    return {
        "reference": (reference, f"{number} of {of_prompts}"),
        "baseline": (evaluated, of_each),
        "probe": _probe(config, workload),
        "training": (steps * rollouts, f"{steps:,} steps of {rollouts:,}"),
        "validation": _validation(config, workload, steps) if engine == "nemo_rl" else (0, ""),
        "final": (evaluated, of_each),
    }


#: Replies of the model to a prompt of the probe, and to a blinded prompt at most.
PROBE_GENERATIONS, BLINDED_GENERATIONS = 4, 8
#: Sentences that a constant reply is made longer by, other replies that are tried as one, and
#: policies that are scored on the evaluation's prompts, at most.
PROBE_SENTENCES, _OTHER_CONSTANTS, PROBE_POLICIES = 24, 16, 11


def _probe(config: Config, workload: Workload) -> tuple[int, str]:
    """Completions of the probe, see `equipoise.train.stages.probe`."""
    settings, evaluation = config.equipoise.probe, config.equipoise.evaluation
    if not settings.prompts:
        return 0, ""
    evaluated = workload.prompts.get(evaluation.split, 0)
    searched = PROBE_GENERATIONS * settings.prompts
    greedy = 2 * evaluated  # of the untrained model and of the trained one
    blinded = evaluated * min(evaluation.generations, BLINDED_GENERATIONS) * workload.blinds
    return searched + greedy + blinded, "of policies without skill"


def probe_replies(config: Config, workload: Workload) -> int:
    """The replies that the probe has scored without generating them, about that many at most."""
    settings = config.equipoise.probe
    tried = settings.constants + _OTHER_CONSTANTS + settings.rounds * PROBE_SENTENCES
    evaluated = workload.prompts.get(config.equipoise.evaluation.split, 0)
    return tried * settings.prompts + PROBE_POLICIES * evaluated if settings.prompts else 0


def _validation(config: Config, workload: Workload, steps: int) -> tuple[int, str]:
    """Completions of all validations, before the first step, every `val_period` and at the end."""
    grpo = config.grpo
    available = workload.prompts.get(VALIDATION_SPLIT, 0)
    if not grpo.val_period or not available:
        return 0, ""
    times = 1 + -(-steps // grpo.val_period)
    batch = grpo.val_batch_size or available  # NeMo-RL counts batches, of which the last is partial
    prompts = min(available, (grpo.max_val_samples or available) // batch * batch)
    note = f"{times:,} times {grpo.num_generations_per_prompt} of {prompts:,} prompts"
    return times * prompts * grpo.num_generations_per_prompt, note


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds of a step by its parts, and of all that is sampled outside the steps, by stage."""

    step: tuple[Duration, ...]
    evaluations: Mapping[str, float]
    steps: int

    @property
    def evaluation(self) -> float:
        """Seconds of all evaluations."""
        return sum(self.evaluations.values())

    @property
    def before_first_step(self) -> float:
        """Seconds of those that training waits for; the first of the validations is not counted."""
        return sum(self.evaluations.get(stage, 0.0) for stage in ("reference", "baseline", "probe"))

    @property
    def hours(self) -> float:
        """Of the run from its start."""
        return (START_SECONDS + self.steps * total(self.step) + self.evaluation) / 3_600


def run_time(config: Config, workload: Workload) -> tuple[RunTime, RunTime] | str:
    """The least and the most that is likely, or why there is no estimate.

    The least has replies of half of `max_new_tokens` and the fastest of the published steps, the
    most full replies and the slowest.
    """
    shape = model_shape(config.policy.model_name)
    if shape is None:
        return f"unknown: {config.policy.model_name}"
    if config.equipoise.gpu is None:
        return "equipoise.gpu is null"
    if config.policy.precision == "float32":
        return "not known for policy.precision=float32"
    return (
        _run_time(config, shape, workload, _SHORT_REPLIES, FASTEST),
        _run_time(config, shape, workload, _FULL_REPLIES, SLOWEST),
    )


def _run_time(
    config: Config, shape: ModelShape, workload: Workload, replies: float, factor: float
) -> RunTime:
    grpo, new_tokens = config.grpo, config.policy.generation.max_new_tokens
    # Tokens are guessed from characters; no prompt is longer than what replies leave.
    room = max(1, config.policy.max_total_sequence_length - new_tokens)
    prompt, longest = (
        min(characters / _CHARACTERS_PER_TOKEN, room)
        for characters in (workload.prompt_characters, workload.longest_prompt)
    )
    lengths = Lengths(prompt, replies * new_tokens, longest, replies * new_tokens)
    parts = tuple(
        Duration(part.name, factor * part.seconds, part.formula)
        for part in step_time(config, shape, lengths)
    )
    validated = grpo.val_batch_size or grpo.max_val_samples or grpo.num_prompts_per_step
    sampled = {}
    for stage, (count, _) in generations(config, "nemo_rl", workload).items():
        at_once = config.equipoise.evaluation.batch_size
        if stage == "validation":
            at_once = validated * grpo.num_generations_per_prompt
        if stage != "training":
            sampled[stage] = factor * sampling_seconds(config, shape, lengths, count, at_once)
    return RunTime(parts, sampled, workload.steps(config))
