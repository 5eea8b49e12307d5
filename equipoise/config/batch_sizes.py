"""Batch sizes that no user chose: made to fit counterfactual sets, prompts and GPUs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from equipoise.config.checks import Case, whole_sets_near
from equipoise.config.parallelism import layout_of

_PROMPTS, _VALIDATION = "grpo.num_prompts_per_step", "grpo.val_batch_size"
_MICRO = "policy.train_micro_batch_size"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A batch size in place of one that does not fit, and why that does not."""

    key: str
    before: int
    value: int
    reason: str

    def __str__(self) -> str:
        return f"{self.key} {self.before} {self.reason}: taking {self.value}"


def fit_batch_sizes(case: Case, is_free: Callable[[str], bool]) -> list[Fitted]:
    """Replace batch sizes that do not fit and that `is_free` says may change.

    The micro batch follows the batch of a step, so it is fitted once nothing else has to be.
    """
    fitted = [size for size in _in_sets(case) if is_free(size.key)]
    return fitted or [size for size in _micro_batch(case) if is_free(size.key)]


def _in_sets(case: Case) -> Iterator[Fitted]:
    """Prompts of a step, as many as there are at most, and of a validation batch.

    A validation batch is rounded down: NeMo-RL validates on as many whole batches as fit into
    `max_val_samples`.
    """
    prompts, batch = case.config.grpo.num_prompts_per_step, case.config.grpo.val_batch_size
    size, available = case.set_size, case.training_prompts
    cut = f"is not whole counterfactual sets of {size}"
    if (fitting := whole_sets_near(prompts, size, available)) != prompts:
        few = available is not None and available < prompts
        reason = f"is more than the {available} prompts to train on" if few else cut
        yield Fitted(_PROMPTS, prompts, fitting, reason)
    if batch and batch % size:
        yield Fitted(_VALIDATION, batch, max(size, batch - batch % size), cut)


def _micro_batch(case: Case) -> Iterator[Fitted]:
    """The largest that fills a rank's share of the batch."""
    policy = case.config.policy
    batch, micro = policy.train_global_batch_size, policy.train_micro_batch_size
    ranks = layout_of(case.config).data_parallel if case.engine == "nemo_rl" else 1
    share = batch // ranks if batch % ranks == 0 else batch
    if share % micro:
        fitting = largest_divisor(share, micro)
        yield Fitted(_MICRO, micro, fitting, f"does not divide {share} rollouts")


def largest_divisor(number: int, upper_bound: int) -> int:
    """The largest divisor of a number that is at most `upper_bound`."""
    return max(n for n in range(1, upper_bound + 1) if number % n == 0)
