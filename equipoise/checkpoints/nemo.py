"""NeMo's own checkpoints: NeMo 1's, unpacked from a `.nemo` file or so written, and NeMo 2's.

Their tensors have Megatron's names. NeMo 1 wrote them as one file, as one for each rank, or as a
folder in torch_dist. Tensor parallel ranks have a part of each matrix; each pipeline rank counts
its layers from zero.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoTokenizer

from data_prep.files import write_json
from equipoise.checkpoints.dcp import torch_dist_tensors
from equipoise.checkpoints.files import yaml_mapping
from equipoise.checkpoints.hugging_face import copy_beside
from equipoise.checkpoints.stated import NemoConfig, config_of_1, config_of_2
from equipoise.checkpoints.tensors import (
    COPY_AGAIN,
    LazyTensor,
    Part,
    Tensors,
    join,
    refuse,
    torch_file_tensors,
)
from equipoise.models.pretrained import LOADING_ERRORS

CONFIG = "model_config.yaml"
_FILE, _FOLDER = "model_weights.ckpt", "model_weights"
_RANK = re.compile(r"mp_rank_(\d+)|tp_rank_(\d+)_pp_rank_(\d+)")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
#: Buffers, which the configuration makes again, and Transformer Engine's state for 8-bit numbers.
_NO_WEIGHTS = re.compile(r"_extra_state|rotary_pos_emb\.inv_freq$")
#: How tensor parallel ranks share a tensor: by its rows, by the rows of its two halves, by columns.
_BY_ROWS = re.compile(r"(word_embeddings|output_layer|linear_qkv)\.(weight|bias)$")
_BY_HALVES = re.compile(r"linear_fc1\.(weight|bias)$")
_BY_COLUMNS = re.compile(r"(linear_proj|linear_fc2)\.weight$")
_WORDS, _OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_NAME_IT = "Name the model that training began with: --base."
#: Of an archive: NeMo's widest numbers, a vocabulary that its configuration does not name, and what
#: may be beside the weights: a tokenizer, the state of a quantizer.
_WIDEST_BYTES, _MOST_WORDS, _MOST_BESIDE = 4, 2**20, 10**9


@dataclass(frozen=True, slots=True)
class Nemo:
    """A checkpoint of NeMo's."""

    kind: str
    tensors: Tensors
    config: NemoConfig
    context: Path  # where the configuration's files are


def is_nemo(path: Path) -> bool:
    """Whether the folder is one of NeMo's."""
    return (path / CONFIG).is_file() or _places_of_2(path) is not None


def open_nemo(path: Path) -> Nemo | None:
    """Open a folder of NeMo's; None for any other. Raises `ConversionError` if it is damaged."""
    if (path / CONFIG).is_file():
        return _nemo_1(path)
    places = _places_of_2(path)
    return _nemo_2(*places) if places else None


def _places_of_2(path: Path) -> tuple[Path, Path] | None:
    """NeMo 2's weights and context, of the folder of both or of the weights."""
    for weights, context in (path / "weights", path / "context"), (path, path.parent / "context"):
        if (weights / "metadata.json").is_file() and (context / "io.json").is_file():
            return weights, context
    return None


def archive_allowance(folder: Path) -> int | None:
    """The most bytes that an archive may unpack to, once its configuration was unpacked."""
    if not (folder / CONFIG).is_file():
        return None
    config = config_of_1(folder / CONFIG, yaml_mapping(folder / CONFIG))
    return config.most_parameters(_MOST_WORDS) * _WIDEST_BYTES + _MOST_BESIDE


def _nemo_2(weights: Path, context: Path) -> Nemo:
    path = context / "model.yaml"
    if not path.is_file():
        refuse(
            "nemo.unstated-default",
            f"{path} is missing, and io.json has no value that was a class's default",
            _NAME_IT,
        )
    tensors = _weights(torch_dist_tensors(weights))
    if any(".adapter." in name for name in tensors):
        refuse(
            "nemo.lora-adapter",
            f"{weights} holds a LoRA adapter of NeMo 2's, which is not read here",
        )
    config = config_of_2(path, yaml_mapping(path))
    return Nemo("a model of NeMo 2's", tensors, config, context)


def _weights(tensors: Tensors) -> dict[str, LazyTensor]:
    return {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHTS.search(name)}


def _nemo_1(path: Path) -> Nemo:
    config = config_of_1(path / CONFIG, yaml_mapping(path / CONFIG))
    if (path / _FOLDER).is_dir():
        tensors = _weights(torch_dist_tensors(path / _FOLDER))
        return Nemo("a model of NeMo 1's in torch_dist", tensors, config, path)
    if (path / _FILE).is_file():
        return Nemo("a model of NeMo 1's", _weights(torch_file_tensors(path / _FILE)), config, path)
    ranks = _rank_folders(path, config)
    across, stages = 1 + max(t for t, _ in ranks), 1 + max(p for _, p in ranks)
    kind = f"a model of NeMo 1's from {across} tensor and {stages} pipeline parallel ranks"
    return Nemo(kind, _joined(path, ranks, config.tied), config, path)


# --- Files of ranks ----------------------------------------------------------------------------

#: Tensor parallel rank and pipeline rank -> its folder.
_Ranks = dict[tuple[int, int], Path]


def _rank_folders(path: Path, config: NemoConfig) -> _Ranks:
    ranks: _Ranks = {}
    for folder in path.iterdir():
        if match := _RANK.fullmatch(folder.name):
            rank = int(match[1] or match[2]), int(match[3] or 0)
            ranks[rank] = folder
    if not ranks:
        refuse(
            "nemo.no-rank-folder",
            f"{path} holds no {_FILE}, no {_FOLDER} and no folder of a rank",
            COPY_AGAIN,
        )
    counts = [
        max(1 + max(rank[axis] for rank in ranks), config.count(f"{kind}_model_parallel_size"))
        for axis, kind in enumerate(("tensor", "pipeline"))
    ]
    for rank in product(range(counts[0]), range(counts[1])):
        if not (ranks.get(rank, path / "none") / _FILE).is_file():
            refuse(
                "nemo.missing-rank",
                f"{path} has no {_FILE} of the rank {rank} (tensor, pipeline)",
                COPY_AGAIN,
            )
    return ranks


def _joined(path: Path, ranks: _Ranks, tied: bool) -> Tensors:
    """The whole tensors of all ranks, with layers counted over the whole model."""
    by_rank = {rank: _weights(torch_file_tensors(ranks[rank] / _FILE)) for rank in sorted(ranks)}
    joined: dict[str, LazyTensor] = {}
    layers = 0
    for stage in sorted({stage for _, stage in by_rank}):
        parts = [tensors for (_, pipeline), tensors in by_rank.items() if pipeline == stage]
        for name in parts[0]:
            if missing := [n for n, part in enumerate(parts) if name not in part]:
                refuse(
                    "nemo.missing-tensor",
                    f"{ranks[missing[0], stage] / _FILE} has no {name}",
                    COPY_AGAIN,
                )
            moved = _LAYER.sub(lambda match: f".layers.{int(match[1]) + layers}.", name)  # noqa: B023
            joined[moved] = _of_parts(path, moved, [part[name] for part in parts])
        numbers = [int(match[1]) for name in parts[0] if (match := _LAYER.search(name))]
        layers += 1 + max(numbers, default=-1)
    return _without_copy(path, joined) if tied else joined


def _of_parts(path: Path, name: str, parts: Sequence[LazyTensor]) -> LazyTensor:
    """A tensor from those of the tensor parallel ranks."""
    if len(parts) == 1:
        return parts[0]
    if len({(part.shape, part.dtype) for part in parts}) > 1:
        _refuse_mixed(path, f"the ranks' parts of {name} are not of one shape")
    first, count = parts[0], len(parts)
    if _BY_COLUMNS.search(name) and len(first.shape) == 2:
        columns = first.shape[1]
        placed = [Part((0, rank * columns), part, path) for rank, part in enumerate(parts)]
        return join(path, name, (first.shape[0], count * columns), first.dtype, placed)
    halves = 2 if _BY_HALVES.search(name) else 1
    if first.shape and (_BY_ROWS.search(name) or halves > 1):
        row_count, *tail = first.shape
        rows = row_count // halves
        # Of two halves, all ranks' first ones come before the second.
        placed = [
            Part(
                ((half * count + rank) * rows, *(0 for _ in tail)),
                part[half * rows : (half + 1) * rows],
                path,
            )
            for half in range(halves)
            for rank, part in enumerate(parts)
        ]
        return join(path, name, (count * row_count, *tail), first.dtype, placed)

    def read() -> torch.Tensor:
        return _equal(path, name, [part.read() for part in parts])

    return LazyTensor(first.shape, first.dtype, read)


def _equal(path: Path, name: str, copies: list[torch.Tensor]) -> torch.Tensor:
    """Return the one value of a tensor that every rank has whole."""
    if not all(torch.equal(copies[0], copy) for copy in copies[1:]):
        _refuse_mixed(path, f"{name} differs between ranks")
    return copies[0]


def _without_copy(path: Path, tensors: dict[str, LazyTensor]) -> Tensors:
    """The last stage has a copy of tied embeddings for its output layer."""
    words = next((name for name in tensors if name.endswith(_WORDS)), None)
    output = next((name for name in tensors if name.endswith(_OUTPUT)), None)
    if words is None or output is None:
        return tensors
    first, copy = tensors[words], tensors.pop(output)
    if copy.shape != first.shape:
        _refuse_mixed(path, f"{output} is {copy.shape} and {words} {first.shape}")

    def read() -> torch.Tensor:
        return _equal(path, words, [first.read(), copy.read()])

    return tensors | {words: LazyTensor(first.shape, first.dtype, read)}


def _refuse_mixed(path: Path, problem: str) -> NoReturn:
    refuse("nemo.mixed-ranks", f"{path}: {problem}; are its files of one checkpoint?", COPY_AGAIN)


# --- Configuration and tokenizer for transformers -------------------------------------------------

#: Sentencepiece's own names of its special pieces, which Llama's tokenizer keeps.
_SENTENCEPIECE = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "add_bos_token": True,
    "add_eos_token": False,
}
#: What both must read alike: words, numbers, spaces, lines, signs that were never seen, code.
_PROBES = (
    "The pill of 37.5 mg, twice  daily.",
    "Ärztin, naïve: 5 µg/ml?",
    "two\nlines\tand a tab ",
    "体温 38°C 🙂",
    "x = {'a': [1, 2]}  # done",
)
_WITH_TOKENIZER = "Name a model with its tokenizer and configuration: --base."
_IN_ARCHIVE, _MODEL = "nemo:", "tokenizer.model"


def write_beside(nemo: Nemo, folder: Path) -> None:
    """Write config.json, the tokenizer and, where there is one, generation_config.json.

    Raises `ConversionError` where one cannot be made of what the checkpoint holds.
    """
    _copy_tokenizer(nemo, folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (*LOADING_ERRORS, ImportError) as error:
        refuse(
            "nemo.unloadable-tokenizer",
            f"{folder}: the tokenizer does not load: {error}",
            _WITH_TOKENIZER,
        )
    if (folder / _MODEL).is_file():
        _refuse_another_reading(tokenizer, folder / _MODEL)
        tokenizer.save_pretrained(folder)  # in a form that loads without sentencepiece
    # How many rows of the embeddings are words; NeMo fills them up to a multiple.
    rows = next((t.shape[:1] for n, t in nemo.tensors.items() if n.endswith(_WORDS)), ())
    if not rows:
        refuse("nemo.no-embeddings", f"{nemo.context}: the checkpoint has no {_WORDS}")
    if nemo.config.settings.get("vocab_size"):
        words = nemo.config.number("vocab_size")
    else:
        words = len(tokenizer) if (nemo.config.padded(len(tokenizer)),) == rows else rows[0]
    config = nemo.config.hugging_face(words)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[name] = getattr(tokenizer, name)
    write_json(folder / "config.json", config)
    copy_beside(nemo.context / "artifacts", folder)  # generation_config.json


def _copy_tokenizer(nemo: Nemo, folder: Path) -> None:
    """Hugging Face's files of NeMo 2, or the sentencepiece model of NeMo 1."""
    if (nemo.context / "nemo_tokenizer").is_dir():
        copy_beside(nemo.context / "nemo_tokenizer", folder)
        return
    settings = nemo.config.settings.get("tokenizer")
    settings = settings if isinstance(settings, dict) else {}
    library, model = settings.get("library"), settings.get("model")
    if library != "sentencepiece" or not isinstance(model, str):
        named = f", and names {settings['type']}" if isinstance(settings.get("type"), str) else ""
        refuse("nemo.no-tokenizer", f"{nemo.context} holds no tokenizer{named}", _WITH_TOKENIZER)
    if settings.get("special_tokens"):
        refuse(
            "nemo.special-tokens",
            f"{nemo.context}: its tokenizer has special tokens of its own",
            _WITH_TOKENIZER,
        )
    name = model.removeprefix(_IN_ARCHIVE)
    if Path(name).name != name or not (nemo.context / name).is_file():
        refuse(
            "nemo.missing-tokenizer-model",
            f"{nemo.context} has no {model}, its tokenizer",
            _WITH_TOKENIZER,
        )
    shutil.copyfile(nemo.context / name, folder / _MODEL)
    write_json(folder / "tokenizer_config.json", _SENTENCEPIECE)


def _refuse_another_reading(tokenizer: Any, model: Path) -> None:
    """Transformers reads Llama's kind of sentencepiece models as sentencepiece does, others not."""
    # NeMo-RL's environment for its driver has none, and its runs end in a conversion too.
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        refuse(
            "nemo.unloadable-tokenizer-model",
            f"{model}: the tokenizer does not load: {error}",
            _WITH_TOKENIZER,
        )
    ids = len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id
    if ids != (processor.get_piece_size(), processor.bos_id(), processor.eos_id()):
        refuse(
            "nemo.no-special-pieces",
            f"{model} has not Llama's special pieces, <s> and </s>",
            _WITH_TOKENIZER,
        )
    for text in _PROBES:
        if processor.encode(text) != tokenizer(text, add_special_tokens=False)["input_ids"]:
            refuse(
                "nemo.other-tokenizer",
                f"{model} is no tokenizer of Llama's kind: transformers reads {text!r} otherwise "
                "than sentencepiece",
                _WITH_TOKENIZER,
            )
