"""Steps are as large as the prompts allow, where the user has chosen no size."""

import json
from pathlib import Path

import pytest

from data_prep.records import write_prompts
from equipoise.config import LoadedConfig, load_config, parse_flags
from equipoise.errors import UsageError
from equipoise.train.stages.prompts import fit_steps, make_prompts

STEP = "grpo.num_prompts_per_step"


def fitted(task: str, *words: str) -> tuple[LoadedConfig, list[str]]:
    """The configuration as a run takes it, and what is said of it once the prompts are made."""
    loaded, said = load_config(task, parse_flags("x", words)), []
    return fit_steps(loaded, make_prompts(loaded), said.append), said


@pytest.mark.parametrize(
    ("task", "words", "prompts", "was"),
    [
        ("fairness", ("--model-size=small", "--num-samples=20", "--device=cpu"), 8, 32),
        ("fairness", ("--num-samples=50",), 36, 64),
        ("pubmedqa", ("--num-samples=20",), 14, 32),
    ],
)
def test_a_step_takes_all_prompts_where_there_are_few(
    task: str, words: tuple[str, ...], prompts: int, was: int
) -> None:
    found, said = fitted(task, *words)
    grpo, policy = found.config.grpo, found.config.policy
    assert grpo.num_prompts_per_step == prompts
    assert policy.train_global_batch_size == prompts * grpo.num_generations_per_prompt
    assert policy.train_global_batch_size % policy.train_micro_batch_size == 0
    assert (
        said[0] == f"{STEP} {was} is more than the {prompts} prompts to train on: taking {prompts}"
    )
    assert [line for line in said if line.startswith(STEP)] == said[:1]


def test_so_it_does_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    records = make_prompts(load_config("fairness", parse_flags("x", ["--num-samples=20"])))
    write_prompts(path, records, {})
    found, _ = fitted("fairness", f"equipoise.data.data_path={path}")
    assert found.config.grpo.num_prompts_per_step == 8


def test_enough_prompts_change_nothing() -> None:
    found, said = fitted("fairness", "--num-samples=240")
    assert (found.config.grpo.num_prompts_per_step, said) == (64, [])


def test_a_chosen_step_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(json.dumps({"grpo": {"num_prompts_per_step": 32}}))
    for chosen in ("--batch-size=32", f"{STEP}=32", f"--config={own}"):
        with pytest.raises(UsageError, match="is 32, and there are 8 prompts") as refused:
            fitted("fairness", "--num-samples=20", chosen)
        assert "--batch-size 8" in refused.value.remedy
