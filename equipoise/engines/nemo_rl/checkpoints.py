"""NeMo-RL's checkpoints: the newest one, and the model that it holds."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_prep.files import read_json, write_folder
from equipoise.run.checkpoints import find_checkpoints, newest_whole
from equipoise.run.seals import is_sealed, seal

_PREFIX = "step_"
_MARK = "training_info.json"
#: Beside the shards of the DTensor backend: the configuration, and which file a tensor goes into.
_SHARDS_METADATA = ".hf_metadata"
#: Where NeMo-RL keeps the Megatron form of the model that training began with.
_MEGATRON_CACHE = "${NRL_MEGATRON_CHECKPOINT_DIR:-${HF_HOME:-$HOME/.cache/huggingface}/nemo_rl}"


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
    """The newest complete checkpoint."""
    complete = (each for each in find_checkpoints(folder, _PREFIX) if (each.path / _MARK).exists())
    newest = next(complete, None)
    return Checkpoint(newest.path, newest.step) if newest else None


def usable_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint that NeMo-RL is to resume from, which is the newest that it finds.

    Damaged ones are set aside, see `newest_whole`. One that its process could not seal any more is
    taken on NeMo-RL's word, which renames a checkpoint when all is written.
    """
    folders = find_checkpoints(folder, _PREFIX)
    newest = latest_checkpoint(folder)
    if newest and newest.step == folders[0].step and not is_sealed(newest.path):
        return newest
    whole = newest_whole(folders, warn)
    return Checkpoint(whole.path, whole.step) if whole else None


def seal_newest(folder: Path) -> None:
    """Seal the newest checkpoint as NeMo-RL has finished it; once."""
    newest = latest_checkpoint(folder)
    if newest and not is_sealed(newest.path):
        seal(newest.path)


def export_model(checkpoint: Checkpoint, destination: Path, base_model: str) -> bool:
    """Make `final_checkpoint/` from weights that are Hugging Face's by name; whether they are.

    These are a LoRA adapter and the weights of the DTensor backend, consolidated or in shards.
    Megatron's, and DTensor's in PyTorch's own format, take a converter: see `how_to_convert`.
    """
    write_weights = _writer(checkpoint.weights, base_model)
    if write_weights is None:
        return False

    def write(folder: Path) -> None:
        write_weights(folder)
        shutil.copytree(checkpoint.tokenizer, folder, dirs_exist_ok=True)

    write_folder(destination, write)
    return True


def _writer(weights: Path, base_model: str) -> Callable[[Path], None] | None:
    """What writes these weights as a model into a folder that exists."""
    if adapter := next(weights.rglob("adapter_model.safetensors"), None):
        return partial(_copy_adapter, adapter.parent, base_model)
    if consolidated := next(weights.rglob("consolidated"), None):
        return partial(shutil.copytree, consolidated, dirs_exist_ok=True)
    if metadata := next(weights.rglob(_SHARDS_METADATA), None):
        return partial(_join_shards, metadata.parent)
    return None


def _copy_adapter(source: Path, base_model: str, folder: Path) -> None:
    """PEFT loads the model that the adapter's file names; NeMo-RL may leave the name out."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = settings.get("base_model_name_or_path") or base_model
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _join_shards(source: Path, folder: Path) -> None:
    """Every rank's file has its part of each tensor; torch puts them together, bit by bit.

    NeMo-RL could do it when it saves, while all GPUs wait; here nobody does.
    """
    # Private in torch, and what Automodel's own consolidation is a copy of.
    from torch.distributed.checkpoint import _consolidate_hf_safetensors as joining

    metadata = source / _SHARDS_METADATA
    mapping = metadata / "fqn_to_file_index_mapping.json"
    joining.consolidate_safetensors_files(str(source), str(folder), read_json(mapping))
    shutil.copytree(
        metadata, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(mapping.name)
    )


def how_to_convert(checkpoint: Checkpoint, destination: Path, model: str, *, lora: bool) -> str:
    """The command of NeMo-RL's own converter for weights that `export_model` leaves."""
    megatron = next(checkpoint.weights.glob("iter_*"), None)
    to = f"--hf-ckpt-path {destination.resolve()}"
    config = f"--config {checkpoint.path.resolve() / 'config.yaml'}"
    if megatron is None:
        name, extra = "convert_dcp_to_hf.py", ""
        words = f"{config} --dcp-ckpt-path {checkpoint.weights.resolve()} {to}"
    elif lora:
        name, extra = "convert_lora_to_hf.py", "--extra mcore "
        # NeMo-RL's name there for a model that is a folder.
        cached = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
        base = f"{_MEGATRON_CACHE}/{cached}/iter_0000000"
        words = (
            f"--adapter-only --base-ckpt {base} --adapter-ckpt {megatron.resolve()} "
            f"--hf-model-name {model} {to}"
        )
    else:
        name, extra = "convert_megatron_to_hf.py", "--extra mcore "
        words = f"{config} --megatron-ckpt-path {megatron.resolve()} {to}"
    return f"uv run {extra}python examples/converters/{name} {words}"
