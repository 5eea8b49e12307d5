"""Any checkpoint that is recognised, as a folder that `from_pretrained` loads and nothing else."""

import errno
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from equipoise.checkpoints.hugging_face import copy_beside, is_model, model_tensors
from equipoise.checkpoints.lora import (
    CONFIG,
    WEIGHTS,
    adapter_config,
    adapter_tensors,
    is_plain,
    megatron_adapter,
    merge,
    peft_adapter,
    peft_files,
    refuse_nothing,
    refuse_quantised,
)
from equipoise.checkpoints.megatron import FAMILIES, export_model, to_hugging_face
from equipoise.checkpoints.sources import ADAPTERS, Source, describe, open_source, opened
from equipoise.checkpoints.stated import (
    NOT_IN_SHAPES,
    folders_of_nemo,
    refuse_difference,
    refuse_overrides,
)
from equipoise.checkpoints.tensors import (
    Tensors,
    check_folder,
    json_mapping,
    megabytes,
    refuse,
    size,
    total_bytes,
)
from equipoise.checkpoints.verify import (
    architecture,
    check_sums,
    in_memory,
    logits_of_folder,
    logits_with_adapter,
    model_config,
    of_dtype,
    tensors_of_model,
    unverified,
    verify_beside,
    verify_model,
)
from equipoise.checkpoints.writer import write_card, write_file, write_model, write_record
from equipoise.config.nemo_rl.installation import find_megatron_python
from equipoise.files.console import ShowProgress, no_progress
from equipoise.files.disk import create_folder, is_being_written, scratch_folder, write_json
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.models.hub import explain, located
from equipoise.models.pretrained import LOADING_ERRORS, NAMES_OF_CODE

_LOG = logging.getLogger(__name__)


#: More than the weights: tokenizer, index, record.
_SPARE_BYTES = 10**8
_MORE_ROOM = "Free some space, or name a folder on another disk."
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A planned output: tensors, and the folders whose other files go with them."""

    source: Source
    tensors: Tensors
    companions: tuple[Path, ...]
    reference: Callable[[torch.dtype], torch.Tensor] | None
    unstated: tuple[str, ...]
    base_name: str | None


def convert(
    path: Path,
    destination: Path,
    *,
    base: str | None = None,
    keep_adapter: bool = False,
    verify: bool = True,
    progress: ShowProgress = no_progress,
) -> None:
    """Write the checkpoint at `path` as a model of Hugging Face's, and check what was written.

    `base` is the model that training began with, where the checkpoint does not name it. With
    `keep_adapter` an adapter becomes one of PEFT's and is not merged. Without `verify` nothing is
    read back or loaded. `destination` appears whole or not at all. Raises `EquipoiseError`.
    """
    refuse_taken(destination)
    with opened(path, destination, base) as source:
        _LOG.info(describe(source))
        destination.parent.mkdir(parents=True, exist_ok=True)
        if keep_adapter and source.form in ADAPTERS:
            fill = partial(_fill_adapter, source, base or source.base)
            create_new(destination, fill)
        else:
            write_whole_model(source, destination, progress, base=base, verify=verify)
    _LOG.info(f"model: {destination}")


def show_source(path: Path, destination: Path) -> None:
    """Say what the checkpoint at `path` is, and write nothing.

    Raises `EquipoiseError` for anything else, and for a `destination` that is taken.
    """
    refuse_taken(destination)
    if folders_of_nemo(path):
        _LOG.info(f"{path}: a model of NeMo 2's")
    else:
        _LOG.info(describe(open_source(path)))
    _LOG.info(f"{destination} would be written; this was a dry run")


def write_whole_model(
    source: Source, destination: Path, progress: ShowProgress, *, base: str | None, verify: bool
) -> None:
    """Convert an open source as `convert` does; an adapter is merged."""
    with _readable(source, base, destination, progress) as readable:
        plan = _plan(readable, base)
        refuse_full_disk(plan.tensors, destination.parent)
        create_new(destination, partial(_fill, plan, verify, progress))


def refuse_taken(destination: Path) -> None:
    """Raise `ConversionError` unless the folder is new or empty, and nobody writes it."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        refuse(
            "convert.existing-destination", f"{destination} is there already", "Name a new folder."
        )
    if is_being_written(destination):
        refuse(
            "convert.busy-destination",
            f"another conversion writes {destination}",
            "Wait for it, or name another folder.",
        )


def create_new(destination: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a folder that appears whole."""
    try:
        create_folder(destination, fill)
    except FileExistsError:
        refuse(
            "convert.new-destination", f"{destination} has appeared meanwhile", "Name a new folder."
        )
    except OSError as error:
        if error.errno not in _FULL:
            raise
        refuse(
            "convert.full-disk",
            f"the disk of {destination} is full; nothing is kept there",
            _MORE_ROOM,
        )
    except Stopped:
        # The signal may come while the finished folder gets its name.
        is_complete = destination.is_dir() and any(destination.iterdir())
        result = f"{destination} is whole" if is_complete else f"nothing is kept at {destination}"
        raise Stopped(f"stopped; {result}") from None


@contextmanager
def _readable(
    source: Source, named: str | None, destination: Path, progress: ShowProgress
) -> Iterator[Source]:
    """The source; what Megatron-Bridge or PEFT makes of it, where it cannot be read as it is."""
    if source.form == "adapter" and not is_plain(source.path):
        from equipoise.checkpoints.by_peft import merge_by_peft  # it takes seconds to import

        _, base = _folders(source, named)
        assert base is not None
        with scratch_folder(destination) as scratch:
            with progress("PEFT merges"):
                merged = merge_by_peft(source.path, base, scratch)
            yield replace(source, merged=merged)
        return
    if source.form != "megatron":
        yield source
        return
    companions, _ = _folders(source, named)
    family = _config(companions).get("model_type")
    if family in FAMILIES:
        yield source
        return
    try:
        find_megatron_python()
    except EquipoiseError as error:
        families = ", ".join(FAMILIES)
        refuse(
            "convert.unreadable-family",
            f"the model is a {family}; what is read here is {families}, and others are left to "
            f"Megatron-Bridge: {error.message}",
            error.remedy,
        )
    refuse_full_disk(source.tensors, destination.parent)
    with scratch_folder(destination) as scratch:
        write_json(scratch / "config.json", json_mapping(_configured(companions) / "config.json"))
        with progress(f"Megatron-Bridge reads the {family}"):
            versions = export_model(source.path, scratch, scratch)
        yield replace(
            source,
            kind=f"{source.kind}, by Megatron-Bridge {versions['megatron-bridge']}",
            form="hugging_face",
            tensors=model_tensors(scratch),
            companions=companions,
            stated=None,  # the script has compared it
        )


def _folders(source: Source, named: str | None) -> tuple[tuple[Path, ...], Path | None]:
    """Those with configuration and tokenizer, and the base among them where one is needed."""
    companions = tuple(folder for folder in source.companions if folder.is_dir())
    if source.form not in ADAPTERS and any((f / "config.json").is_file() for f in companions):
        return companions, None
    base = _base(source, named or source.base)
    return (base, *companions), base


def _plan(source: Source, named: str | None) -> _Plan:
    companions, base = _folders(source, named)
    adapter_base = source.base
    # Shapes do not tell one model from another that was trained further.
    if (
        source.form in ADAPTERS
        and named
        and adapter_base
        and Path(named).resolve() != Path(adapter_base).resolve()
    ):
        _LOG.warning(f"the adapter was trained on {adapter_base}, and is merged into {named}")
    config = _config(companions)
    unstated = _compare_stated(source, _configured(companions), based=base is not None)
    tensors, adapter, reference = source.tensors, None, None
    if source.merged:
        tensors, logits = source.merged

        def reference(_: torch.dtype) -> torch.Tensor:
            return logits

    elif source.form == "adapter":
        adapter = peft_adapter(source.path)
    elif source.form == "megatron_adapter":
        adapter = megatron_adapter(tensors, source.peft or {}, config)
    elif source.form == "megatron":
        tensors = to_hugging_face(tensors, config)
    if adapter:
        assert base is not None
        tied = config.get("tie_word_embeddings") is True
        originals = model_tensors(base)
        refuse_quantised(originals)
        mergeable, companion_tensors = in_memory(originals, base)
        tensors = {**merge(mergeable, adapter, tied=tied), **companion_tensors}
        reference = partial(logits_with_adapter, base, adapter)
    elif is_model(source.path):
        reference = partial(logits_of_folder, source.path)
    return _Plan(source, tensors, companions, reference, unstated, named or source.base)


def _compare_stated(source: Source, folder: Path, *, based: bool) -> tuple[str, ...]:
    """Refuse another configuration than the one that the source states.

    Tells which fields nothing states, where configuration and weights are not of one folder.
    """
    if source.stated:
        missing = refuse_difference(source.stated, model_config(folder), folder)
    else:
        stated = refuse_overrides(source.overrides, model_config(folder), folder)
        of_base = based and source.form != "adapter"
        missing = tuple(n for n in NOT_IN_SHAPES if of_base and n not in stated)
    where = f"which nothing states and {folder / 'config.json'} gives"
    return (f"{', '.join(missing)}, {where}",) if missing else ()


def _base(source: Source, name: str | None) -> Path:
    """The folder of the base: its configuration and tokenizer, and its weights for an adapter."""
    if not name:
        refuse(
            "convert.unstated-model",
            f"{source.path} does not say which model training began with",
            "Name it: --base.",
        )
    name = located(name)
    if Path(name).is_dir():
        check_folder(Path(name))
        return Path(name)
    weights = ["*.safetensors", "*.safetensors.index.json"] if source.form in ADAPTERS else []
    patterns = ["*.json", "*.jinja", "*.txt", "tokenizer.model", *weights]
    try:
        revision = source.revision if name == source.base else None
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except LOADING_ERRORS as error:
        raise explain(name, error) from error


def _config(folders: tuple[Path, ...]) -> Mapping[str, Any]:
    config: Mapping[str, Any] = model_config(_configured(folders)).to_dict()
    return config


def _configured(folders: tuple[Path, ...]) -> Path:
    """The folder whose config.json counts."""
    for folder in reversed(folders):
        if (folder / "config.json").is_file():
            return folder
    return refuse(
        "convert.no-config", f"{folders[0]} has no config.json", "Name the whole model with --base."
    )


def refuse_full_disk(tensors: Tensors, folder: Path) -> None:
    """Raise `ConversionError` unless the folder's disk has space for them and a bit more."""
    needed = total_bytes(tensors) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        refuse(
            "convert.small-disk",
            f"{folder} has {size(free)} free, and the model takes {size(needed)}",
            _MORE_ROOM,
        )


def _fill(plan: _Plan, verify: bool, progress: ShowProgress, folder: Path) -> None:
    for source in plan.companions:
        copy_beside(source, folder)
    _drop_code(folder / "tokenizer_config.json")
    _drop_code(folder / "config.json")
    tensors = tensors_of_model(plan.tensors, folder)
    # config.json says what loads the weights, and in which number format they are.
    config = json_mapping(folder / "config.json")
    for key in ("torch_dtype", "quantization_config"):  # no weight here is quantized
        config.pop(key, None)
    config["dtype"] = str(of_dtype(tensors)).removeprefix("torch.")
    config["architectures"] = [architecture(folder)]
    write_json(folder / "config.json", config)
    unchecked = plan.unstated
    if verify:
        with progress("checking the source's checksums"):
            has_sums = check_sums(plan.source.path)
        if not has_sums:
            unchecked += (
                "whether the source is as it was written: no checksum of its kind is read",
            )
        unchecked += verify_beside(folder)
    with progress("writing, in MB", megabytes(total_bytes(tensors))) as bar:
        hashes = write_model(folder, tensors, _adding(bar), check=verify)
    verdict = unverified(tensors, unchecked)
    if verify:
        with progress("loading what was written"):
            verdict = verify_model(folder, plan.reference, unchecked)
    _LOG.info(f"checked: {verdict}")
    write_record(plan.source, folder, asdict(verdict), hashes)
    write_card(plan.source, folder, plan.base_name, str(verdict))


def _fill_adapter(source: Source, base: str | None, folder: Path) -> None:
    """PEFT's own tensors are copied; Megatron's adapter is put into PEFT's form."""
    if source.overrides:
        _LOG.warning(
            "the adapter was trained on its base with policy.hf_config_overrides, which no adapter "
            f"can state; load the base with them: {json.dumps(source.overrides)}"
        )
    companions = [path for path in source.companions if path.is_dir()]
    for path in companions:
        copy_beside(path, folder)
    if source.form == "adapter":
        if is_plain(source.path):
            refuse_nothing(peft_adapter(source.path))
        tensors = adapter_tensors(source.path)
        config = dict(adapter_config(source.path))
        config["base_model_name_or_path"] = config.get("base_model_name_or_path") or base
    else:
        if not base:
            refuse(
                "convert.unstated-base",
                f"{source.path} does not say which model it began with",
                "Name it: --base.",
            )
        folder_of_base = _base(source, base)
        _compare_stated(source, folder_of_base, based=True)
        adapter = megatron_adapter(source.tensors, source.peft or {}, _config((folder_of_base,)))
        refuse_nothing(adapter)
        config, tensors = peft_files(adapter, base)
    write_file(folder / WEIGHTS, tensors, lambda _: None, check=True)
    write_json(folder / CONFIG, config)
    (folder / "config.json").unlink(missing_ok=True)  # of the base, which is another model
    checked = f"an adapter of {len(tensors)} tensors"
    _LOG.info(f"checked: {checked}")
    write_card(source, folder, config["base_model_name_or_path"], checked, merged=False)


def _adding(bar: Callable[[int], None]) -> Callable[[int], None]:
    """Make a counter for a bar that wants to know how much is done in all."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        bar(megabytes(done))

    return add


def _drop_code(path: Path) -> None:
    """Code of others beside a model is not copied, so that nothing may name it."""
    settings = json_mapping(path) if path.is_file() else {}
    if named := settings.keys() & set(NAMES_OF_CODE):
        write_json(path, {key: value for key, value in settings.items() if key not in named})
