"""A checkpoint that NeMo 2 writes, in NeMo 2.4.1's own code on a CPU.

    python tests/contract/nemo/environment.py                              # once
    ENVIRONMENT/bin/python tests/contract/nemo/write.py FOLDER

FOLDER/nemo_2 gets what NeMo wrote, expected.safetensors (the tensors of the model of Hugging Face's
that its weights are from), config.json (that model's), and logits.safetensors (of NeMo's own
forward pass).

Real: LlamaModel with megatron-core's layers, the importer of NeMo 2 with its transforms and its
writer. Not real, besides what cpu.py names: layers are megatron-core's own and not Transformer
Engine's.
"""

import json
import os
import shutil
import sys
from pathlib import Path

#: Names of no machine go into the files.
WORK = Path("/tmp/nemo")
WORDS = 50
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def main(out: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import cpu

    cpu.prepare()
    import nemo.collections.llm  # noqa: F401  it takes a minute

    cpu.adjust()
    words = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {
        **words,
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "nemo",
        "MASTER_PORT": "29733",
    }
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "nemo_2").mkdir(parents=True)
    make_tokenizer()
    write_nemo_2()
    shutil.copytree(WORK / "nemo_2", out / "nemo_2", dirs_exist_ok=True)


def make_tokenizer() -> None:
    """One of Hugging Face's."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    letters = ["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789 .,?!:;-'\"()/"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(WORK / "tokenizer")


def make_model(settings: dict):
    """A model of Hugging Face's, in float32, of random numbers that are no round ones."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    words = SIZES | {"tie_word_embeddings": False} | settings
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**words)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) + (parameter.ndim == 1))
    return model


def record(folder: Path, model, logits) -> None:
    """What the checkpoint must become."""
    from safetensors.torch import save_file

    tied = model.config.tie_word_embeddings
    tensors = {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    save_file(tensors, folder / "expected.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config.to_diff_dict(), indent=2) + "\n")
    theirs = model(tokens()).logits.detach()
    save_file({"ids": tokens(), "nemo": logits}, folder / "logits.safetensors")
    difference = float((logits - theirs).abs().max())
    print(f"{folder.name}: logits of NeMo and transformers differ by {difference:.2g}", flush=True)
    assert difference < 1e-4


def tokens():
    import torch

    return torch.arange(48)[None] * 7 % WORDS


def forward(model):
    """Logits of every word."""
    import torch

    model.eval()
    ids = tokens()
    places = torch.arange(ids.shape[1]).expand_as(ids)
    hidden = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()[None, None]
    with torch.no_grad():
        return model(ids, places, hidden).contiguous()


def write_nemo_2() -> None:
    """By NeMo 2's importer; its table of names is for Transformer Engine's layers."""
    from nemo.collections.llm.gpt.model.llama import HFLlamaImporter
    from nemo.lightning import io
    from nemo.lightning.io.state import TransformFns

    rope = {"rope_theta": 500000.0, "rope_scaling": LLAMA3}
    source = make_model({"model_type": "llama", **rope})
    shutil.copytree(WORK / "tokenizer", WORK / "hugging_face")
    source.save_pretrained(WORK / "hugging_face")
    logits = []

    def convert_state(self, theirs, ours):
        layer, other = "model.layers.*.", "decoder.layers.*."
        mapping = {
            "model.embed_tokens.weight": "embedding.word_embeddings.weight",
            f"{layer}self_attn.o_proj.weight": f"{other}self_attention.linear_proj.weight",
            f"{layer}mlp.down_proj.weight": f"{other}mlp.linear_fc2.weight",
            f"{layer}input_layernorm.weight": f"{other}input_layernorm.weight",
            f"{layer}post_attention_layernorm.weight": f"{other}pre_mlp_layernorm.weight",
            "model.norm.weight": "decoder.final_layernorm.weight",
            "lm_head.weight": "output_layer.weight",
        }
        merged = [
            io.state_transform(
                source_key=tuple(f"{layer}self_attn.{name}_proj.weight" for name in "qkv"),
                target_key=f"{other}self_attention.linear_qkv.weight",
                fn=TransformFns.merge_qkv,
            ),
            io.state_transform(
                source_key=tuple(f"{layer}mlp.{name}_proj.weight" for name in ("gate", "up")),
                target_key=f"{other}mlp.linear_fc1.weight",
                fn=TransformFns.merge_fc1,
            ),
        ]
        target = io.apply_transforms(theirs, ours, mapping=mapping, transforms=merged)
        logits.append(forward(target.module))
        return target

    HFLlamaImporter.convert_state = convert_state
    HFLlamaImporter(str(WORK / "hugging_face"))(WORK / "nemo_2" / "model")
    record(WORK / "nemo_2", source, logits[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
