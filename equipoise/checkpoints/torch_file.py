"""Files of torch.save's, which are zip files, of which nothing but tensors is read."""

import zipfile
from io import BytesIO
from pathlib import Path

import torch

from equipoise.checkpoints.mapped import LOAD_ERRORS, saved, saved_tensor
from equipoise.checkpoints.tensors import COPY_AGAIN, Tensors, refuse


def torch_file_tensors(path: Path) -> Tensors:
    """The tensors of the dictionary in it; what else is in it is left out.

    Raises `ConversionError` for a file that is cut off, that makes anything but plain data, or
    whose tensors are larger than it is.
    """
    _check_zip(path)
    try:
        # Transformer Engine keeps its state for 8-bit numbers as bytes between the weights.
        with torch.serialization.safe_globals([BytesIO]):
            state = saved(path)
    except LOAD_ERRORS as error:
        refuse(f"{path} cannot be read: {error}", COPY_AGAIN)
    if not isinstance(state, dict):
        refuse(f"{path} holds no names of tensors")
    forms = {str(name): form for name, form in state.items() if isinstance(form, torch.Tensor)}
    for name, form in forms.items():
        if form.layout != torch.strided or form.is_quantized:
            refuse(f"{path}: {name} is no plain tensor")
        if form.nbytes > form.untyped_storage().nbytes():
            refuse(f"{path}: {name} is {tuple(form.shape)}, and fewer numbers are stored")
    return {name: saved_tensor(name, form, path) for name, form in forms.items()}


def _check_zip(path: Path) -> None:
    """Refuse all but a zip as torch writes it: uncompressed, no larger inside than the file."""
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        refuse(f"{path} is no file of torch's, or is cut off: {error}", COPY_AGAIN)
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        refuse(f"{path} is compressed, which torch never does")
    if sum(member.file_size for member in members) > path.stat().st_size:
        refuse(f"{path} says that it holds more than it has bytes")
