"""Evaluations before and after training, by the rollouts of NeMo-RL's `validate()`.

Not by `validate()` itself: it never samples at temperature 0, as the probe does, and returns means
in place of replies and their tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from environments.base import PromptRecord, Rollout
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.run.job import Job
from equipoise.run.rollouts import read_rollouts, write_rollouts
from equipoise.statistics.trivial import GREEDY
from equipoise.train.nemo_rl.scoring import MessageLog, datum, single_turn_return, to_rollouts

#: The folder of replies that no stage has taken yet.
PARTS = "parts"


@dataclass(slots=True)
class Sampler:
    """Replies of the policy after `step` steps, by the function that generates in training.

    They are kept in parts: what was generated before a kill is not generated again.
    """

    job: Job
    step: int
    generation: Any
    tokenizer: Any
    stop_requested: Callable[[], bool]
    last: list[MessageLog] = field(init=False, default_factory=list)  # of the last part

    def __call__(
        self, records: Sequence[PromptRecord], generations: int, label: str
    ) -> list[Rollout]:
        """Sample so many replies to each prompt. Raises `Stopped` between two parts."""
        rows = [record for record in records for _ in range(generations)]
        size = self.job.config.equipoise.evaluation.batch_size
        folder = self.job.run.root / PARTS / f"{self.step}-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        rollouts: list[Rollout] = []
        with self.job.display.progress(label, len(rows)) as bar:
            for start in range(0, len(rows), size):
                path = folder / f"{start:09}.jsonl"
                if not path.exists():
                    if self.stop_requested():
                        raise Stopped
                    part = self._generate(rows[start : start + size], greedy=label == GREEDY)
                    write_rollouts(path, part)
                rollouts += read_rollouts(path)
                bar(len(rollouts))
        return rollouts

    def _generate(self, records: Sequence[PromptRecord], *, greedy: bool) -> list[Rollout]:
        """Generate a reply to each prompt; an environment without rewards ends its conversation."""
        import ray
        from nemo_rl.data.collate_fn import rl_collate_fn
        from nemo_rl.experience import rollouts

        def end_conversations(_: Any, metadata: list[Any]) -> Any:
            return ray.put(single_turn_return([0.0] * len(metadata), metadata))

        config, task = self.job.config, self.job.environment.name
        run: Callable[..., Any] = rollouts.run_multi_turn_rollout
        if config.policy.generation.vllm_cfg.async_engine:
            run = rollouts.run_async_multi_turn_rollout
        data = [datum(record, task, self.tokenizer, None, n) for n, record in enumerate(records)]
        batch, _ = run(
            self.generation,
            rl_collate_fn(data),
            self.tokenizer,
            {task: SimpleNamespace(step=SimpleNamespace(remote=end_conversations))},
            max_seq_len=config.policy.max_total_sequence_length,
            max_rollout_turns=1,
            greedy=greedy,
        )
        self.last = batch["message_log"]
        lengths = [[len(message["token_ids"]) for message in log[:2]] for log in self.last]
        if missing := sum(len(pair) < 2 for pair in lengths):
            raise EquipoiseError(
                "nemo-rl.missing-replies",
                f"{missing} of {len(records)} replies were not generated, nemo_rl.log says why",
                "Remove the cause, then continue with --resume.",
            )
        read, written = map(sum, zip(*lengths, strict=True))
        self.job.meter.add_tokens(read, written)
        return to_rollouts(self.last, batch["extra_env_info"])
