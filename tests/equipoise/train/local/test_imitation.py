"""Replies to imitate: their tokens are those that TRL would make of them, each made once."""

import pytest
import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from equipoise.models.causal import LoadedModel, load_model
from equipoise.train.local.imitation import _rows
from tests.refusals import refusal


def shown(question: str, reply: str) -> Example:
    return Example(({"role": "user", "content": question},), reply)


EXAMPLES = [shown(f"What about {n % 3}?", f"Drink water {n % 4} and rest.") for n in range(24)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    size = WarmStart(vocab_size=300, hidden_size=32, steps=1, batch_size=16)
    folder = str(warm_start(EXAMPLES[:16], size, tmp_path_factory.mktemp("cache")))
    return load_model(folder, folder, dtype=torch.float32, device=torch.device("cpu"))


def prepared(loaded: LoadedModel, rows: Dataset, folder: str) -> list[dict]:
    """The rows that TRL trains on."""
    settings = SFTConfig(
        output_dir=folder,
        completion_only_loss=True,
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=loaded.model, args=settings, train_dataset=rows, processing_class=loaded.tokenizer
    )
    wanted = [name for name in ("input_ids", "labels") if name in trainer.train_dataset[0]]
    return [{name: list(row[name]) for name in wanted} for row in trainer.train_dataset]


def test_tokens_and_labels_are_trls_own(loaded: LoadedModel, tmp_path) -> None:
    conversations = Dataset.from_list(
        [
            {
                "prompt": [dict(m) for m in e.messages],
                "completion": [{"role": "assistant", "content": e.answer}],
            }
            for e in EXAMPLES
        ]
    )
    theirs = prepared(loaded, conversations, str(tmp_path))
    ours = prepared(loaded, _rows(EXAMPLES, loaded.tokenizer, 512), str(tmp_path))
    assert ours == theirs
    assert len(ours) == len(EXAMPLES)
    assert {"input_ids", "labels"} <= ours[0].keys()
    assert 0 < sum(label != -100 for label in ours[0]["labels"]) < len(ours[0]["labels"])


def test_what_is_shown_again_is_prepared_once(loaded: LoadedModel) -> None:
    rows = _rows(EXAMPLES, loaded.tokenizer, 512)
    assert len(rows) == 24
    assert len(rows.data) == 12  # three questions with four replies


def test_an_example_that_the_length_does_not_hold_is_refused(loaded: LoadedModel) -> None:
    with refusal("first-stage.short-sequences", "4"):
        _rows(EXAMPLES, loaded.tokenizer, 4)
