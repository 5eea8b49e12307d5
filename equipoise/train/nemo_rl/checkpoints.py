"""NeMo-RL's checkpoints: the newest one, and NeMo-RL's own way to the model in it."""

from collections.abc import Callable
from pathlib import Path

from equipoise.run.seals import (
    CheckpointFolder,
    find_checkpoints,
    is_sealed,
    newest_whole,
    seal,
    set_aside,
)

_PREFIX = "step_"
_MARK = "training_info.json"
#: Where NeMo-RL keeps the Megatron form of the model that training began with.
_MEGATRON_CACHE = "${NRL_MEGATRON_CHECKPOINT_DIR:-${HF_HOME:-$HOME/.cache/huggingface}/nemo_rl}"


def latest_checkpoint(folder: Path) -> CheckpointFolder | None:
    """Find the newest complete checkpoint: NeMo-RL renames a folder when all is written."""
    checkpoints = find_checkpoints(folder, _PREFIX)
    return next((c for c in checkpoints if (c.path / _MARK).exists()), None)


def usable_checkpoint(
    folder: Path, taken: int, warn: Callable[[str], None]
) -> CheckpointFolder | None:
    """Find the checkpoint that NeMo-RL is to resume from, the newest that it finds.

    `taken` is the last step of the history. Damaged ones are set aside, see `newest_whole`. One
    that its process could not seal any more is taken on NeMo-RL's word, which renames a checkpoint
    when all is written; but not of a step whose row was lost, which is taken again.
    """
    folders = find_checkpoints(folder, _PREFIX)
    newest = latest_checkpoint(folder)
    if newest and newest.step == folders[0].step and not is_sealed(newest.path):
        if newest.step <= taken:
            return newest
        warn(f"{newest.path} was saved, and its step's row was not: the step is taken again")
        set_aside(newest.path)
        del folders[0]
    return newest_whole(folders, warn)


def seal_newest(folder: Path, taken: int) -> None:
    """Seal the newest checkpoint, once, as NeMo-RL has finished it and the history has its step."""
    newest = latest_checkpoint(folder)
    if newest and newest.step <= taken and not is_sealed(newest.path):
        seal(newest.path)


def how_to_convert(
    checkpoint: CheckpointFolder, destination: Path, model: str, *, lora: bool
) -> str:
    """Return the command of NeMo-RL's own converter, for a model that Equipoise's does not know."""
    weights = checkpoint.path / "policy" / "weights"  # in the training backend's form
    megatron = next(weights.glob("iter_*"), None)
    to = f"--hf-ckpt-path {destination.resolve()}"
    config = f"--config {checkpoint.path.resolve() / 'config.yaml'}"
    if megatron is None:
        name, extra = "convert_dcp_to_hf.py", ""
        words = f"{config} --dcp-ckpt-path {weights.resolve()} {to}"
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
