"""Supervised fine-tuning of a LoRA through TRL, merged into its base."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import set_seed

from data_prep.files import create_folder, write_json
from data_prep.warm_start import Example
from equipoise.config import Config
from equipoise.config.schema import LoraConfig
from equipoise.models.causal import LoadedModel
from equipoise.train.local.imitation import imitate
from equipoise.train.local.trainer import prepared, with_adapter

RECORD = "cold_start.json"


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The outcome of a cold start: the merged model, and each step's loss by its number."""

    model: LoadedModel
    losses: dict[int, float]


def train(
    loaded: LoadedModel,
    examples: Sequence[Example],
    config: Config,
    progress: Callable[[int], None],
) -> ColdStart:
    """Imitate the examples with a LoRA; `progress` takes the steps done.

    Raises `EquipoiseError` for an example that the sequence length does not hold.
    """
    settings = config.equipoise.cold_start
    set_seed(config.grpo.seed)
    model = with_adapter(prepared(loaded.model, config), _lora(config))
    losses = imitate(
        model,
        loaded.tokenizer,
        examples,
        config,
        settings.batch_size,
        settings.learning_rate,
        progress,
    )
    merged = model.merge_and_unload()
    return ColdStart(LoadedModel(merged, loaded.tokenizer, loaded.identity), losses)


def _lora(config: Config) -> LoraConfig:
    """The run's, even where the run itself trains all weights."""
    return config.policy.dtensor_cfg.lora_cfg.model_copy(update={"enabled": True})


def save(
    trained: ColdStart, examples: Sequence[Example], config: Config, destination: Path
) -> None:
    """Write the model, its tokenizer and what it was made of into a new folder."""
    content = json.dumps([asdict(example) for example in examples]).encode()
    record = {
        "schema": 1,
        "task": config.equipoise.task,
        "base": trained.model.identity,
        "examples": {"count": len(examples), "sha256": hashlib.sha256(content).hexdigest()},
        "settings": config.equipoise.cold_start.model_dump(),
        "lora": _lora(config).model_dump(),
        "seed": config.grpo.seed,
        "loss": trained.losses,
    }

    def fill(folder: Path) -> None:
        trained.model.model.save_pretrained(folder)
        trained.model.tokenizer.save_pretrained(folder)
        write_json(folder / RECORD, record)

    create_folder(destination, fill)
