"""Batch sizes that nobody chose fit the sets of a user's own cases; chosen ones are refused."""

from pathlib import Path

import pytest
import yaml

from equipoise.config import LoadedConfig, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.memory import layout_of
from equipoise.config.training_words import parse_flags
from tests.refusals import refusal

EXAMPLE = CONFIG_FOLDER / "cases" / "chest_pain_gender.yaml"
SCALES = ("local", "small", "medium", "large", "smoke")


def cases_of(values: int, folder: Path, train: int = 1) -> Path:
    """The example's cases and many like them, of whom `train` are trained on: 4 sets for each."""
    tree = yaml.safe_load(EXAMPLE.read_text())
    words = {f"value {n}": {f: f"{f} {n}" for f in ("person", "subject", "possessive")}
             for n in range(values)}  # fmt: skip
    tree["attribute"] = {"name": "income", "values": words}
    text = tree["cases"]["muscle"]["text"]
    more = {f"case {n}": {"text": f"{n}: {text}", "severity": "mild"} for n in range(train)}
    tree["cases"] |= more
    tree |= {"train": list(more), "validate": ["rest"]}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def loaded(cases: Path, *words: str, to_train: bool = True) -> LoadedConfig:
    own = ("--model-name=my/model", f"env.fairness.cases_file={cases}")
    return load_config("fairness", parse_flags("x", (*own, *words)), to_train=to_train)


@pytest.mark.parametrize("values", [2, 3, 4, 5])
@pytest.mark.parametrize("scale", SCALES)
def test_sizes_that_nobody_chose_fit_by_themselves(scale: str, values: int, tmp_path: Path) -> None:
    train = 1 if values % 2 else 60
    found = loaded(cases_of(values, tmp_path, train), f"--config=nemo_configs/{scale}.yaml")
    grpo, policy = found.config.grpo, found.config.policy
    assert grpo.num_prompts_per_step % values == 0
    assert grpo.num_prompts_per_step <= 4 * values * train
    rollouts = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    assert policy.train_global_batch_size == rollouts
    ranks = layout_of(found.config).data_parallel if found.engine == "nemo_rl" else 1
    assert rollouts % ranks == 0
    assert rollouts // ranks % policy.train_micro_batch_size == 0
    assert grpo.val_batch_size and grpo.val_batch_size % values == 0


def test_the_nearest_size_is_taken_and_told(tmp_path: Path) -> None:
    found = loaded(cases_of(3, tmp_path, train=60), "--config=nemo_configs/medium.yaml")
    assert found.config.grpo.num_prompts_per_step == 63
    # Rounded down, so that max_val_samples still holds two batches.
    assert found.config.grpo.val_batch_size == 126
    assert found.config.policy.train_micro_batch_size == 3
    assert found.warnings[:3] == (
        "grpo.num_prompts_per_step 64 is not whole counterfactual sets of 3: taking 63",
        "grpo.val_batch_size 128 is not whole counterfactual sets of 3: taking 126",
        "policy.train_micro_batch_size 4 does not divide 126 rollouts: taking 3",
    )
    assert "num_prompts_per_step: 63" in found.to_yaml()


def test_of_what_the_local_engine_does_not_read_nothing_is_told(tmp_path: Path) -> None:
    found = loaded(cases_of(3, tmp_path), "--config=nemo_configs/small.yaml")
    assert found.warnings == (
        "grpo.num_prompts_per_step 32 is more than the 12 prompts to train on: taking 12",
    )


def test_shipped_cases_have_the_sizes_of_their_scale() -> None:
    found = load_config("fairness", parse_flags("x", ["--config=nemo_configs/medium.yaml"]))
    grpo = found.config.grpo
    assert (grpo.num_prompts_per_step, grpo.val_batch_size, found.warnings) == (64, 128, ())


@pytest.mark.parametrize(
    ("word", "key", "fitting"),
    [
        ("grpo.num_prompts_per_step=32", "grpo.num_prompts_per_step", 33),
        ("grpo.num_prompts_per_step=1", "grpo.num_prompts_per_step", 3),
        ("grpo.val_batch_size=64", "grpo.val_batch_size", 63),
    ],
)
def test_a_chosen_size_that_does_not_fit_is_refused_with_one_that_does(
    word: str, key: str, fitting: int, tmp_path: Path
) -> None:
    cases = cases_of(3, tmp_path, train=60)
    with refusal(
        "config.problems",
        "1 problem",
        f"command line: {key}: ",
        f"take a multiple of 3, such as {fitting}",
    ):
        loaded(cases, word)
    assert loaded(cases, f"{key}={fitting}")


def test_no_size_is_named_of_which_there_are_too_few_prompts(tmp_path: Path) -> None:
    with refusal("config.problems", "take a multiple of 3, such as 12"):
        loaded(cases_of(3, tmp_path), "grpo.num_prompts_per_step=32")


def test_a_scale_of_ones_own_is_a_choice_and_a_shipped_one_is_none(tmp_path: Path) -> None:
    cases, mine = cases_of(3, tmp_path, train=60), tmp_path / "small.yaml"
    mine.write_text((CONFIG_FOLDER / "small.yaml").read_text())
    with refusal("config.problems", mine):
        loaded(cases, f"--config={mine}")
    assert loaded(cases, "--config=nemo_configs/small.yaml")


@pytest.mark.parametrize("word", ["grpo.num_prompts_per_step=32", "grpo.val_batch_size=64"])
def test_where_nothing_is_trained_no_size_is_refused(word: str, tmp_path: Path) -> None:
    found = loaded(cases_of(3, tmp_path), word, to_train=False)
    kept = tmp_path / "config.yaml"
    kept.write_text(found.to_yaml())
    assert load_config("fairness", parse_flags("x", [f"--config={kept}"]))
