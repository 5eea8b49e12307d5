"""Any known checkpoint, made into what `from_pretrained` loads or what Megatron starts from."""

import errno
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData, snapshot_download

from equipoise.checkpoints.hugging_face import (
    copy_beside,
    is_model,
    model_tensors,
    write_file,
    write_model,
)
from equipoise.checkpoints.lora import (
    CONFIG,
    WEIGHTS,
    Adapter,
    adapter_config,
    adapter_tensors,
    logits_with_adapter,
    megatron_adapter,
    merge,
    merge_by_peft,
    peft_adapter,
    peft_files,
    refuse_quantised,
)
from equipoise.checkpoints.megatron import (
    FAMILIES,
    NOT_IN_SHAPES,
    export_model,
    import_model,
    refuse_difference,
    refuse_overrides,
    stated_by,
    to_hugging_face,
)
from equipoise.checkpoints.sources import ADAPTERS, Source, describe, open_source
from equipoise.checkpoints.tensors import (
    Tensors,
    check_folder,
    json_mapping,
    megabytes,
    refuse,
    total_bytes,
)
from equipoise.checkpoints.verify import (
    architecture,
    in_memory,
    logits_of_folder,
    model_config,
    of_dtype,
    tensors_of_model,
    verify_beside,
    verify_model,
)
from equipoise.config.nemo_rl.installation import find_megatron_python
from equipoise.files.console import ShowProgress, is_visible, no_progress
from equipoise.files.disk import create_folder, scratch_folder, write_json, write_text
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.models.hub import explain, located
from equipoise.models.pretrained import LOADING_ERRORS, NAMES_OF_CODE

_LOG = logging.getLogger(__name__)


#: What Megatron-Bridge calls a checkpoint that nothing was trained of.
ITERATION = "iter_0000000"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)
_FOLDERS = re.compile(r"/\S*/")
_LONGEST = 300
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
    progress: ShowProgress = no_progress,
) -> None:
    """Write the checkpoint at `path` as a model of Hugging Face's, and check what was written.

    `base` is the model that training began with, where the checkpoint does not name it. With
    `keep_adapter` an adapter becomes one of PEFT's and is not merged. `destination` appears whole
    or not at all. Raises `EquipoiseError`.
    """
    refuse_taken(destination)
    source = open_source(path)
    _LOG.info(describe(source))
    destination.parent.mkdir(parents=True, exist_ok=True)
    if keep_adapter and source.form in ADAPTERS:
        create_new(destination, partial(_fill_adapter, source, base or source.base))
    else:
        _write_model(source, destination, base, progress)
    _LOG.info(f"model: {destination}")


def convert_to_megatron(
    path: Path,
    destination: Path,
    *,
    base: str | None = None,
    progress: ShowProgress = no_progress,
) -> None:
    """Write the checkpoint at `path` as a folder for `policy.pretrained_checkpoint`.

    Megatron-Bridge writes it, for run_config.yaml is read by the version that wrote it. Anything
    but a model of Hugging Face's becomes one first, in a scratch folder. `base` is the model that
    training began with, where the checkpoint does not name it. `destination` appears whole or not
    at all. Raises `EquipoiseError`.
    """
    find_megatron_python()
    refuse_taken(destination)
    source = open_source(path)
    _LOG.info(describe(source))
    with scratch_folder(destination) as scratch:
        model, origin = source.path, str(source.path.resolve())
        if source.form != "hugging_face" or not any(model.glob("model*.safetensors")):
            model, origin = scratch / "model", base or source.base or str(path.resolve())
            _write_model(source, model, base, progress)
        tensors_of_model(model_tensors(model), model)

        def fill(folder: Path) -> None:
            with progress("Megatron-Bridge writes"):
                versions = import_model(model, folder)
            settings = folder / ITERATION / "run_config.yaml"
            # Megatron-Bridge leaves out what Megatron-core cannot do, such as linear scaling.
            config, stated = model_config(model), stated_by(settings, "model")
            if stated and config.model_type in FAMILIES:
                refuse_difference(stated, config, model)
            # Folders that are gone after the conversion get the names of what stays.
            text = settings.read_text(encoding="utf-8")
            text = text.replace(str(folder.resolve()), str(destination.resolve()))
            write_text(settings, text.replace(str(model.resolve()), origin))
            write_record(source, folder, made_by=versions)

        create_new(destination, fill)
    _LOG.info(f"policy.pretrained_checkpoint: {{path: {destination}, format: megatron_bridge}}")


def refuse_taken(destination: Path) -> None:
    """Raise `ConversionError` unless the folder is new or empty."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        refuse(
            "convert.existing-destination", f"{destination} is there already", "Name a new folder."
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
            "Free some space, or name a folder on another disk.",
        )
    except Stopped:
        # The signal may come while the finished folder gets its name.
        is_complete = destination.is_dir() and any(destination.iterdir())
        result = f"{destination} is whole" if is_complete else f"nothing is kept at {destination}"
        raise Stopped(f"stopped; {result}") from None


def _write_model(
    source: Source, destination: Path, base: str | None, progress: ShowProgress
) -> None:
    """Convert an open source; an adapter is merged."""
    # What Megatron-Bridge or PEFT makes of a source lies beside the destination until the end.
    with ExitStack() as stack:
        scratch = partial(stack.enter_context, scratch_folder(destination))
        plan = _plan(source, base, scratch, progress)
        create_new(destination, partial(_fill, plan, progress))


def _plan(
    source: Source, named: str | None, scratch: Callable[[], Path], progress: ShowProgress
) -> _Plan:
    companions, base = _folders(source, named)
    config: Mapping[str, Any] = model_config(_configured(companions)).to_dict()
    if source.form == "megatron" and config.get("model_type") not in FAMILIES:
        source = _by_bridge(source, _configured(companions), scratch(), progress)
        return _Plan(source, source.tensors, companions, None, (), named or source.base)
    unstated = _compare_stated(source, _configured(companions), based=base is not None)
    plan = partial(_Plan, source, companions=companions, unstated=unstated)
    plan = partial(plan, base_name=named or source.base)
    if source.form == "megatron":
        return plan(tensors=to_hugging_face(source.tensors, config), reference=None)
    if source.form == "hugging_face":
        is_whole = is_model(source.path)
        reference = partial(logits_of_folder, source.path) if is_whole else None
        return plan(tensors=source.tensors, reference=reference)
    assert base is not None
    originals = model_tensors(base)
    refuse_quantised(originals)
    adapter: Adapter | None
    if source.form == "megatron_adapter":
        adapter = megatron_adapter(source.tensors, source.peft or {}, config)
    else:
        # Shapes do not tell one model from another that was trained further.
        if named and source.base and Path(named).resolve() != Path(source.base).resolve():
            _LOG.warning(f"the adapter was trained on {source.base}, and is merged into {named}")
        adapter = peft_adapter(source.path, base)
    if adapter is None:
        with progress("PEFT merges"):
            tensors, logits = merge_by_peft(source.path, base, scratch())
        return plan(tensors=tensors, reference=lambda _: logits)
    mergeable, companion_tensors = in_memory(originals, base)
    merged = merge(mergeable, adapter, tied=config.get("tie_word_embeddings") is True)
    return plan(
        tensors={**merged, **companion_tensors},
        reference=partial(logits_with_adapter, base, adapter),
    )


def _by_bridge(source: Source, configured: Path, scratch: Path, progress: ShowProgress) -> Source:
    """Let Megatron-Bridge read a family that is not known here; it compares what is stated."""
    family = json_mapping(configured / "config.json").get("model_type")
    try:
        find_megatron_python()
    except EquipoiseError as error:
        refuse(
            "convert.unreadable-family",
            f"the model is a {family}; what is read here is {', '.join(FAMILIES)}, and others are "
            f"left to Megatron-Bridge: {error.message}",
            error.remedy,
        )
    write_json(scratch / "config.json", json_mapping(configured / "config.json"))
    with progress(f"Megatron-Bridge reads the {family}"):
        versions = export_model(source.path, scratch, scratch)
    kind = f"{source.kind}, by Megatron-Bridge {versions['megatron-bridge']}"
    return replace(source, kind=kind, tensors=model_tensors(scratch))


def _folders(source: Source, named: str | None) -> tuple[tuple[Path, ...], Path | None]:
    """Those with configuration and tokenizer, and the base among them where one is needed."""
    companions = tuple(folder for folder in source.companions if folder.is_dir())
    if source.form not in ADAPTERS and any((f / "config.json").is_file() for f in companions):
        return companions, None
    base = _base(source, named or source.base)
    return (base, *companions), base


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


def _configured(folders: tuple[Path, ...]) -> Path:
    """The folder whose config.json counts."""
    for folder in reversed(folders):
        if (folder / "config.json").is_file():
            return folder
    return refuse(
        "convert.no-config", f"{folders[0]} has no config.json", "Name the whole model with --base."
    )


def _fill(plan: _Plan, progress: ShowProgress, folder: Path) -> None:
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
    unchecked = plan.unstated + verify_beside(folder)
    with progress("writing, in MB", megabytes(total_bytes(tensors))) as bar:
        write_model(folder, tensors, _adding(bar))
    with progress("loading what was written"):
        verdict = verify_model(folder, plan.reference, unchecked)
    _LOG.info(f"checked: {verdict}")
    write_record(plan.source, folder, checked=asdict(verdict))
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
        of_base = model_config(folder_of_base).to_dict()
        adapter = megatron_adapter(source.tensors, source.peft or {}, of_base)
        config, tensors = peft_files(adapter, base)
    write_file(folder / WEIGHTS, tensors, lambda _: None)
    write_json(folder / CONFIG, config)
    (folder / "config.json").unlink(missing_ok=True)  # of the base, which is another model
    checked = f"an adapter of {len(tensors)} tensors"
    _LOG.info(f"checked: {checked}")
    write_card(source, folder, config["base_model_name_or_path"], checked, merged=False)


def _adding(bar: Callable[[int], None]) -> Callable[[int], None]:
    """Make a counter for a progress bar that takes totals."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        bar(megabytes(done))

    return add


def _drop_code(path: Path) -> None:
    """Custom code beside a model is not copied, so remove what refers to it."""
    settings = json_mapping(path) if path.is_file() else {}
    if named := settings.keys() & set(NAMES_OF_CODE):
        write_json(path, {key: value for key, value in settings.items() if key not in named})


# --- The record and the card ----------------------------------------------------------------------
# conversion.json says where a model comes from and what was checked of it. The card evaluates
# nothing; that of the source or of the base is not copied, for its claims are of other weights.


def write_record(source: Source, folder: Path, **more: Any) -> None:
    about = {"path": str(source.path.resolve()), "kind": source.kind, "base": source.base}
    write_json(folder / "conversion.json", {"schema": 2, "source": about, **more})


def write_card(
    source: Source, folder: Path, base: str | None, checked: str, *, merged: bool = True
) -> None:
    """Write the card into the folder. `merged` is false of an adapter that stays one."""
    is_adapter = source.form in ADAPTERS
    on_hub = base if base and _HUB_NAME.fullmatch(base) and not Path(base).is_dir() else None
    relation = "finetune" if merged else "adapter"
    metadata = ModelCardData(
        base_model=on_hub,
        base_model_relation=relation if on_hub and is_adapter else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["equipoise"],
    )
    text = f"""---
{metadata.to_yaml()}
---

# Converted from {_code(source.path.name)}

> **Converted, not evaluated here.** Nothing below says how well this model answers.

- **Source:** {_code(source.kind)}
- **Base:** {_code(on_hub or Path(base).name) if base else "not known"}
- **Checked:** {_code(_FOLDERS.sub("", checked))}

The terms of the base model hold for this one too; this card states no licence.
"""
    write_text(folder / "README.md", text)


def _code(text: str) -> str:
    """Untrusted text as inline code, in which Markdown and HTML have no effect."""
    line = " ".join("".join(c for c in text if is_visible(c)).split())
    return f"`{line.replace('`', chr(39))[:_LONGEST]}`"
