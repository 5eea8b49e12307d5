"""Keys that cannot work together on an engine, or with a task's sets, each with the reason.

What a section alone can tell is a validator of its class, see schema.py.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from environments.base import CONTROL_SPLIT, TRAIN_SPLIT, PromptRecord
from equipoise.config.nemo_rl_rules import adapts, check_nemo_rl
from equipoise.config.schema import Config, Engine
from equipoise.config.validate import Problem

_LORA = "policy.dtensor_cfg.lora_cfg"
#: Three ways to say which layers get an adapter; NeMo-RL takes one at a time.
_LORA_LAYERS = ("target_modules", "exclude_modules", "match_all_linear")


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration on the engine that is to run it."""

    config: Config
    engine: Engine
    set_size: int  # prompts of a counterfactual set; 1 when the environment needs no sets
    least_generations: int = 1  # that the environment compares with each other
    training_prompts: int | None = None  # None where they are known only once they are made
    to_train: bool = True  # else nothing reads the sizes of batches


Check = Callable[[Case], Iterator[Problem]]


def check_config(case: Case) -> list[Problem]:
    """Collect the combinations of keys that cannot work."""
    checks = (*(_BATCHES if case.to_train else ()), *_CHECKS)
    problems = [problem for check in checks for problem in check(case)]
    return problems + (list(check_nemo_rl(case.config)) if case.engine == "nemo_rl" else [])


def _sets_fill_batches(case: Case) -> Iterator[Problem]:
    grpo, size = case.config.grpo, case.set_size
    batches = {
        "grpo.num_prompts_per_step": (grpo.num_prompts_per_step, case.training_prompts),
        "grpo.val_batch_size": (grpo.val_batch_size, None),
    }
    for key, (prompts, available) in batches.items():
        if prompts is None:
            continue
        nearest = max(size, round(prompts / size) * size)
        if available:
            nearest = min(nearest, max(size, available - available % size))
        if prompts % size:
            yield Problem(
                "sets.cut-set",
                (key,),
                f"{prompts} prompts cut a counterfactual set of {size} apart, and a set can only "
                f"be scored whole; take a multiple of {size}, such as {nearest}",
            )
        elif nearest != prompts:
            yield Problem(
                "batch.too-few-prompts",
                (key,),
                f"there are {available:,} prompts to train on; take {nearest} instead of {prompts}",
            )


def _sets_stay_together(case: Case) -> Iterator[Problem]:
    grpo = case.config.grpo
    if case.set_size > 1 and case.config.data.shuffle:
        yield Problem(
            "sets.shuffled-prompts",
            ("data.shuffle",),
            "shuffling single prompts tears nearly every counterfactual set apart; set it to "
            "false: whole sets are shuffled in any case",
        )
    if case.set_size > 1 and grpo.use_dynamic_sampling:
        yield Problem(
            "sets.dynamic-sampling",
            ("grpo.use_dynamic_sampling",),
            "it drops single prompts and leaves parts of counterfactual sets, which cannot be "
            "scored; set it to false",
        )


def _groups_can_be_compared(case: Case) -> Iterator[Problem]:
    generations = case.config.equipoise.evaluation.generations
    if generations < case.least_generations:
        yield Problem(
            "evaluation.too-few-generations",
            ("equipoise.evaluation.generations",),
            f"this task's reward compares the generations of one prompt, and {generations} of "
            f"them cannot be scored; take at least {case.least_generations}",
        )


def _batches_are_filled(case: Case) -> Iterator[Problem]:
    grpo, policy = case.config.grpo, case.config.policy
    rollouts, batch = grpo.rollouts_per_step, policy.train_global_batch_size
    keys = (
        "policy.train_global_batch_size",
        "grpo.num_prompts_per_step",
        "grpo.num_generations_per_prompt",
    )
    product = (
        f"num_prompts_per_step x num_generations_per_prompt = {grpo.num_prompts_per_step} x "
        f"{grpo.num_generations_per_prompt} = {rollouts}"
    )
    if case.engine == "local" and batch != rollouts:
        yield Problem(
            "batch.several-updates",
            keys,
            f"the local engine makes one update per step, so train_global_batch_size must be "
            f"{product}, not {batch}",
        )
    elif rollouts % batch:
        yield Problem(
            "batch.uneven-updates",
            keys,
            f"train_global_batch_size {batch} does not divide {product}",
        )
    if batch % policy.train_micro_batch_size:
        yield Problem(
            "batch.uneven-micro-batches",
            ("policy.train_micro_batch_size", "policy.train_global_batch_size"),
            f"micro batches of {policy.train_micro_batch_size} do not fill a batch of {batch}; "
            f"take {largest_divisor(batch, policy.train_micro_batch_size)}",
        )


def largest_divisor(number: int, upper_bound: int) -> int:
    return max(n for n in range(1, upper_bound + 1) if number % n == 0)


def _checkpoints_have_their_metric(case: Case) -> Iterator[Problem]:
    grpo, checkpointing = case.config.grpo, case.config.checkpointing
    metric = checkpointing.metric_name
    if not metric or not metric.startswith("val:"):
        return
    if not grpo.val_period or checkpointing.save_period % grpo.val_period:
        yield Problem(
            "checkpointing.rare-metric",
            ("checkpointing.metric_name", "checkpointing.save_period", "grpo.val_period"),
            f"{metric} is not known at every save: grpo.val_period {grpo.val_period} must divide "
            f"checkpointing.save_period {checkpointing.save_period}",
        )


def _output_layer_is_trained(case: Case) -> Iterator[Problem]:
    lora, layer = case.config.policy.dtensor_cfg.lora_cfg, "lm_head"
    adapted = lora.enabled and adapts(layer, lora.target_modules, lora.exclude_modules)
    if case.engine == "local" and adapted:
        yield Problem(
            "lora-keys.untrained-output",
            tuple(f"{_LORA}.{key}" for key in _LORA_LAYERS),
            f"they adapt {layer}, by whose own weights TRL computes log-probabilities, so its "
            "adapter would never be trained; take exclude_modules=[lm_head] with target_modules=[]",
        )


def _local_can_run(case: Case) -> Iterator[Problem]:
    if case.engine == "local" and case.config.cluster.gpus > 1:
        yield Problem(
            "local.several-gpus",
            ("cluster.gpus_per_node", "cluster.num_nodes"),
            f"this configuration needs {case.config.cluster.machines} and NeMo-RL, while the "
            "local engine trains on a CPU or one GPU; run it with --engine nemo_rl on such a "
            "cluster, or take --config nemo_configs/small.yaml (one GPU) or "
            "nemo_configs/local.yaml (CPU)",
        )
    has_lora = case.config.policy.dtensor_cfg.lora_cfg.enabled
    if case.engine == "local" and case.config.equipoise.load_in_4bit and not has_lora:
        yield Problem(
            "local.trained-4-bits",
            ("equipoise.load_in_4bit", "policy.dtensor_cfg.lora_cfg.enabled"),
            "weights in 4 bits cannot be trained, only a LoRA above them: add --lora-rank 32",
        )

    packages: list[str] = [*case.config.logger.report_to]
    packages += ["bitsandbytes"] if case.config.equipoise.load_in_4bit and has_lora else []
    missing = [name for name in packages if find_spec(name) is None]
    if case.engine == "local" and missing:
        yield Problem(
            "local.missing-package",
            ("logger.report_to", "equipoise.load_in_4bit"),
            f"not installed here: {', '.join(missing)}; run `uv pip install {' '.join(missing)}`",
        )


_BATCHES: tuple[Check, ...] = (_sets_fill_batches, _batches_are_filled)
_CHECKS: tuple[Check, ...] = (
    _sets_stay_together,
    _groups_can_be_compared,
    _checkpoints_have_their_metric,
    _output_layer_is_trained,
    _local_can_run,
)


# --- prompt checks --------------------------------------------------------------------------------
# Checks that prompts are fit for training, before anything is loaded.


#: How many prompts or sets a message names.
_EXAMPLES = 3
#: What chat templates of common families are written with: <|im_end|>, </s>, [INST], [gMASK].
_MARK = re.compile(
    r"<[|\uff5c][^\s<>|\uff5c]{1,60}[|\uff5c]>|</?s>|<</?SYS>>|<(?:bos|eos|pad|unk)>"
    r"|<(?:start|end)_of_(?:turn|image)>|<0x[0-9A-Fa-f]{2}>|\[/?INST\]|\[g?MASK\]|\[sop\]"
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|\[\|\w{1,60}\|\]"
)


def check_prompts(
    records: Sequence[PromptRecord], set_size: int | None = None, *, to_train: bool = True
) -> list[str]:
    """Say why prompts are unfit for training, one sentence per kind of fault.

    `set_size` is the size of every counterfactual set; None for any size, and without sets. A test
    set that nothing trains on (not `to_train`) needs no prompts to train on.
    """
    faults: list[str] = []
    counts = Counter(record.id for record in records)
    if repeated := [prompt_id for prompt_id, count in counts.items() if count > 1]:
        faults.append(f"{len(repeated)} ids belong to more than one prompt: {_examples(repeated)}")
    faults += _repeated_prompts(records)
    faults += _broken_sets(records, set_size)
    if to_train and all(record.split != TRAIN_SPLIT for record in records):
        faults.append(f"no prompt has the split {TRAIN_SPLIT}")
    noun = "marks of chat templates, which a tokenizer may take for its own"
    return [*faults, *_marked(records, _MARK, noun)]


def control_token_problems(records: Iterable[PromptRecord], tokens: Collection[str]) -> list[str]:
    """Find prompts with text that a model would read as its control tokens."""
    pattern = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
    return list(_marked(records, pattern, "control tokens of the model's tokenizer"))


def _marked(records: Iterable[PromptRecord], pattern: re.Pattern[str], noun: str) -> Iterator[str]:
    """Find marks, which end a message or begin one that no author wrote."""
    texts = ((r.id, "\n".join(m["content"] for m in r.messages)) for r in records)
    marked = [f"{name} has {mark[0]}" for name, text in texts if (mark := pattern.search(text))]
    if marked:
        yield (
            f"{len(marked)} prompts hold {noun}: {_examples(marked)}; "
            "put a space behind the first sign of each mark, or leave these prompts out"
        )


def _repeated_prompts(records: Iterable[PromptRecord]) -> Iterator[str]:
    by_text: dict[Hashable, list[PromptRecord]] = defaultdict(list)
    for record in records:
        by_text[tuple((m["role"], m["content"]) for m in record.messages)].append(record)
    leaked, doubled = [], []
    for members in by_text.values():
        splits = {member.split for member in members}
        if TRAIN_SPLIT in splits and len(splits) > 1:
            leaked.append(_pair(members, other_split=True))
        elif len(members) > 1:
            doubled.append(_pair(members, other_split=False))
    if leaked:
        yield f"{len(leaked)} training prompts are also in another split: {_examples(leaked)}"
    if doubled:
        yield f"{len(doubled)} prompts occur more than once: {_examples(doubled)}"


def _broken_sets(records: Iterable[PromptRecord], set_size: int | None) -> Iterator[str]:
    members: dict[str, list[PromptRecord]] = defaultdict(list)
    for record in records:
        members[record.set_id].append(record)
    torn = [name for name, prompts in members.items() if len({p.split for p in prompts}) > 1]
    if torn:
        yield f"{len(torn)} sets lie in more than one split: {_examples(torn)}"
    partial = [
        f"{name} has {len(prompts)}"
        for name, prompts in members.items()
        if prompts[0].split != CONTROL_SPLIT and len(prompts) != set_size
    ]
    if partial and set_size is not None:
        yield (
            f"{len(partial)} counterfactual sets do not have {set_size} prompts: "
            f"{_examples(partial)}"
        )


def _pair(members: Sequence[PromptRecord], *, other_split: bool) -> str:
    """Name two ids of one prompt; with `other_split` one of training and one of another split."""
    if not other_split:
        return f"{members[0].id} = {members[1].id}"
    train = next(member for member in members if member.split == TRAIN_SPLIT)
    copy = next(member for member in members if member.split != TRAIN_SPLIT)
    return f"{train.id} = {copy.id} ({copy.split})"


def _examples(names: Sequence[str]) -> str:
    omitted = len(names) - _EXAMPLES
    return ", ".join(names[:_EXAMPLES]) + (f" and {omitted} more" if omitted > 0 else "")
