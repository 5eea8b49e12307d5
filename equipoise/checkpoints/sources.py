"""Checkpoint sources, recognised by their content."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from equipoise.checkpoints.dcp import dcp_tensors, is_dcp, torch_dist_tensors
from equipoise.checkpoints.hugging_face import (
    SHARD_METADATA,
    is_model,
    model_tensors,
    sharded_tensors,
    shards,
)
from equipoise.checkpoints.lora import CONFIG, adapter_config
from equipoise.checkpoints.megatron import MegatronConfig, stated_by
from equipoise.checkpoints.tensors import Tensors, refuse, size, total_bytes, yaml_mapping
from equipoise.files.untrusted import check_folder

_ITERATION = re.compile(r"iter_(\d+)$")
#: What a source's tensors are: a model by Hugging Face's names or Megatron's, or a LoRA adapter.
Form = Literal["hugging_face", "megatron", "adapter", "megatron_adapter"]
#: Forms that are merged into a base.
ADAPTERS = ("adapter", "megatron_adapter")
#: Fields of config.json that change no forward pass of the model that is written.
_OF_TRAINING = frozenset(
    {"use_cache", "attn_implementation", "attention_dropout", "dtype", "torch_dtype"}
)
_ONE_ADAPTER = (
    "Name one of them; for a sum of several, merge one and take that as --base of the next."
)


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint: its name, its path and its tensors."""

    kind: str
    path: Path
    form: Form
    tensors: Tensors = field(default_factory=dict)
    companions: tuple[Path, ...] = ()  # folders that may have configuration and tokenizer
    base: str | None = None  # the model that training began with
    revision: str | None = None  # of the base on the hub
    peft: Mapping[str, Any] | None = None  # how Megatron's adapters were made
    stated: MegatronConfig | None = None  # what it says of its model, where another says it, too


def open_source(path: Path) -> Source:
    """Recognise a checkpoint. Raises `EquipoiseError` for anything else, or a damaged one."""
    if not path.is_dir():
        refuse(
            "convert.no-folder",
            f"{path} {'is a file' if path.exists() else 'does not exist'}",
            _NAME_A_SOURCE,
        )
    check_folder(path)
    for look in _FOLDERS.values():
        if source := look(path):
            return source
    return refuse(
        "convert.unknown-format", f"{path} is not a checkpoint that is known here", _NAME_A_SOURCE
    )


def _step(path: Path) -> Source | None:
    """NeMo-RL's `step_N`: weights, tokenizer, and the configuration that names the base."""
    weights = path / "policy" / "weights"
    if not weights.is_dir():
        return None
    source = _adapter(weights / "model") or _adapter(weights) or _weights(weights)
    if source is None:
        refuse(
            "convert.step-without-weights", f"{weights} holds no weights of DTensor's or Megatron's"
        )
    config = path / "config.yaml"
    policy = yaml_mapping(config).get("policy") if config.is_file() else None
    policy = policy if isinstance(policy, dict) else {}
    overrides = policy.get("hf_config_overrides")
    changed = overrides.keys() - _OF_TRAINING if isinstance(overrides, dict) else ()
    if changed:
        refuse(
            "stated.config-overrides",
            f"{config}: training changed the model by policy.hf_config_overrides: "
            f"{', '.join(sorted(changed))}",
            "Write it into a copy of the base's config.json, take it out of this file, and name "
            "the copy: --base.",
        )
    return replace(
        source,
        kind=f"NeMo-RL's {path.name}, {source.kind}",
        companions=(*source.companions, path / "policy" / "tokenizer"),
        base=source.base or policy.get("model_name"),
    )


def _adapter(path: Path) -> Source | None:
    """The adapter in this folder; PEFT keeps all but its default adapter in subfolders."""
    below = sorted(folder.parent.name for folder in path.glob(f"*/{CONFIG}"))
    if not (path / CONFIG).is_file():
        if len(below) > 1:
            refuse(
                "convert.several-adapters",
                f"{path} holds several adapters: {', '.join(below)}",
                _ONE_ADAPTER,
            )
        return _adapter(path / below[0]) if below else None
    config = adapter_config(path)
    base, revision = (config.get(key) for key in ("base_model_name_or_path", "revision"))
    kind = f"a LoRA adapter of PEFT's{', without those below it' if below else ''}"
    return Source(
        kind, path, "adapter", companions=(path,), base=base or None, revision=revision or None
    )


def _weights(path: Path) -> Source | None:
    """Open the checkpoint of a training backend in this folder or one below it."""
    for folder in (path, path / "model"):
        for look in (_megatron, _dtensor):
            if source := look(folder):
                return source
    return None


def _megatron(path: Path) -> Source | None:
    """An `iter_N`, or the folder of several, in the format torch_dist."""
    if not (path / "metadata.json").is_file():
        numbered = {int(m[1]): p for p in path.glob("*") if (m := _ITERATION.match(p.name))}
        return _megatron(numbered[max(numbered)]) if numbered else None
    tensors = torch_dist_tensors(path)
    stated = path / "run_config.yaml"
    settings = yaml_mapping(stated) if stated.is_file() else {}
    peft = settings.get("peft")
    of_adapter = any(".adapter." in name for name in tensors)
    if of_adapter and not isinstance(peft, dict):
        refuse(
            "convert.no-run-config",
            f"{path} holds adapters, and no run_config.yaml says how they were made",
        )
    return Source(
        kind=f"{'adapters' if of_adapter else 'a model'} of Megatron's"
        f"{'' if settings else ', without run_config.yaml'}",
        path=path,
        form="megatron_adapter" if of_adapter else "megatron",
        tensors=tensors,
        companions=(path / "tokenizer",),
        peft=peft,
        stated=stated_by(stated, "model"),
    )


def _dtensor(path: Path) -> Source | None:
    if consolidated := _hugging_face(path / "consolidated"):
        return replace(consolidated, kind="weights of DTensor's, consolidated")
    companions = (path / SHARD_METADATA,)
    if ranks := len(shards(path)):
        kind = f"weights of DTensor's, in {ranks} shards"
        return Source(kind, path, "hugging_face", sharded_tensors(path), companions=companions)
    if not is_dcp(path):
        return None
    within = dcp_tensors(path, within="model")  # which its first form has
    tensors = {name: tensor for name, tensor in within.items() if not name.startswith("optim")}
    kind = "weights of DTensor's, in torch's own format"
    return Source(kind, path, "hugging_face", tensors, companions=companions)


def _nemo(path: Path) -> Source | None:
    """NeMo 2's weights beside its context; the folder of either will do."""
    for weights, context in (path / "weights", path / "context"), (path, path.parent / "context"):
        if (weights / "metadata.json").is_file() and (context / "io.json").is_file():
            settings = context / "model.yaml"
            return Source(
                kind="a model of NeMo 2's",
                path=path,
                form="megatron",
                tensors=torch_dist_tensors(weights),
                stated=stated_by(settings, "config"),
            )
    return None


def _hugging_face(path: Path) -> Source | None:
    if not is_model(path):
        return None
    tensors = model_tensors(path)
    return Source("a model of Hugging Face's", path, "hugging_face", tensors, companions=(path,))


#: Kind of folder -> the function that opens it, in the order of the search.
_FOLDERS: Mapping[str, Callable[[Path], Source | None]] = {
    "a folder of NeMo 2": _nemo,
    "a step_N of NeMo-RL": _step,
    "a PEFT adapter": _adapter,
    "an iter_N of Megatron or weights of DTensor": _weights,
    "a folder of Hugging Face's": _hugging_face,
}
_NAME_A_SOURCE = f"Name a run directory, {', '.join(_FOLDERS)}."


def describe(source: Source) -> str:
    """Describe the source in one line."""
    tensors = source.tensors
    contents = f", {len(tensors):,} tensors, {size(total_bytes(tensors))}" if tensors else ""
    return f"{source.path}: {source.kind}{contents}"
