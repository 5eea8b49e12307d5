"""Configuration and tokenizer for transformers, made from a checkpoint of NeMo's."""

import shutil
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from data_prep.files import write_json
from equipoise.checkpoints.hugging_face import copy_beside
from equipoise.checkpoints.nemo import Nemo
from equipoise.checkpoints.tensors import refuse
from equipoise.models.pretrained import LOADING_ERRORS

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
    tokenizer = _loaded(folder)
    if (folder / _MODEL).is_file():
        _refuse_another_reading(tokenizer, folder / _MODEL)
        tokenizer.save_pretrained(folder)  # in a form that loads without sentencepiece
    config = nemo.config.hugging_face(_vocabulary(nemo, len(tokenizer)))
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
        refuse(f"{nemo.context} holds no tokenizer{named}", _WITH_TOKENIZER)
    if settings.get("special_tokens"):
        refuse(f"{nemo.context}: its tokenizer has special tokens of its own", _WITH_TOKENIZER)
    name = model.removeprefix(_IN_ARCHIVE)
    if Path(name).name != name or not (nemo.context / name).is_file():
        refuse(f"{nemo.context} has no {model}, its tokenizer", _WITH_TOKENIZER)
    shutil.copyfile(nemo.context / name, folder / _MODEL)
    write_json(folder / "tokenizer_config.json", _SENTENCEPIECE)


def _loaded(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (*LOADING_ERRORS, ImportError) as error:
        return refuse(f"{folder}: the tokenizer does not load: {error}", _WITH_TOKENIZER)


def _refuse_another_reading(tokenizer: Any, model: Path) -> None:
    """Transformers reads Llama's kind of sentencepiece models as sentencepiece does, others not."""
    # NeMo-RL's environment for its driver has none, and its runs end in a conversion too.
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_file=str(model))
    except (OSError, RuntimeError) as error:
        refuse(f"{model}: the tokenizer does not load: {error}", _WITH_TOKENIZER)
    ids = len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id
    if ids != (processor.get_piece_size(), processor.bos_id(), processor.eos_id()):
        refuse(f"{model} has not Llama's special pieces, <s> and </s>", _WITH_TOKENIZER)
    for text in _PROBES:
        if processor.encode(text) != tokenizer(text, add_special_tokens=False)["input_ids"]:
            refuse(
                f"{model} is no tokenizer of Llama's kind: transformers reads {text!r} otherwise "
                "than sentencepiece",
                _WITH_TOKENIZER,
            )


def _vocabulary(nemo: Nemo, words: int) -> int:
    """How many rows of the embeddings are words; NeMo fills them up to a multiple."""
    name = "embedding.word_embeddings.weight"
    rows = next((t.shape[:1] for n, t in nemo.tensors.items() if n.endswith(name)), ())
    if not rows:
        refuse(f"{nemo.context}: the checkpoint has no {name}")
    if nemo.config.settings.get("vocab_size"):
        return nemo.config.number("vocab_size")
    return words if (nemo.config.padded(words),) == rows else rows[0]
