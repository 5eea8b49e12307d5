"""Folders that a run writes to, and the disks below them."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from huggingface_hub.constants import HF_HUB_CACHE

from data_prep.packaged_models import SMOLLM2, SMOLLM2_BYTES, smollm2_folder
from equipoise.config import LOCAL_MODEL, Config
from equipoise.config.memory import ModelShape, model_shape, trained_parameters
from equipoise.config.nemo_rl.conversion import (
    VARIABLE,
    broken_conversion,
    conversion_of,
    conversions,
    is_converted,
)
from equipoise.doctor.checks import Case, Finding, failure, ok, unchecked, warning
from equipoise.files.disk import GB, in_gb
from equipoise.models.hub import in_cache

#: Enough to show that a quota or a full disk refuses.
_TRIAL_BYTES = 4096
_HUB = "HF_HOME"
#: Of a checkpoint, per trained parameter: float32 weights and AdamW's two moments.
_CHECKPOINT_BYTES = 12
#: Rollouts, report, log, history; of a run of the shipped sizes it is less.
_RUN_BYTES = GB

Free = Callable[[Path], int]


def folders(case: Case) -> Iterator[Finding]:
    """Check that what the run writes to can be written to, and has the room."""
    config, shape = case.config, model_shape(case.config.policy.model_name)
    if case.place == "elsewhere":
        size = "not known" if shape is None else in_gb(_needed_at_all(config, shape))
        yield unchecked(f"disks are those of another machine; a run needs about {size} there")
        return
    written = written_folders(case)
    environment = case.job.environment if case.job else case.environment
    for setter, folder in written.items():
        if problem := refusal(folder):
            yield failure(problem, f"Choose another folder with {setter}.")
    if VARIABLE in written:
        broken = broken_conversion(conversion_of(config.policy.model_name, environment))
        if broken:
            yield failure(broken.message, broken.remedy)
    yield room_for(case, written, free_bytes)


def _needed_at_all(config: Config, shape: ModelShape) -> float:
    return _run_bytes(config, shape) + _model_bytes(shape) + _converted_bytes(config, shape)


def _run_bytes(config: Config, shape: ModelShape) -> float:
    """Bound the size of a run directory: the checkpoints kept, one being written, the final one.

    Trained weights count, so a LoRA's checkpoints are small.
    """
    checkpoints = (config.checkpointing.keep_top_k or 1) + 2
    return _RUN_BYTES + _CHECKPOINT_BYTES * trained_parameters(config, shape) * checkpoints


def _model_bytes(shape: ModelShape) -> float:
    """Size a model in the Hub's cache, in bfloat16 as most are published."""
    return 2 * shape.parameters


def _converted_bytes(config: Config, shape: ModelShape) -> float:
    """Size the bfloat16 copy in Megatron's form that NeMo-RL makes of a model once."""
    policy = config.policy
    converts = policy.megatron_cfg.enabled and policy.pretrained_checkpoint is None
    return _model_bytes(shape) if converts else 0


def written_folders(case: Case) -> dict[str, Path]:
    """Map what sets a folder that the run writes to -> the folder; the first holds the runs."""
    config, job = case.config, case.job
    output = job.output if job else Path(config.equipoise.output_dir)
    cache = job.shared / "cache" if job else Path(config.equipoise.cache_dir).expanduser()
    runs = output / config.equipoise.task
    written = {"EQUIPOISE_OUTPUT": runs, "EQUIPOISE_SHARED": cache}
    if not job:
        written = {"--output-dir": runs, "equipoise.cache_dir": cache}
    if config.policy.model_name not in (LOCAL_MODEL, SMOLLM2):
        written[_HUB] = job.hub if job else Path(HF_HUB_CACHE)
    if case.on_nemo_rl:
        environment = job.environment if job else case.environment
        for name in ("NEMO_RL_VENV_DIR", "EQUIPOISE_OVERLAY_DIR"):
            if value := environment.get(name):
                written[name] = Path(value).expanduser()
        if config.policy.megatron_cfg.enabled:  # where NeMo-RL puts Megatron's form of models
            written[VARIABLE] = conversions(environment)
    return written


def refusal(folder: Path) -> str | None:
    """Why a few bytes cannot be written there, or where it will be made; None where they can."""
    try:
        with TemporaryFile(dir=existing(folder)) as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror or error}"
    return None


def room_for(case: Case, written: Mapping[str, Path], free: Free) -> Finding:
    """Compare what is `free` with what the run writes; folders of one disk share it."""
    runs, cache = list(written.values())[:2]
    config, model = case.config, case.config.policy.model_name
    environment = case.job.environment if case.job else case.environment
    shape = model_shape(model)
    if shape is None:
        room = free(runs)
        if model == LOCAL_MODEL or room < GB:
            return enough({runs: 0.2 * GB}, free)
        message = f"{in_gb(room)} are free in {runs}"
        return unchecked(f"{message}; what the model needs is not known before it is loaded")
    needs: dict[Path, float] = {runs: _run_bytes(config, shape)}
    if VARIABLE in written and not is_converted(conversion_of(model, environment)):
        needs[written[VARIABLE]] = _converted_bytes(config, shape)
    if _HUB in written:
        has = Path(model).is_dir() or in_cache(model, written[_HUB])
        needs[written[_HUB]] = 0 if has else _model_bytes(shape)
    if model == SMOLLM2:
        needs[cache] = 0 if smollm2_folder(cache).is_dir() else SMOLLM2_BYTES
    return enough(needs, free)


def enough(needs: Mapping[Path, float], free: Free) -> Finding:
    """Whether each disk has room for all that comes on it; tight is below twice of that."""
    by_disk: dict[int, dict[Path, float]] = {}
    for folder, need in needs.items():
        by_disk.setdefault(existing(folder).stat().st_dev, {})[folder] = need
    lines, worst = [], 2.0
    for folder_needs in by_disk.values():
        first, need = next(iter(folder_needs)), sum(folder_needs.values())
        room = free(first)
        worst = min(worst, room / need if need else 2.0)
        lines.append(f"{first}: {in_gb(room, 1)} free, about {in_gb(need, 1)} needed")
    build = failure if worst < 1 else warning if worst < 2 else None
    return build("; ".join(lines)) if build else ok("; ".join(lines))


def free_bytes(folder: Path) -> int:
    """Return what a user may write there, or into the folder in which it will be made."""
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
