"""NeMo 2's folders: weights in torch_dist by Megatron's names, configuration and tokenizer beside.

io.json and model.yaml name Python classes; both are read as data.
"""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from equipoise.checkpoints.dcp import torch_dist_tensors
from equipoise.checkpoints.hugging_face import copy_beside
from equipoise.checkpoints.stated import MegatronConfig, config_of_nemo
from equipoise.checkpoints.tensors import Tensors, refuse, yaml_mapping
from equipoise.files.disk import write_json
from equipoise.models.pretrained import LOADING_ERRORS

_WORDS = "embedding.word_embeddings.weight"
_NAME_IT = "Name the model that training began with: --base."


@dataclass(frozen=True, slots=True)
class NemoFolder:
    """NeMo 2's weights, and its configuration with the folder that this is in."""

    tensors: Tensors
    config: MegatronConfig
    context: Path


def folders_of_nemo(path: Path) -> tuple[Path, Path] | None:
    """Return NeMo 2's weights and context, given the folder of both or that of the weights."""
    for weights, context in (path / "weights", path / "context"), (path, path.parent / "context"):
        if (weights / "metadata.json").is_file() and (context / "io.json").is_file():
            return weights, context
    return None


def open_nemo(weights: Path, context: Path) -> NemoFolder:
    """Open a folder of NeMo 2's."""
    path = context / "model.yaml"
    if not path.is_file():
        refuse(
            "nemo.unstated-default",
            f"{path} is missing, and io.json has no value that was a class's default",
            _NAME_IT,
        )
    tensors = torch_dist_tensors(weights)
    if any(".adapter." in name for name in tensors):
        refuse(
            "nemo.lora-adapter",
            f"{weights} holds a LoRA adapter of NeMo 2's, which is not read here",
            "Merge it with NeMo's own llm.peft.merge_lora first.",
        )
    return NemoFolder(tensors, config_of_nemo(path, yaml_mapping(path)), context)


def write_beside(nemo: NemoFolder, folder: Path) -> None:
    """Write config.json, the tokenizer and, where there is one, generation_config.json."""
    copy_beside(nemo.context / "nemo_tokenizer", folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (*LOADING_ERRORS, ImportError) as error:
        refuse(
            "nemo.unloadable-tokenizer",
            f"{nemo.context}: the tokenizer does not load: {' '.join(str(error).split())}",
            "Name a model with its tokenizer and configuration: --base.",
        )
    # NeMo fills the rows of the embeddings up to a multiple.
    rows = next((t.shape[0] for n, t in nemo.tensors.items() if n.endswith(_WORDS) and t.shape), 0)
    if not rows:
        refuse("nemo.no-embeddings", f"{nemo.context}: the checkpoint has no {_WORDS}")
    words = len(tokenizer) if nemo.config.padded(len(tokenizer)) == rows else rows
    config = nemo.config.hugging_face(nemo.config.count("vocab_size", words))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[name] = getattr(tokenizer, name)
    write_json(folder / "config.json", config)
    copy_beside(nemo.context / "artifacts", folder)  # generation_config.json
