"""NeMo-RL's Single Controller without NeMo-RL, in virtual time, and an account of what it trains.

Each stand-in names what it stands for, of main of August 2026. The real ones take their place in
tests/contract/test_single_controller.py, where the same account is kept.
"""

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from environments.base import PromptRecord

PARTITION = "rollouts"
GENERATIONS = 2
LOOK = 0.02  # s, of virtual time


class Characters:
    """A tokenizer whose tokens are characters; a NUL pads."""

    pad_token_id = 0

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> str:
        return "".join(message["content"] for message in messages)

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in ids.tolist() if token)


def records(sets: int, set_size: int) -> list[PromptRecord]:
    """Whole sets of the training split."""
    return [
        PromptRecord(
            f"{s}-{p}", "toy", ({"role": "user", "content": f"{s}:{p}?"},), str(s), "train", {}
        )
        for s in range(sets)
        for p in range(set_size)
    ]


def reward_of(reply: str) -> float:
    """What the environment gives a reply."""
    return float(int(reply) % 1009)


@dataclass(frozen=True, slots=True)
class Meta:
    """`nemo_rl.data_plane.KVBatchMeta`."""

    sample_ids: list[str]
    partition_id: str = PARTITION

    def concat(self, *others: "Meta") -> "Meta":
        return Meta([row for meta in (self, *others) for row in meta.sample_ids])


@dataclass(slots=True)
class DataPlane:
    """`nemo_rl.data_plane.adapters.noop.NoOpDataPlaneClient`; an answer may take a while."""

    rng: random.Random
    rows: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    async def put_samples(self, sample_ids: Sequence[str], partition_id: str, fields: Any) -> None:
        await asyncio.sleep(self.rng.choice([0, 0, 0.002]))
        for number, row in enumerate(sample_ids):
            columns = {name: column[number] for name, column in fields.items()}
            self.rows[row] = self.rows.get(row, {}) | columns

    async def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        await asyncio.sleep(self.rng.choice([0, 0, 0.002]))
        rows = [self.rows[row] for row in sample_ids]
        return {
            name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)
            if rows[0][name].dim()
            else torch.stack([row[name] for row in rows])
            for name in select_fields
        }

    async def clear_samples(self, sample_ids: Sequence[str], partition_id: str) -> None:
        for row in sample_ids:
            del self.rows[row]


@dataclass(slots=True)
class Buffer:
    """`nemo_rl.algorithms.async_utils.replay_buffer.TQReplayBuffer`."""

    data_plane: DataPlane
    meta_list: list[Meta | None] = field(default_factory=list)
    start_weight_list: list[int] = field(default_factory=list)
    ready_list: list[bool] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def reserve(self, group: str, weight_version: int) -> None:
        self.meta_list.append(None)
        self.start_weight_list.append(weight_version)
        self.ready_list.append(False)
        self.groups.append(group)

    async def commit(self, group: str, fields: dict[str, torch.Tensor]) -> None:
        rows = [f"{group}_g{number}" for number in range(GENERATIONS)]
        await self.data_plane.put_samples(rows, PARTITION, fields)
        slot = self.groups.index(group)
        self.meta_list[slot], self.ready_list[slot] = Meta(rows), True

    def remove_group(self, group: str) -> None:
        self._delete(self.groups.index(group))

    async def remove(self, slots: Sequence[int], remove_in_dp: bool) -> int:
        rows = [row for slot in slots for row in getattr(self.meta_list[slot], "sample_ids", ())]
        for slot in sorted(slots, reverse=True):
            self._delete(slot)
        if remove_in_dp and slots:
            await self.data_plane.clear_samples(rows, PARTITION)
        return len(slots)

    def _delete(self, slot: int) -> None:
        for column in (self.meta_list, self.start_weight_list, self.ready_list, self.groups):
            del column[slot]  # type: ignore[attr-defined]

    async def _call_dp(self, name: str, **arguments: Any) -> Any:
        return await getattr(self.data_plane, name)(**arguments)


@dataclass(slots=True)
class Account:
    """What was generated, scored and trained, kept beside the sampler, and its faults.

    It knows each group by the name that its rollout had, and nothing of the sampler.
    """

    set_size: int
    window: int
    generated: dict[str, tuple[PromptRecord, int]] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    calls: list[Counter[str]] = field(default_factory=list)

    def score(self, conversations: Sequence[Any], metadata: Sequence[Any]) -> list[float]:
        """Be the environment, which needs whole sets."""
        self.calls.append(Counter(info["prompt_id"] for info in metadata))
        sets: dict[str, Counter[str]] = {}
        for info in metadata:
            sets.setdefault(info["set_id"], Counter())[info["prompt_id"]] += 1
        for prompts in sets.values():
            assert len(prompts) == self.set_size, f"a part of a set was scored: {prompts}"
            assert len(set(prompts.values())) == 1, f"unlike parts of a set: {prompts}"
        for (prompt, reply), info in zip(conversations, metadata, strict=True):
            set_id, number = info["prompt_id"].split("-")
            assert prompt["content"] == f"{set_id}:{number}?", "another prompt's reply"
            assert reply["role"] == "assistant"
        return [reward_of(reply["content"]) for _, reply in conversations]

    def train(self, rows: Sequence[str], step: int, values: Callable[[str], Any]) -> int:
        """Be the trainer: check a chunk of a step, return how many groups it has."""
        groups = list(dict.fromkeys(row.rpartition("_g")[0] for row in rows))
        sizes = Counter(row.rpartition("_g")[0] for row in rows)
        assert sizes == dict.fromkeys(groups, GENERATIONS), "a part of a group was trained"
        assert not set(groups) & set(self.trained), "a group was trained twice"
        self.trained += groups
        prompts = Counter(self.generated[group][0].id for group in groups)
        by_set: dict[str, list[int]] = {}
        for name, times in prompts.items():
            by_set.setdefault(name.split("-")[0], []).append(times)
        for set_id, times in by_set.items():
            assert len(times) == self.set_size, f"set {set_id} was trained in pieces"
            assert len(set(times)) == 1, f"set {set_id} was trained in unlike parts"
        for group in groups:
            age = step - self.generated[group][1]
            assert 0 <= age <= self.window, f"a group was trained {age} steps after its weights"
        rows_by_prompt = {name: times * GENERATIONS for name, times in prompts.items()}
        assert self.calls[-1:] == [rows_by_prompt], "a chunk was not scored by one call"
        for row in rows:
            reply, reward = values(row)
            assert reward == reward_of(reply), "a row has another reply's reward"
        return len(groups)


@dataclass(frozen=True, slots=True)
class Fates:
    """What happens to rollouts: how often they fail, are lost, and how long they take."""

    rng: random.Random
    failing: float
    lost: float
    slow: float

    def seconds(self) -> float:
        return self.rng.uniform(0, 0.02) * (20 if self.rng.random() < self.slow else 1)

    def outcome(self) -> str:
        draw = self.rng.random()
        if draw < self.lost:
            return "lost"
        return "fails" if draw < self.lost + self.failing else "replies"


@dataclass(slots=True)
class Controller:
    """`nemo_rl.algorithms.single_controller.SingleControllerActor`: its two pumps."""

    sampler: Any
    buffer: Buffer
    account: Account
    fates: Fates
    batches: Iterator[Sequence[PromptRecord]]
    names: Iterator[int]
    step_size: int
    min_groups: int
    capacity: int
    most_in_flight: int
    step: int = 0
    weights: int = 0
    evicted: int = 0
    in_flight: dict[str, tuple[asyncio.Task[None], int]] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.weights = self.step
        self.permits = asyncio.Semaphore(self.capacity - len(self.buffer.groups))
        self.slots = asyncio.Semaphore(self.most_in_flight)
        self.permitted = asyncio.Event()
        self.permitted.set()
        self.exhausted = False
        self.sampler.set_dispatch_index(self.step)

    permits: asyncio.Semaphore = field(init=False)
    slots: asyncio.Semaphore = field(init=False)
    permitted: asyncio.Event = field(init=False)
    exhausted: bool = field(init=False)

    async def run(self, steps: int) -> None:
        """Train to that step, then stop as a kill does."""
        rollouts = asyncio.create_task(self._rollout_pump())
        training = asyncio.create_task(self._train_pump(steps))
        try:
            done, _ = await asyncio.wait({rollouts, training}, return_when=asyncio.FIRST_COMPLETED)
            if rollouts in done:
                await rollouts
            await training
        finally:
            pending = {rollouts, training, *self.tasks}
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _rollout_pump(self) -> None:
        for batch in self.batches:
            assert await self.sampler.admit(trainer_version_fn=lambda: self.step) is None
            for record in batch:
                await self.permits.acquire()
                await self.slots.acquire()
                await self.permitted.wait()
                task = asyncio.create_task(self._generate_and_push(record))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        await asyncio.gather(*self.tasks)
        self.exhausted = True

    async def _generate_and_push(self, record: PromptRecord) -> None:
        try:
            while True:
                group = f"group{next(self.names)}"
                start = self.weights
                self.buffer.reserve(group, start)
                task = asyncio.current_task()
                assert task is not None
                self.in_flight[group] = (task, start)
                try:
                    try:
                        await asyncio.sleep(self.fates.seconds())
                    finally:
                        self.in_flight.pop(group)
                except asyncio.CancelledError:
                    self.buffer.remove_group(group)
                    raise
                outcome = self.fates.outcome()
                if outcome == "replies":
                    self.account.generated[group] = (record, start)
                    await self.buffer.commit(group, self._columns(record, group))
                    return
                self.buffer.remove_group(group)
                if outcome == "lost":
                    self.permits.release()
                    return
                await asyncio.sleep(self.fates.rng.uniform(0.01, 0.1))
        except asyncio.CancelledError:
            self.permits.release()
            raise
        finally:
            self.slots.release()

    def _columns(self, record: PromptRecord, group: str) -> dict[str, torch.Tensor]:
        prompt = [ord(letter) for letter in record.messages[0]["content"]]
        replies = [f"{group[5:]}{number}" for number in range(GENERATIONS)]
        rows = [prompt + [ord(letter) for letter in reply] for reply in replies]
        masks = [[0] * len(prompt) + [1] * (len(row) - len(prompt)) for row in rows]
        return {
            "input_ids": torch.tensor(rows),
            "token_mask": torch.tensor(masks),
            "prompt_ids_for_adv": torch.tensor([prompt] * GENERATIONS),
            "total_reward": torch.zeros(GENERATIONS),
        }

    async def _train_pump(self, steps: int) -> None:
        while self.step < steps:
            taken = 0
            while taken < self.step_size:
                await asyncio.sleep(0)
                evicted = await self.sampler.evict(current_train_weight=self.step)
                self.evicted += evicted
                self._release(evicted)
                most = self.step_size - taken
                meta, groups = await self.sampler.select(
                    current_train_weight=self.step,
                    min_prompt_groups=min(self.min_groups, most),
                    max_prompt_groups=most,
                )
                if meta is None:
                    if self.exhausted:
                        raise RuntimeError("rollout exhausted before a complete training step")
                    await asyncio.sleep(LOOK)
                    continue
                self._release(groups)
                assert groups == self.account.train(meta.sample_ids, self.step, self._values)
                await asyncio.sleep(self.fates.seconds())
                await self.buffer.data_plane.clear_samples(meta.sample_ids, PARTITION)
                taken += groups
            assert taken == self.step_size
            self.step += 1
            await self._sync_weights()

    def _values(self, name: str) -> tuple[str, float]:
        row = self.buffer.data_plane.rows[name]
        ids, mask = row["input_ids"], row["token_mask"].bool()
        return "".join(chr(token) for token in ids[mask].tolist()), row["total_reward"].item()

    async def _sync_weights(self) -> None:
        self.permitted.clear()
        stale = [
            task
            for task, start in self.in_flight.values()
            if self.sampler.should_abort_inflight(
                start_weight_version=start, current_train_weight=self.step
            )
        ]
        for task in stale:
            task.cancel()
        await asyncio.gather(*stale, return_exceptions=True)
        await asyncio.sleep(self.fates.seconds())
        self.weights = self.step
        self.permitted.set()

    def _release(self, number: int) -> None:
        for _ in range(number):
            self.permits.release()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training in virtual time; the seed decides all of it."""

    seed: int
    sets: int
    set_size: int
    sets_per_step: int
    window: int
    min_groups: int
    spare_capacity: int
    most_in_flight: int
    failing: float
    lost: float
    slow: float
    restarts: tuple[int, ...]
    steps: int = 4

    @classmethod
    def draw(cls, seed: int) -> "Scenario":
        rng = random.Random(seed)
        set_size, sets_per_step = rng.choice([1, 2, 2, 3, 4]), rng.choice([1, 1, 2, 3])
        step_size, steps = set_size * sets_per_step, 4
        return cls(
            seed=seed,
            sets=rng.choice([1, 2, 3, 7]) + sets_per_step,
            set_size=set_size,
            sets_per_step=sets_per_step,
            window=rng.choice([0, 1, 1, 2]),
            min_groups=rng.choice([1, set_size, step_size]),
            spare_capacity=rng.choice([0, 0, 1, 5]),
            most_in_flight=rng.choice([1, 2, step_size, 3 * step_size]),
            failing=rng.choice([0, 0.1, 0.4]),
            lost=rng.choice([0, 0, 0.05, 0.3]),
            slow=rng.choice([0, 0.1, 0.5]),
            restarts=tuple(sorted(rng.sample(range(1, steps), rng.choice([0, 0, 1, 2])))),
        )

    @property
    def step_size(self) -> int:
        return self.set_size * self.sets_per_step

    def batches(self) -> Iterator[Sequence[PromptRecord]]:
        """Whole sets, adjacent, epoch after epoch; there are always more."""
        rng = random.Random(f"order {self.seed}")
        every, size = records(self.sets, self.set_size), self.set_size
        order: list[PromptRecord] = []
        while True:
            while len(order) < self.step_size:
                for start in rng.sample(range(0, len(every), size), self.sets):
                    order += rng.sample(every[start : start + size], size)
            yield order[: self.step_size]
            order = order[self.step_size :]

    async def train(self, make: Callable[..., Any], account: Account) -> list[Controller]:
        """Train to the last step, with a new process at each restart; return the controllers."""
        rng = random.Random(f"fates {self.seed}")
        fates = Fates(rng, self.failing, self.lost, self.slow)
        data_plane, batches, names = DataPlane(rng), self.batches(), count()
        buffer, step, controllers = Buffer(data_plane), 0, []
        for until in (*self.restarts, self.steps):
            controller = Controller(
                make(buffer),
                buffer,
                account,
                fates,
                batches,
                names,
                self.step_size,
                self.min_groups,
                self.step_size * (self.window + 1) + self.spare_capacity,
                self.most_in_flight,
                step,
            )
            controllers.append(controller)
            await controller.run(until)
            buffer, step = restored(buffer), until
        return controllers


def restored(buffer: Buffer) -> Buffer:
    """The buffer of a resumed run: what was ready when it was saved."""
    ready = [slot for slot, is_ready in enumerate(buffer.ready_list) if is_ready]
    rows = [row for slot in ready for row in buffer.meta_list[slot].sample_ids]  # type: ignore[union-attr]
    data_plane = DataPlane(buffer.data_plane.rng, {r: buffer.data_plane.rows[r] for r in rows})
    return Buffer(
        data_plane,
        [buffer.meta_list[slot] for slot in ready],
        [buffer.start_weight_list[slot] for slot in ready],
        [True] * len(ready),
        [buffer.groups[slot] for slot in ready],
    )


class _Clock(selectors.DefaultSelector):
    """Waits take no time, the clock goes on by what they would have taken."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("deadlock: nothing will ever happen")
        self.now += timeout
        return super().select(0)


def in_virtual_time(work: Any, most: float) -> Any:
    """Run a coroutine to its end. Raises `TimeoutError` after `most` seconds of virtual time."""
    clock = _Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(asyncio.wait_for(work, most))
    finally:
        loop.close()
