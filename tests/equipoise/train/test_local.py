"""The local engine: adapters, callbacks of a step, checkpoints, and the reward that TRL gets."""

from functools import partial
from pathlib import Path

import pytest
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from environments.base import PromptRecord, Rollout, Score
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.run.history import append_row, restore, step_row
from equipoise.run.job import FailureMonitor
from equipoise.run.rollouts import TrainingRollouts, choose, read_kept
from equipoise.train.local import reward_function, with_adapter
from equipoise.train.local_callbacks import (
    CheckpointCallback,
    RolloutsCallback,
    StopCallback,
    checkpoint_path,
    finish_checkpoint,
    latest_checkpoint,
)
from tests.equipoise.train.toy import Toy

LORA = "policy.dtensor_cfg.lora_cfg"
BLOCK = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture
def adapted():
    """The last names of the layers that a configuration adapts in a model with tied embeddings."""

    def layers(*words):
        config = load_config("fairness", parse_flags("x", (f"{LORA}.enabled=true", *words))).config
        sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
        layout = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, **layout, tie_word_embeddings=True))
        model = with_adapter(model, config.policy.dtensor_cfg.lora_cfg)
        names = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
        return len(names), {name.rpartition(".")[2] for name in names}

    return layers


def test_every_linear_map_of_every_block_and_not_the_output_layer(adapted):
    assert adapted() == (14, BLOCK)


@pytest.mark.parametrize(
    ("targets", "excluded", "expected"),
    [
        ("['*_proj']", "[]", (14, BLOCK)),
        ("[q_proj, v_proj]", "[]", (4, {"q_proj", "v_proj"})),
        ("['model.layers.0.*.q_proj']", "[]", (1, {"q_proj"})),
        ("[]", "[lm_head, '*.mlp.*']", (8, {"q_proj", "k_proj", "v_proj", "o_proj"})),
    ],
)
def test_layers_by_name_and_by_pattern(targets, excluded, expected, adapted):
    words = (f"{LORA}.target_modules={targets}", f"{LORA}.exclude_modules={excluded}")
    assert adapted(*words) == expected


def end_step(root: Path, *, stop: bool) -> TrainerControl:
    control = TrainerControl()
    callback = StopCallback(FailureMonitor(0.1, 5), lambda: stop)
    callback.on_step_end(TrainingArguments(str(root), use_cpu=True), TrainerState(), control)
    return control


def test_a_request_saves_and_stops(tmp_path: Path):
    assert not end_step(tmp_path, stop=False).should_save
    control = end_step(tmp_path, stop=True)
    assert (control.should_save, control.should_training_stop) == (True, True)


def test_a_checkpoint_holds_the_rollouts_of_its_own_step(tmp_path: Path):
    file = TrainingRollouts(tmp_path / "run" / "rollouts.jsonl", limit=9, steps=9)
    callback = RolloutsCallback(file, partial(choose, limit=1, seed=7))
    sealing = CheckpointCallback(file.path, tmp_path / "none.csv")
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    for step in (1, 2):
        rollout = Rollout("p", "s", "train", "Q", f"reply {step}")
        callback.record([rollout], [Score(1.0)])
        state = TrainerState(global_step=step)
        callback.on_step_end(arguments, state, TrainerControl())
        (tmp_path / f"checkpoint-{step}").mkdir()
        sealing.on_save(arguments, state, TrainerControl())
    kept = [read_kept(tmp_path / f"checkpoint-{step}" / "rollouts.jsonl") for step in (1, 2)]
    assert [[rollout.completion for _, rollout, _ in each] for each in kept] == [
        ["reply 1"],
        ["reply 1", "reply 2"],
    ]


def save(folder: Path, step: int, *, complete: bool) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text("weights")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    if complete:
        append_row(folder / "history.jsonl", {"step": step, "reward": step / 3})
        finish_checkpoint(path, folder / "history.jsonl")
    return path


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path):
    save(tmp_path, 9, complete=True)
    newest = save(tmp_path, 10, complete=True)
    save(tmp_path, 20, complete=False)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (newest, 10)


def test_the_history_comes_back_as_the_checkpoint_knew_it(tmp_path: Path):
    history = tmp_path / "history.jsonl"
    for step in (1, 2):
        save(tmp_path, step, complete=True)
    whole = history.read_bytes()
    history.write_text("other rows\n")
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    restore(history, newest.path / history.name)
    assert history.read_bytes() == whole
    restore(history, None)
    assert not history.exists()


RECORDS = [
    PromptRecord("a", "toy", ({"role": "user", "content": "A"},), "s", "train", {"gold": "1"}),
    PromptRecord("b", "toy", ({"role": "user", "content": "B"},), "s", "train", {"gold": "2"}),
]


@pytest.fixture
def monitor():
    return FailureMonitor(max_rate=0.1, window=1)


def test_trl_gets_values_in_order_and_none_for_what_failed(monitor) -> None:
    rows = []
    kept = []
    score = reward_function(Toy(), RECORDS, monitor, rows.append, lambda *step: kept.append(step))
    prompts, logged = ["<A>", "<B>", "<B>", "<B>"], {}
    values = score(
        prompts=prompts,
        completions=["1", "2", "", "1"],
        index=[0, 1, 1, 1],
        log_metric=logged.__setitem__,
    )
    assert logged == {"env/accuracy": pytest.approx(2 / 3)}
    assert values == [1.0, 1.0, None, 0.0]
    assert monitor.exceeded
    assert rows[0]["failures"] == 1
    assert rows[0]["reward"] == pytest.approx(2 / 3)
    assert rows[0]["env/accuracy"] == pytest.approx(2 / 3)
    ((rollouts, scores),) = kept
    assert [rollout.prompt for rollout in rollouts] == prompts
    assert [score.value for score in scores] == values


def test_a_step_in_which_nothing_could_be_scored_has_no_reward(monitor) -> None:
    rows = []
    score = reward_function(Toy(), RECORDS, monitor, rows.append, lambda *_: None)
    assert score(prompts=["<A>", "<B>"], completions=["", ""], index=[0, 1]) == [None, None]
    assert "reward" not in rows[0]
    assert rows[0]["failures"] == 2


def test_components_are_means_over_the_rollouts_that_have_them() -> None:
    scores = [Score(1.0, {"x": 1.0, "y": 3.0}), Score(0.0, {"x": 0.0})]
    row = step_row(Toy(), [], scores)
    assert (row["reward/x"], row["reward/y"]) == (0.5, 3.0)
