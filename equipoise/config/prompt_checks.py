"""Checks that prompts are fit for training, before anything is loaded."""

import re
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)

from environments.base import CONTROL_SPLIT, TRAIN_SPLIT, PromptRecord

#: How many prompts or sets a message names.
_EXAMPLES = 3
#: What chat templates of common families are written with: <|im_end|>, </s>, [INST], [gMASK].
_MARK = re.compile(
    r"<[|\uff5c][^\s<>|\uff5c]{1,60}[|\uff5c]>|</?s>|<</?SYS>>|<(?:bos|eos|pad|unk)>"
    r"|<(?:start|end)_of_(?:turn|image)>|<0x[0-9A-Fa-f]{2}>|\[/?INST\]|\[g?MASK\]|\[sop\]"
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|\[\|\w{1,60}\|\]"
)


def check_prompts(
    records: Sequence[PromptRecord],
    set_size: int | Mapping[str, int] | None = None,
    render: Callable[[PromptRecord], Hashable] | None = None,
    *,
    to_train: bool = True,
) -> list[str]:
    """Say why prompts are unfit for training, one sentence per kind of fault.

    `render` gives what a model sees of a prompt, its messages in the chat template: NeMo-RL's
    baseline takes two rows with the same tokens for one prompt. Without it the messages decide.
    `set_size` is what every counterfactual set must have; None where there are no sets, or any. Of
    a mixture it is that of each task. A test set that nothing trains on (not `to_train`) needs no
    prompts to train on.
    """
    sizes = set_size if isinstance(set_size, Mapping) else None
    return [
        *_repeated_ids(records),
        *_repeated_prompts(records, render or _messages),
        *(() if sizes is None else _unmixed_tasks(records, sizes, to_train=to_train)),
        *_broken_sets(records, set_size),
        *(_missing_split(records) if to_train else ()),
        *_marked(records, _MARK, "marks of chat templates, which a tokenizer may take for its own"),
    ]


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


def _repeated_ids(records: Iterable[PromptRecord]) -> Iterator[str]:
    counts = Counter(record.id for record in records)
    repeated = [prompt_id for prompt_id, count in counts.items() if count > 1]
    if repeated:
        yield f"{len(repeated)} ids belong to more than one prompt: {_examples(repeated)}"


def _repeated_prompts(
    records: Iterable[PromptRecord], render: Callable[[PromptRecord], Hashable]
) -> Iterator[str]:
    by_text: dict[Hashable, list[PromptRecord]] = defaultdict(list)
    for record in records:
        by_text[render(record)].append(record)
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


def _unmixed_tasks(
    records: Sequence[PromptRecord], tasks: Collection[str], *, to_train: bool
) -> Iterator[str]:
    """Find prompts of tasks that are not in the mixture, and tasks without a prompt to train on."""
    foreign = [f"{r.id} is of {r.task!r}" for r in records if r.task not in tasks]
    if foreign:
        yield f"{len(foreign)} prompts are of no task of the mixture: {_examples(foreign)}"
    trained = {record.task for record in records if record.split == TRAIN_SPLIT}
    if to_train and (missing := [task for task in tasks if task not in trained]):
        yield f"the mixture has tasks without a prompt to train on: {', '.join(missing)}"


def _broken_sets(
    records: Iterable[PromptRecord], set_size: int | Mapping[str, int] | None
) -> Iterator[str]:
    members: dict[str, list[PromptRecord]] = defaultdict(list)
    for record in records:
        members[record.set_id].append(record)
    torn = [name for name, prompts in members.items() if len({p.split for p in prompts}) > 1]
    if torn:
        yield f"{len(torn)} sets lie in more than one split: {_examples(torn)}"
    partial: dict[int, list[str]] = {}
    for name, prompts in members.items():
        size = set_size.get(prompts[0].task) if isinstance(set_size, Mapping) else set_size
        if size is not None and prompts[0].split != CONTROL_SPLIT and len(prompts) != size:
            partial.setdefault(size, []).append(f"{name} has {len(prompts)}")
    for size, names in partial.items():
        yield (f"{len(names)} counterfactual sets do not have {size} prompts: {_examples(names)}")


def _messages(record: PromptRecord) -> Hashable:
    return tuple((message["role"], message["content"]) for message in record.messages)


def _missing_split(records: Iterable[PromptRecord]) -> Iterator[str]:
    if all(record.split != TRAIN_SPLIT for record in records):
        yield f"no prompt has the split {TRAIN_SPLIT}"


def _pair(members: Sequence[PromptRecord], *, other_split: bool) -> str:
    """Two ids of one prompt; a training prompt and one of another split where there are such."""
    if not other_split:
        return f"{members[0].id} = {members[1].id}"
    train = next(member for member in members if member.split == TRAIN_SPLIT)
    copy = next(member for member in members if member.split != TRAIN_SPLIT)
    return f"{train.id} = {copy.id} ({copy.split})"


def _examples(names: Sequence[str]) -> str:
    omitted = len(names) - _EXAMPLES
    return ", ".join(names[:_EXAMPLES]) + (f" and {omitted} more" if omitted > 0 else "")
