"""Batch sizes that nobody chose fit the sets of a user's own cases; chosen ones are refused."""

import pytest
import yaml

from equipoise.config import load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.memory import layout_of
from equipoise.config.training_words import parse_flags
from tests.refusals import refusal

EXAMPLE = CONFIG_FOLDER / "cases" / "chest_pain_gender.yaml"
SCALES = ("local", "small", "medium", "large", "smoke")


def cases_of(values, folder, train=1):
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


def loaded(cases, *words, to_train=True):
    own = ("--model-name=my/model", f"env.fairness.cases_file={cases}")
    return load_config("fairness", parse_flags("x", (*own, *words)), to_train=to_train)


@pytest.mark.parametrize("values", [2, 3, 5])
@pytest.mark.parametrize("scale", SCALES)
def test_sizes_that_nobody_chose_fit_by_themselves(scale, values, tmp_path):
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


def test_the_nearest_size_is_taken_and_told(tmp_path):
    found = loaded(cases_of(3, tmp_path, train=60), "--config=nemo_configs/medium.yaml")
    grpo = found.config.grpo
    # The second is rounded down, so that max_val_samples still holds two batches.
    assert (grpo.num_prompts_per_step, grpo.val_batch_size) == (63, 126)
    assert found.config.policy.train_micro_batch_size == 3
    keys = ("grpo.num_prompts_per_step", "grpo.val_batch_size", "policy.train_micro_batch_size")
    assert all(told.startswith(k) for k, told in zip(keys, found.warnings, strict=False))
    assert "num_prompts_per_step: 63" in found.to_yaml()


def test_of_what_the_local_engine_does_not_read_nothing_is_told(tmp_path):
    (told,) = loaded(cases_of(3, tmp_path), "--config=nemo_configs/small.yaml").warnings
    assert "32 is more than the 12 prompts to train on: taking 12" in told


def test_shipped_cases_have_the_sizes_of_their_scale():
    found = load_config("fairness", parse_flags("x", ["--config=nemo_configs/medium.yaml"]))
    grpo = found.config.grpo
    assert (grpo.num_prompts_per_step, grpo.val_batch_size, found.warnings) == (64, 128, ())


@pytest.mark.parametrize(
    ("key", "size", "train", "fitting"),
    [
        ("grpo.num_prompts_per_step", 32, 60, 33),
        ("grpo.num_prompts_per_step", 1, 60, 3),
        ("grpo.num_prompts_per_step", 32, 1, 12),  # there are no more prompts
        ("grpo.val_batch_size", 64, 60, 63),
    ],
)
def test_a_chosen_size_that_does_not_fit_is_refused_with_one_that_does(
    key, size, train, fitting, tmp_path
):
    cases = cases_of(3, tmp_path, train)
    with refusal("config.problems", f"command line: {key}: ", f"multiple of 3, such as {fitting}"):
        loaded(cases, f"{key}={size}")
    assert loaded(cases, f"{key}={fitting}")
    # Where nothing is trained, no size is refused, and the run can be read again.
    (tmp_path / "config.yaml").write_text(loaded(cases, f"{key}={size}", to_train=False).to_yaml())
    assert load_config("fairness", parse_flags("x", [f"--config={tmp_path / 'config.yaml'}"]))


def test_a_scale_of_ones_own_is_a_choice_and_a_shipped_one_is_none(tmp_path):
    cases, mine = cases_of(3, tmp_path, train=60), tmp_path / "small.yaml"
    mine.write_text((CONFIG_FOLDER / "small.yaml").read_text())
    with refusal("config.problems", mine):
        loaded(cases, f"--config={mine}")
    assert loaded(cases, "--config=nemo_configs/small.yaml")
