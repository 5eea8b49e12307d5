"""Any checkpoint that is recognised, as the torch_dist that NeMo-RL's Megatron backend starts from.

Megatron-Bridge writes it, for run_config.yaml is read by the version that wrote it; what it wrote
is read back here and compared with the source.
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from equipoise.checkpoints.dcp import layered_tensors
from equipoise.checkpoints.hugging_face import model_tensors
from equipoise.checkpoints.megatron import FAMILIES, export_model, import_model, to_hugging_face
from equipoise.checkpoints.sources import describe, opened
from equipoise.checkpoints.stated import config_of_bridge, refuse_difference
from equipoise.checkpoints.tensors import Tensors, in_bytes, refuse, size, total_bytes, yaml_mapping
from equipoise.checkpoints.to_hugging_face import (
    create_new,
    refuse_full_disk,
    refuse_taken,
    write_whole_model,
)
from equipoise.checkpoints.verify import model_config, tensors_of_model
from equipoise.checkpoints.writer import write_record
from equipoise.config.nemo_rl.installation import find_megatron_python
from equipoise.files.console import ShowProgress, no_progress
from equipoise.files.disk import scratch_folder, write_text

_LOG = logging.getLogger(__name__)


#: What Megatron-Bridge calls a checkpoint that nothing was trained of.
ITERATION = "iter_0000000"
_RUN_CONFIG = "run_config.yaml"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison.

    `cast` tensors are those of another number format than the source's; `read_by` is what read
    the result, None where nothing did.
    """

    tensors: int
    bytes: int
    cast: int
    read_by: str | None

    def __str__(self) -> str:
        if self.read_by is None:
            return f"{self.tensors:,} tensors, {size(self.bytes)}, not read back"
        cast = f", {self.cast} cast to the configuration's dtype" if self.cast else ""
        return (
            f"{self.tensors:,} tensors, {size(self.bytes)}, read back by {self.read_by}: every "
            f"byte is the source's{cast}"
        )


def convert_to_megatron(
    path: Path,
    destination: Path,
    *,
    base: str | None = None,
    verify: bool = True,
    progress: ShowProgress = no_progress,
) -> None:
    """Write the checkpoint at `path` as a folder for `policy.pretrained_checkpoint`.

    Anything but a model of Hugging Face's becomes one first, in a scratch folder. `base` is the
    model that training began with, where the checkpoint does not name it. Without `verify` nothing
    is read back. `destination` appears whole or not at all. Raises `EquipoiseError`.
    """
    find_megatron_python()
    refuse_taken(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with (
        opened(path, destination, base) as source,
        scratch_folder(destination) as scratch,
    ):
        _LOG.info(describe(source))
        model, origin = source.path, str(source.path.resolve())
        if source.form != "hugging_face" or not any(model.glob("model*.safetensors")):
            model, origin = scratch / "model", base or source.base or str(path.resolve())
            write_whole_model(source, model, progress, base=base, verify=verify)
        originals = tensors_of_model(model_tensors(model), model)
        refuse_full_disk(originals, destination.parent)

        def fill(folder: Path) -> None:
            with progress("Megatron-Bridge writes"):
                versions = import_model(model, folder)
            # Folders that are gone after the conversion get the names of what stays.
            config = folder / ITERATION / _RUN_CONFIG
            text = config.read_text(encoding="utf-8")
            text = text.replace(str(folder.resolve()), str(destination.resolve()))
            write_text(config, text.replace(str(model.resolve()), origin))
            verdict = Verdict(len(originals), total_bytes(originals), 0, None)
            if verify:
                with progress("checking what was written"):
                    verdict = read_back(folder / ITERATION, model, originals, destination)
            _LOG.info(f"checked: {verdict}")
            write_record(source, folder, asdict(verdict), {}, made_by=versions)

        create_new(destination, fill)
    _LOG.info(f"policy.pretrained_checkpoint: {{path: {destination}, format: megatron_bridge}}")


def read_back(iteration: Path, model: Path, originals: Tensors, destination: Path) -> Verdict:
    """Compare an `iter_N` with the model that it was made of, byte for byte.

    What the table does not know is read back by Megatron-Bridge, by way of a scratch folder next
    to the path `destination`.
    """
    config = model_config(model)
    settings = config.to_dict()
    if settings["model_type"] in FAMILIES:
        # Megatron-Bridge leaves out what Megatron-core cannot do, such as linear scaling.
        path = iteration / _RUN_CONFIG
        if stated := config_of_bridge(path, yaml_mapping(path)):
            refuse_difference(stated, config, model)
        written = to_hugging_face(layered_tensors(iteration), settings)
        return _compare(written, originals, iteration, "Equipoise's own reader")
    with scratch_folder(destination) as folder:
        export_model(iteration, model, folder)
        written = tensors_of_model(model_tensors(folder), model)
        return _compare(written, originals, iteration, "Megatron-Bridge")


def _compare(written: Tensors, originals: Tensors, iteration: Path, read_by: str) -> Verdict:
    if names := sorted(written.keys() ^ originals.keys()):
        refuse(
            "verify.uneven-tensors",
            f"{iteration}: {names[0]} is in one of source and result alone ({len(names)} such)",
        )
    for name, tensor in written.items():
        original = originals[name]
        # No number that is none equals itself, its bytes do.
        if tensor.shape != original.shape or not torch.equal(
            in_bytes(tensor.read()), in_bytes(original.read().to(tensor.dtype))
        ):
            refuse("verify.other-tensor", f"{iteration}: {name} is not what the source has")
    cast = sum(tensor.dtype != originals[name].dtype for name, tensor in written.items())
    return Verdict(len(written), total_bytes(written), cast, read_by)
