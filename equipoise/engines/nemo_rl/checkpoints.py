"""NeMo-RL's checkpoints: the newest one, and the model that it holds."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from data_prep.files import write_folder
from equipoise.errors import EquipoiseError

_PREFIX = "step_"
_MARK = "training_info.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint; NeMo-RL renames its folder to `step_N` when all is written."""

    path: Path
    step: int

    @property
    def weights(self) -> Path:
        """What the training backend wrote of the policy."""
        return self.path / "policy" / "weights"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, which the weights' folder lacks."""
        return self.path / "policy" / "tokenizer"


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint; NeMo-RL resumes from it."""
    found = [
        Checkpoint(path, int(path.name.removeprefix(_PREFIX)))
        for path in folder.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdigit() and (path / _MARK).exists()
    ]
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


def export_model(checkpoint: Checkpoint, destination: Path, base_model: str) -> None:
    """Make `final_checkpoint/` from weights that are in Hugging Face's format already.

    That is a LoRA adapter, or the consolidated weights of the DTensor backend. Raises
    `EquipoiseError` for sharded weights and Megatron's, which NeMo-RL's own tools convert.
    """
    adapter = next(checkpoint.weights.rglob("adapter_model.safetensors"), None)
    consolidated = next(checkpoint.weights.rglob("consolidated"), None)
    source = adapter.parent if adapter else consolidated
    if source is None:
        raise EquipoiseError(
            f"training is finished, and the weights in {checkpoint.weights} are in a format that "
            "transformers cannot read",
            "Convert them with the converters in examples/converters of NeMo-RL into "
            f"{destination}, then run --resume again for the comparison and the report.",
        )

    def write(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        shutil.copytree(checkpoint.tokenizer, folder, dirs_exist_ok=True)
        if adapter:
            _name_base_model(folder / "adapter_config.json", base_model)

    write_folder(destination, write)


def _name_base_model(path: Path, base_model: str) -> None:
    """PEFT loads the model that the adapter's file names; NeMo-RL may leave the name out."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = settings.get("base_model_name_or_path") or base_model
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
