"""Whole counterfactual sets in NeMo-RL's Single Controller, by its own extension.

`async_rl.sampler.target` of NeMo-RL's configuration names the class, and `create_sampler` makes it,
inside the controller's actor. NeMo-RL's buffer holds a slot for the generations of one prompt, and
knows neither set nor prompt. So each group is recognised by the tokens of its prompt, which no two
prompts share; a resumed run, whose buffer comes from a checkpoint, needs nothing else.

A step takes whole sets, the oldest first, and they are scored by one call when it takes them. A
group that can no longer be trained on is evicted: one that is too old, and one whose siblings will
not come. No slot tells which prompt is being generated, and a retry waits without a slot. So the
siblings are given up on only when a step lacks groups while nothing is generated; a group that
comes later all the same is evicted then, too. `admit` lets out as many batches as NeMo-RL's gated
samplers do, and one more where what is there cannot fill the step.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.records import read_prompts
from environments.base import TRAIN_SPLIT, PromptRecord
from equipoise.train.nemo_rl.scoring import metadata_of, templated

#: So often it looks whether the next batch may be generated.
_LOOK = 0.005  # s
#: Columns of NeMo-RL's data plane: a row is one generation.
_PROMPT, _TOKENS, _REPLY, _REWARD = "prompt_ids_for_adv", "input_ids", "token_mask", "total_reward"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the training split, in its template."""

    record: PromptRecord
    text: str


class PromptTable:
    """The training prompts by their tokens."""

    def __init__(self, records: Iterable[PromptRecord], tokenizer: Any) -> None:
        self._padding = tokenizer.pad_token_id
        self._prompts: dict[bytes, Prompt] = {}
        for record in records:
            text, ids = templated(record, tokenizer)
            first = self._prompts.setdefault(self._key(ids), Prompt(record, text))
            if first.record is not record:
                raise ValueError(f"prompts {first.record.id} and {record.id} have the same tokens")

    def find(self, ids: Any) -> Prompt:
        """The prompt that has these tokens, a tensor [length], padded or not."""
        prompt = self._prompts.get(self._key(ids))
        if prompt is None:
            raise ValueError("a group of the replay buffer is of no training prompt of this run")
        return prompt

    def _key(self, ids: Any) -> bytes:
        tokens = ids.tolist()
        while tokens and tokens[-1] == self._padding:
            tokens.pop()
        return hashlib.sha256(repr(tokens).encode()).digest()


class WholeSetSampler:
    """NeMo-RL's `PromptGroupSampler`; one event loop calls it, and awaits are its only gaps."""

    def __init__(
        self,
        buffer: Any,
        *,
        prompts: str,
        tokenizer: Mapping[str, Any],
        scoring_actor: str,
        set_size: int,
        prompts_per_step: int,
        max_staleness_versions: int,
    ) -> None:
        if prompts_per_step % set_size:
            raise ValueError(f"{prompts_per_step} prompts a step are no whole sets of {set_size}")
        self._buffer, self._scoring_actor = buffer, scoring_actor
        self._set_size, self._step_size = set_size, prompts_per_step
        self._window = max_staleness_versions
        self._tokenizer = _tokenizer_of(tokenizer)
        records = [r for r in read_prompts(Path(prompts)) if r.split == TRAIN_SPLIT]
        self._table = PromptTable(records, self._tokenizer)
        #: Prompts of the ready groups, by the group's first row.
        self._prompts: dict[str, Prompt] = {}
        self._step, self._taken = 0, 0  # how many groups the step has
        self._lacks_groups = False

    # the rollouts' side

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait until the next batch may be generated; no batch belongs to one step alone."""
        await asyncio.sleep(0)  # until the prompts before have their slots
        while not self._has_room(trainer_version_fn()):
            await asyncio.sleep(_LOOK)
        return None

    def _has_room(self, step: int) -> bool:
        self._begin(step)
        held, lacking = len(self._buffer.ready_list), self._step_size - self._taken
        return held + self._step_size <= self._window * self._step_size + lacking or held < lacking

    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Whether a group would be too old when its generation ends."""
        return start_weight_version < current_train_weight - self._window

    def required_buffer_capacity(self, groups_per_step: int) -> int:
        """One batch for every step ahead, and that of the step itself."""
        return groups_per_step * (self._window + 1)

    def set_dispatch_index(self, resume_from_step: int) -> None:
        """Begin at a checkpoint's step."""
        self._begin(resume_from_step)

    @property
    def is_on_policy(self) -> bool:
        """Whether a step trains on replies of its own weights alone."""
        return self._window == 0

    # the training's side

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[Any, int]:
        """Take whole sets out of the buffer, scored; `(None, 0)` where there are too few."""
        self._begin(current_train_weight)
        await self._recognise()
        sets = self._whole_sets()[: max_prompt_groups // self._set_size]
        chosen = [slot for members in sets for slot in members]
        self._lacks_groups = not chosen or len(chosen) < min_prompt_groups
        if self._lacks_groups:
            return None, 0
        metas = [self._buffer.meta_list[slot] for slot in chosen]
        await self._buffer.remove(chosen, remove_in_dp=False)
        self._taken += len(chosen)
        batch = metas[0].concat(*metas[1:])
        await self._score(batch, [self._prompts.pop(_first_row(meta)) for meta in metas])
        return batch, len(chosen)

    async def evict(self, *, current_train_weight: int) -> int:
        """Drop the groups that can no longer be trained on; return how many."""
        self._begin(current_train_weight)
        await self._recognise()
        slots = set(self._ready_slots()) - set(self._fresh_slots())
        if self._lacks_groups and len(self._ready_slots()) == len(self._buffer.ready_list):
            slots |= self._remains()
        evicted: int = await self._buffer.remove(sorted(slots), remove_in_dp=True)
        return evicted

    # what is in the buffer

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._step, self._taken = step, 0

    def _ready_slots(self) -> list[int]:
        """Slots whose prompt is known; a group that came meanwhile is recognised next time."""
        return [
            slot
            for slot, meta in enumerate(self._buffer.meta_list)
            if self._buffer.ready_list[slot] and _first_row(meta) in self._prompts
        ]

    def _fresh_slots(self) -> list[int]:
        oldest = self._step - self._window
        return [s for s in self._ready_slots() if self._buffer.start_weight_list[s] >= oldest]

    def _record(self, slot: int) -> PromptRecord:
        return self._prompts[_first_row(self._buffer.meta_list[slot])].record

    def _whole_sets(self) -> list[list[int]]:
        """Slots of each whole set, the set with the oldest group first.

        A set that comes twice, as in two epochs, is whole as often as each of its prompts is there.
        """
        # Slots by set and prompt, the oldest first.
        by_prompt: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for slot in self._fresh_slots():
            record = self._record(slot)
            set_id = record.set_id if self._set_size > 1 else record.id
            by_prompt[set_id][record.id].append(slot)
        sets = [
            list(members)
            for prompts in by_prompt.values()
            if len(prompts) == self._set_size
            for members in zip(*prompts.values(), strict=False)
        ]
        return sorted(sets, key=min)

    def _remains(self) -> set[int]:
        """Slots of sets that are not whole while nothing is generated.

        Those of the newest set stay: NeMo-RL may be letting its prompts out one by one. They are
        too few to keep a step's batch out.
        """
        in_sets = {slot for members in self._whole_sets() for slot in members}
        remains = [slot for slot in self._fresh_slots() if slot not in in_sets]
        newest = [s for s in remains if self._record(s).set_id == self._record(remains[-1]).set_id]
        return set(remains) - set({self._record(slot).id: slot for slot in newest}.values())

    async def _recognise(self) -> None:
        """Find the prompts of groups that are new in the buffer."""
        metas = {
            _first_row(meta): meta
            for meta, ready in zip(self._buffer.meta_list, self._buffer.ready_list, strict=True)
            if ready
        }
        self._prompts = {row: self._prompts[row] for row in metas if row in self._prompts}
        if new := [row for row in metas if row not in self._prompts]:
            columns = await self._read(new, metas[new[0]].partition_id, _PROMPT)
            for row, ids in zip(new, columns[_PROMPT], strict=True):
                self._prompts[row] = self._table.find(ids)

    # rewards

    async def _score(self, batch: Any, prompts: Sequence[Prompt]) -> None:
        """Write the rewards of whole sets, which a step has taken, into the data plane."""
        columns = await self._read(batch.sample_ids, batch.partition_id, _TOKENS, _REPLY)
        generations = len(batch.sample_ids) // len(prompts)
        rows = [prompt for prompt in prompts for _ in range(generations)]
        replies = [
            self._tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            for ids, mask in zip(columns[_TOKENS], columns[_REPLY], strict=True)
        ]
        conversations = [
            [{"role": "user", "content": p.text}, {"role": "assistant", "content": reply}]
            for p, reply in zip(rows, replies, strict=True)
        ]
        metadata = [metadata_of(prompt.record) for prompt in rows]
        rewards = await rewards_of(self._scoring_actor, conversations, metadata)
        await self._buffer._call_dp(
            "put_samples",
            sample_ids=batch.sample_ids,
            partition_id=batch.partition_id,
            fields=_column(_REWARD, rewards),
        )

    async def _read(self, rows: Sequence[str], partition: str, *names: str) -> dict[str, Any]:
        """Return columns of the data plane, each a tensor for every row."""
        table = await self._buffer._call_dp(
            "get_samples", sample_ids=list(rows), partition_id=partition, select_fields=list(names)
        )
        return {name: table[name].unbind() for name in names}


def _first_row(meta: Any) -> str:
    return str(meta.sample_ids[0])


async def rewards_of(
    actor: str, conversations: Sequence[Sequence[Mapping[str, str]]], metadata: Sequence[Any]
) -> list[float]:
    """Ask the environment's actor of that name for the rewards of whole sets by one call."""
    import ray

    rewards: list[float] = await ray.get_actor(actor).rewards.remote(conversations, metadata)
    return rewards


def _column(name: str, values: Sequence[float]) -> Any:
    import torch
    from tensordict import TensorDict

    column = torch.tensor(values, dtype=torch.float32)
    return TensorDict({name: column}, batch_size=[len(values)])


def _tokenizer_of(settings: Mapping[str, Any]) -> Any:
    """NeMo-RL's own, so that prompts have the tokens that it trains on."""
    from nemo_rl.algorithms.utils import get_tokenizer

    return get_tokenizer(settings)
