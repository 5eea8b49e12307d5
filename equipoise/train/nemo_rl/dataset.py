"""prompts.jsonl as a dataset of NeMo-RL's, which finds the class by its full name."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from nemo_rl.data.datasets.raw_dataset import RawDataset

from equipoise.config.schedule import count_steps, plan
from equipoise.run.task import read_records
from equipoise.train.nemo_rl.scoring import datum


class PromptDataset(RawDataset):
    """Prompts of one split, whole counterfactual sets adjacent, in an order of our own.

    With `max_steps` it is one pass over the schedule of the whole training, so that NeMo-RL, which
    remembers its place in the dataset, resumes in the middle of an epoch without losing a set.
    `spare` goes on for as many steps, for prompts whose rollouts asynchronous GRPO loses.
    Else each prompt comes `generations` times, siblings adjacent, in the file's order.
    """

    def __init__(
        self,
        prompts: str,
        split: str,
        env_name: str,
        prompts_per_step: int = 0,
        max_steps: int = 0,
        max_epochs: int = 1,
        seed: int = 0,
        generations: int = 1,
        spare: bool = False,
        **_: Any,  # what else the entry has is for NeMo-RL itself
    ) -> None:
        self.task_name = env_name
        self._records = [r for r in read_records(Path(prompts)) if r.split == split]
        count = len(self._records)
        if max_steps:
            steps = count_steps(count, prompts_per_step, max_steps, max_epochs)
            order = plan(self._records, prompts_per_step, 2 * steps if spare else steps, seed)
        else:
            order = [index for index in range(count) for _ in range(generations)]
        rows = {"record": list(range(count)), "task_name": [env_name] * count}
        self.dataset = Dataset.from_dict(rows).select(order)
        self.val_dataset = None

    def set_processor(self) -> None:
        """A function instead of a name in NeMo-RL's registry."""
        self.processor = self._process

    def _process(
        self, row: dict[str, Any], _spec: Any, tokenizer: Any, max_length: int | None, idx: int
    ) -> dict[str, Any]:
        return datum(self._records[row["record"]], self.task_name, tokenizer, max_length, idx)
