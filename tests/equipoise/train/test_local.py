"""The local engine: adapters, callbacks of a step, checkpoints, and the reward that TRL gets."""

from dataclasses import replace
from functools import partial

import pytest
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from environments.base import Failure, PromptRecord, Rollout, Score
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.run.history import append_row, restore, step_row
from equipoise.run.job import FailureMonitor
from equipoise.run.ledger import Meter
from equipoise.run.rollouts import TrainingRollouts, choose, read_kept
from equipoise.train.local import (
    StepRecorder,
    finish_checkpoint,
    latest_checkpoint,
    reward_function,
    with_adapter,
)
from tests.equipoise.run.toy import Toy

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


@pytest.fixture
def monitor():
    return FailureMonitor(max_rate=0.1, window=1)


@pytest.fixture
def recorder(tmp_path, monitor):
    file = TrainingRollouts(tmp_path / "run" / "rollouts.jsonl", limit=9, steps=9)
    choice = partial(choose, limit=1, seed=7)
    history, meter = tmp_path / "history.jsonl", Meter()
    return StepRecorder(history, file, choice, monitor, meter, lambda _: None, lambda: False)


ROLLOUT = Rollout("p", "s", "train", "Q", "reply")
END = Failure("verifier_error", "empty")


@pytest.mark.parametrize(("error", "asked"), [(None, False), (None, True), (END, False)])
def test_a_request_and_too_many_failures_save_and_stop(recorder, tmp_path, error, asked):
    recorder.stop_requested = lambda: asked
    recorder.record([ROLLOUT], [Score(None if error else 1.0, error=error)], {})
    control, arguments = TrainerControl(), TrainingArguments(str(tmp_path), use_cpu=True)
    recorder.on_step_end(arguments, TrainerState(global_step=1), control)
    stops = asked or error is not None
    assert (control.should_save, control.should_training_stop) == (stops, stops)


def test_a_checkpoint_holds_the_rollouts_of_its_own_step(recorder, tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    for step in (1, 2):
        recorder.record([replace(ROLLOUT, completion=f"reply {step}")], [Score(1.0)], {})
        state = TrainerState(global_step=step)
        recorder.on_step_end(arguments, state, TrainerControl())
        (tmp_path / f"checkpoint-{step}").mkdir()
        recorder.on_save(arguments, state, TrainerControl())
    kept = [read_kept(tmp_path / f"checkpoint-{step}" / "rollouts.jsonl") for step in (1, 2)]
    assert [[rollout.completion for _, rollout, _ in each] for each in kept] == [
        ["reply 1"],
        ["reply 1", "reply 2"],
    ]


def save(folder, step, *, complete):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text("weights")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    if complete:
        append_row(folder / "history.jsonl", {"step": step, "reward": step / 3})
        finish_checkpoint(path, folder / "history.jsonl")
    return path


def test_the_newest_complete_checkpoint_is_taken(tmp_path):
    save(tmp_path, 9, complete=True)
    newest = save(tmp_path, 10, complete=True)
    save(tmp_path, 20, complete=False)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (newest, 10)


def test_the_history_comes_back_as_the_checkpoint_knew_it(tmp_path):
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


def test_trl_gets_values_in_order_and_none_for_what_failed():
    steps = []
    score = reward_function(Toy(), RECORDS, lambda *step: steps.append(step))
    prompts, logged = ["<A>", "<B>", "<B>", "<B>"], {}
    values = score(
        prompts=prompts,
        completions=["1", "2", "", "1"],
        index=[0, 1, 1, 1],
        log_metric=logged.__setitem__,
    )
    assert logged == {"env/accuracy": pytest.approx(2 / 3)}
    assert values == [1.0, 1.0, None, 0.0]
    ((rollouts, scores, row),) = steps
    assert row["failures"] == 1
    assert row["reward"] == pytest.approx(2 / 3)
    assert row["env/accuracy"] == pytest.approx(2 / 3)
    assert [rollout.prompt for rollout in rollouts] == prompts
    assert [score.value for score in scores] == values


def test_a_step_in_which_nothing_could_be_scored_has_no_reward():
    rows = []
    score = reward_function(Toy(), RECORDS, lambda *step: rows.append(step[-1]))
    assert score(prompts=["<A>", "<B>"], completions=["", ""], index=[0, 1]) == [None, None]
    assert "reward" not in rows[0]
    assert rows[0]["failures"] == 2


def test_components_are_means_over_the_rollouts_that_have_them():
    scores = [Score(1.0, {"x": 1.0, "y": 3.0}), Score(0.0, {"x": 0.0})]
    row = step_row(Toy(), [], scores)
    assert (row["reward/x"], row["reward/y"]) == (0.5, 3.0)
