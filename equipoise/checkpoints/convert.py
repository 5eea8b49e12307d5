"""Any known checkpoint, made into what `from_pretrained` loads or what Megatron starts from."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from huggingface_hub import snapshot_download
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

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
    NOT_IN_SHAPES,
    refuse_difference,
    run_bridge,
    stated_by,
    to_hugging_face,
)
from equipoise.checkpoints.sources import ADAPTERS, Source, describe, open_source
from equipoise.checkpoints.tensors import Tensors, megabytes, refuse, total_bytes
from equipoise.checkpoints.verify import (
    in_memory,
    logits_of_folder,
    of_dtype,
    tensors_of_model,
    verify_beside,
    verify_model,
)
from equipoise.files.console import ShowProgress, no_progress
from equipoise.files.disk import create_folder, scratch_folder, write_json, write_text
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped
from equipoise.files.hub import explain, located
from equipoise.files.model_shape import FAMILIES
from equipoise.files.nemo_rl import find_megatron_python
from equipoise.files.pretrained import LOADING_ERRORS, NAMES_OF_CODE, load_config
from equipoise.files.untrusted import check_folder, read_object

_LOG = logging.getLogger(__name__)


#: What Megatron-Bridge calls a checkpoint that nothing was trained of.
ITERATION = "iter_0000000"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A planned output: tensors, and the folders whose other files go with them."""

    source: Source
    tensors: Tensors
    companions: tuple[Path, ...]
    reference: Callable[[torch.dtype], torch.Tensor] | None = None
    unstated: tuple[str, ...] = ()


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
    path: Path, destination: Path, *, base: str | None = None, progress: ShowProgress = no_progress
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
                versions = run_bridge("import", model, folder)
            settings = folder / ITERATION / "run_config.yaml"
            # Megatron-Bridge leaves out what Megatron-core cannot do, such as linear scaling.
            config, stated = load_config(str(model)), stated_by(settings, "model")
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
    """Raise `EquipoiseError` unless the folder is new or empty."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        _raise_taken(destination)


def _raise_taken(destination: Path) -> NoReturn:
    refuse("convert.existing-destination", f"{destination} is there already", "Name a new folder.")


def create_new(destination: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a folder that appears whole."""
    try:
        create_folder(destination, fill)
    except FileExistsError:  # it has appeared meanwhile
        _raise_taken(destination)
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
    folder = _configured(companions)
    config: Mapping[str, Any] = load_config(str(folder)).to_dict()
    if source.form == "megatron" and config.get("model_type") not in FAMILIES:
        source = _by_bridge(source, folder, scratch(), progress)
        return _Plan(source, source.tensors, companions)
    unstated = _compare_stated(source, folder, based=base is not None)
    plan = partial(_Plan, source, companions=companions, unstated=unstated)
    if source.form == "megatron":
        return plan(tensors=to_hugging_face(source.tensors, config))
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


def _by_bridge(source: Source, folder: Path, scratch: Path, progress: ShowProgress) -> Source:
    """Let Megatron-Bridge read a family that is not known here; it compares what is stated."""
    settings = read_object(folder / "config.json")
    family = settings.get("model_type")
    try:
        find_megatron_python()
    except EquipoiseError as error:
        refuse(
            "convert.unreadable-family",
            f"the model is a {family}; what is read here is {', '.join(FAMILIES)}, and others are "
            f"left to Megatron-Bridge: {error.message}",
            error.remedy,
        )
    write_json(scratch / "config.json", settings)
    with progress(f"Megatron-Bridge reads the {family}"):
        versions = run_bridge("export", source.path, scratch, scratch)
    kind = f"{source.kind}, by Megatron-Bridge {versions['megatron-bridge']}"
    return replace(source, kind=kind, tensors=model_tensors(scratch))


def _folders(source: Source, named: str | None) -> tuple[tuple[Path, ...], Path | None]:
    """Find the folders with configuration and tokenizer, and the base if one is needed."""
    companions = tuple(folder for folder in source.companions if folder.is_dir())
    if source.form not in ADAPTERS and any((f / "config.json").is_file() for f in companions):
        return companions, None
    base = _base(source, named or source.base)
    return (base, *companions), base


def _compare_stated(source: Source, folder: Path, *, based: bool) -> tuple[str, ...]:
    """Refuse a configuration that differs from what the source states of its model.

    Return a note of the fields that nothing states, if configuration and weights are of two
    folders.
    """
    if source.stated:
        missing = refuse_difference(source.stated, load_config(str(folder)), folder)
    else:
        missing = NOT_IN_SHAPES if based and source.form != "adapter" else ()
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
    try:
        name = located(name)
    except EquipoiseError as error:
        message = f"the base of {source.path} cannot be had: {error.message}"
        remedy = f"{error.remedy} Where it is another folder now, name that: --base."
        raise EquipoiseError(error.code, message, remedy) from error
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
    """Find the folder whose config.json decides: the last one that has it."""
    for folder in reversed(folders):
        if (folder / "config.json").is_file():
            return folder
    return refuse(
        "convert.no-config", f"{folders[0]} has no config.json", "Name the whole model with --base."
    )


def _fill(plan: _Plan, progress: ShowProgress, folder: Path) -> None:
    """Write a planned model into the folder, and verify what was written."""
    for source in plan.companions:
        copy_beside(source, folder)
    _drop_code(folder / "tokenizer_config.json")
    _drop_code(folder / "config.json")
    tensors = tensors_of_model(plan.tensors, folder)
    # config.json says what loads the weights, and in which number format they are.
    config = read_object(folder / "config.json")
    for key in ("torch_dtype", "quantization_config"):  # no weight here is quantized
        config.pop(key, None)
    config["dtype"] = str(of_dtype(tensors)).removeprefix("torch.")
    config["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING[type(load_config(str(folder)))].__name__]
    write_json(folder / "config.json", config)
    unchecked = plan.unstated + verify_beside(folder)
    with progress("writing, in MB", megabytes(total_bytes(tensors))) as bar:
        write_model(folder, tensors, _adding(bar))
    with progress("loading what was written"):
        verdict = verify_model(folder, plan.reference, unchecked)
    _LOG.info(f"checked: {verdict}")
    write_record(plan.source, folder, checked=asdict(verdict))


def _fill_adapter(source: Source, base: str | None, folder: Path) -> None:
    """Write an adapter: copy PEFT's own tensors, put Megatron's into PEFT's form."""
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
        of_base = load_config(str(folder_of_base)).to_dict()
        adapter = megatron_adapter(source.tensors, source.peft or {}, of_base)
        config, tensors = peft_files(adapter, base)
    write_file(folder / WEIGHTS, tensors, lambda _: None)
    write_json(folder / CONFIG, config)
    (folder / "config.json").unlink(missing_ok=True)  # of the base, which is another model
    _LOG.info(f"checked: an adapter of {len(tensors)} tensors")


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
    settings = read_object(path) if path.is_file() else {}
    if named := settings.keys() & set(NAMES_OF_CODE):
        write_json(path, {key: value for key, value in settings.items() if key not in named})


def write_record(source: Source, folder: Path, **more: Any) -> None:
    """Write conversion.json: where a model comes from, and what was checked of it."""
    about = {"path": str(source.path.resolve()), "kind": source.kind, "base": source.base}
    write_json(folder / "conversion.json", {"schema": 2, "source": about, **more})
