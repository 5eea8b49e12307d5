"""Checkpoints in all of NeMo's layouts, written by NeMo 2.4.1's own code on a CPU.

    python tests/contract/nemo/environment.py                              # once
    ENVIRONMENT/bin/python tests/contract/nemo/write.py FOLDER

FOLDER gets one folder for each case: what NeMo wrote, expected.safetensors (the tensors of the
model of Hugging Face's that its weights are from), config.json (that model's), and
logits.safetensors (of NeMo's own forward pass; of the checkpoint with pipeline stages, which are no
model by themselves, that of one process with the same weights).

Real: MegatronGPTModel and LlamaModel with megatron-core's layers, NLPSaveRestoreConnector.save_to
with model parallel ranks of their own processes over gloo, the importer of NeMo 2 with its
transforms and its writer. Not real, besides what cpu.py names: layers are megatron-core's own and
not Transformer Engine's (norms are apart in NeMo 1's files by rank), and files by rank are written
by telling the connector that there is no distributed checkpoint, as releases before it had none.
"""

import json
import multiprocessing
import os
import shutil
import sys
from multiprocessing import connection
from pathlib import Path

#: Names of no machine go into the files.
WORK = Path("/tmp/nemo")
WORDS, PIECES = 50, 300
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
OF_NEMO_1 = {
    "mcore_gpt": True,
    "micro_batch_size": 1,
    "global_batch_size": 1,
    "encoder_seq_length": 64,
    "max_position_embeddings": "${.encoder_seq_length}",
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_hidden_size": 24,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "rmsnorm",
    "layernorm_epsilon": 1e-5,
    "make_vocab_size_divisible_by": 16,
    "bias": False,
    "activation": "fast-swiglu",
    "position_embedding_type": "rope",
    "rotary_percentage": 1.0,
    "share_embeddings_and_output_weights": False,
    "transformer_engine": False,
    "use_cpu_initialization": True,
    "apply_query_key_layer_scaling": False,
    "precision": 32,
    "optim": {"name": "fused_adam", "lr": 1e-4},
}
SENTENCEPIECE = {"library": "sentencepiece", "model": str(WORK / "tokenizer.model")}
HUGGING_FACE = {"library": "huggingface", "type": str(WORK / "tokenizer"), "use_fast": True}
#: Case -> tensor and pipeline parallel ranks, a distributed checkpoint or not, NeMo's settings, the
#: model of Hugging Face's.
CASES = {
    "flat": (
        *(1, 1, False),
        {"rotary_base": 500000.0, "scale_positional_embedding": True, "tokenizer": SENTENCEPIECE},
        {
            "model_type": "llama",
            "vocab_size": 304,
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3,
        },
    ),
    "mp_rank": (
        *(2, 1, False),
        {"qkv_bias": True, "tokenizer": HUGGING_FACE, "override_vocab_size": 64},
        {"model_type": "qwen2"},
    ),
    "tp_pp_rank": (
        *(2, 2, False),
        {
            "share_embeddings_and_output_weights": True,
            "qk_layernorm": True,
            "kv_channels": 8,
            "num_layers": 4,
            "tokenizer": HUGGING_FACE,
        },
        {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 8, "num_hidden_layers": 4},
    ),
    "torch_dist": (
        *(1, 1, True),
        {"seq_len_interpolation_factor": 2.0, "tokenizer": HUGGING_FACE},
        {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
}


def main(out: Path) -> None:
    """Every case in a process of its own, with NeMo imported once."""
    sys.path.insert(0, str(Path(__file__).parent))
    import cpu

    cpu.prepare()
    import nemo.collections.llm  # noqa: F401  it takes a minute
    from nemo.collections.nlp.models.language_modeling import megatron_gpt_model  # noqa: F401

    cpu.adjust()
    shutil.rmtree(WORK, ignore_errors=True)
    make_tokenizers()
    for case in (*CASES, "nemo_2"):
        (WORK / case).mkdir()
        ranks = ranks_of(case)
        run_ranks(case, ranks)
        if case in CASES and CASES[case][1] > 1:
            run_ranks(case, 1)
        shutil.copytree(WORK / case, out / case, dirs_exist_ok=True)
        shutil.copy(WORK / "sentences.json", out)
        print(f"{case}: written by {ranks} processes", flush=True)


def ranks_of(case: str) -> int:
    return CASES[case][0] * CASES[case][1] if case in CASES else 1


def run_ranks(case: str, ranks: int) -> None:
    """One process each; if they are not as many as the case has, nothing but logits is written."""
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=rank_of, args=(case, rank, ranks)) for rank in range(ranks)]
    for process in processes:
        process.start()
    waiting = {process.sentinel: process for process in processes}
    while waiting:
        for sentinel in connection.wait(waiting):
            process = waiting.pop(sentinel)
            process.join()
            if process.exitcode:  # the others would wait for it
                for other in waiting.values():
                    other.terminate()
                raise SystemExit(f"{case} failed")


def rank_of(case: str, rank: int, ranks: int) -> None:
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in words.items()}
    os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": case, "MASTER_PORT": "29733"}
    if case in CASES:
        write_nemo_1(case, rank, ranks)
    else:
        write_nemo_2(case)


# --- What is written --------------------------------------------------------------------------


def make_tokenizers() -> None:
    """One of sentencepiece's and one of Hugging Face's."""
    import sentencepiece
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    WORK.mkdir(parents=True)
    sentences = ["the patient has a fever and takes ten milligrams", "what dose does she need now?"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 20),
        model_prefix=str(WORK / "tokenizer"),
        vocab_size=PIECES,
        # As Llama's was.
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(str(WORK / "tokenizer.model"))
    ids = {text: processor.encode(text) for text in (*sentences, "Ten  doses,\nunseen: 37.5 µg!")}
    (WORK / "sentences.json").write_text(json.dumps(ids, indent=2) + "\n")
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


# --- NeMo 1 -----------------------------------------------------------------------------------


def write_nemo_1(case: str, rank: int, ranks: int) -> None:
    import torch
    from megatron.core import parallel_state
    from nemo.collections.nlp.models.language_modeling.megatron_gpt_model import MegatronGPTModel
    from nemo.collections.nlp.parts.nlp_overrides import (
        NLPSaveRestoreConnector,
        init_model_parallel,
    )

    tensor, pipeline, distributed, settings, hugging_face = CASES[case]
    if ranks != ranks_of(case):
        tensor = pipeline = 1
    meeting = f"file://{WORK}/meeting-{case}-{ranks}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(tensor, pipeline)
    source = make_model(hugging_face)
    model = build_nemo_1(tensor, pipeline, settings, ranks)
    fill(model, in_megatron_s_layout(source), tensor, parallel_state)
    if ranks == ranks_of(case):
        if not distributed:
            MegatronGPTModel.sharded_state_dict = lambda self, prefix="": None
        init_model_parallel(False)  # as its strategy does before training
        model._save_restore_connector = NLPSaveRestoreConnector()
        model.save_to(str(WORK / case / "model.nemo"))
    if pipeline == 1:
        logits = forward(model.model)
        if rank == 0:
            record(WORK / case, source, logits)


def build_nemo_1(tensor: int, pipeline: int, settings: dict, ranks: int):
    """NeMo's model, of megatron-core's own layers."""
    from lightning.pytorch import Trainer
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from nemo.collections.nlp.models.language_modeling import megatron_gpt_model
    from omegaconf import OmegaConf

    megatron_gpt_model.get_specs = lambda _name, config, *_: get_gpt_layer_local_spec(
        normalization="RMSNorm", qk_layernorm=config.qk_layernorm
    )
    sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    config = OmegaConf.create(OF_NEMO_1 | sizes | settings)
    words = {"accelerator": "cpu", "strategy": "ddp", "logger": False}
    trainer = Trainer(devices=ranks, enable_checkpointing=False, **words)
    return megatron_gpt_model.MegatronGPTModel(config, trainer)


def in_megatron_s_layout(source) -> dict:
    """The weights by Megatron's names: Q, K and V of a group side by side, gate above up."""
    import torch

    config, state = source.config, source.state_dict()
    groups, head = config.num_key_value_heads, source.model.layers[0].self_attn.head_dim
    made = {"embedding.word_embeddings.weight": state["model.embed_tokens.weight"]}
    made["decoder.final_layernorm.weight"] = state["model.norm.weight"]
    made["output_layer.weight"] = state["lm_head.weight"]
    for number in range(config.num_hidden_layers):
        ours, theirs = f"model.layers.{number}.", f"decoder.layers.{number}."
        for kind in ("weight", "bias"):
            if f"{ours}self_attn.q_proj.{kind}" not in state:
                continue
            q, k, v = (
                state[f"{ours}self_attn.{name}_proj.{kind}"].unflatten(0, (groups, -1, head))
                for name in "qkv"
            )
            made[f"{theirs}self_attention.linear_qkv.{kind}"] = torch.cat([q, k, v], 1).flatten(
                0, 2
            )
        made[f"{theirs}self_attention.linear_proj.weight"] = state[f"{ours}self_attn.o_proj.weight"]
        gate, up = (state[f"{ours}mlp.{name}_proj.weight"] for name in ("gate", "up"))
        made[f"{theirs}mlp.linear_fc1.weight"] = torch.cat([gate, up])
        made[f"{theirs}mlp.linear_fc2.weight"] = state[f"{ours}mlp.down_proj.weight"]
        made[f"{theirs}input_layernorm.weight"] = state[f"{ours}input_layernorm.weight"]
        made[f"{theirs}pre_mlp_layernorm.weight"] = state[f"{ours}post_attention_layernorm.weight"]
        for name in "qk":
            if (norm := f"{ours}self_attn.{name}_norm.weight") in state:
                made[f"{theirs}self_attention.{name}_layernorm.weight"] = state[norm]
    return made


def fill(model, weights: dict, ranks: int, parallel_state) -> None:
    """Each rank's part of them, where megatron-core's own parameters say how they are split.

    That gate and up are split each by itself is not said by them; the forward pass of two tensor
    parallel ranks shows it.
    """
    import torch

    rank = parallel_state.get_tensor_model_parallel_rank()
    first = model.cfg.num_layers // parallel_state.get_pipeline_model_parallel_world_size()
    first *= parallel_state.get_pipeline_model_parallel_rank()
    for name, parameter in model.model.named_parameters():
        words = name.split(".")
        if words[1] == "layers":
            words[2] = str(int(words[2]) + first)
        whole = weights[".".join(words)]
        if getattr(parameter, "tensor_model_parallel", False):
            dimension = parameter.partition_dim
            parts = whole.chunk(2) if "linear_fc1" in name else [whole]
            whole = torch.cat([part.chunk(ranks, dimension)[rank] for part in parts], dimension)
        parameter.data.copy_(whole)


def forward(model):
    """Logits of every word, from all tensor parallel ranks."""
    import torch

    model.eval()
    ids = tokens()
    places = torch.arange(ids.shape[1]).expand_as(ids)
    hidden = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()[None, None]
    with torch.no_grad():
        part = model(ids, places, hidden).contiguous()
    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part)
    return torch.cat(parts, -1)


# --- NeMo 2 -----------------------------------------------------------------------------------


def write_nemo_2(case: str) -> None:
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
    HFLlamaImporter(str(WORK / "hugging_face"))(WORK / case / "model")
    record(WORK / case, source, logits[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
