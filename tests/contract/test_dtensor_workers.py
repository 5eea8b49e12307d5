"""NeMo-RL's DTensor worker on a CPU, as a rehearsal starts it: one policy in every setting.

NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest tests/contract/test_dtensor_workers.py
"""

import json

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, train_tokenizer
from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags
from equipoise.files.nemo_rl import find_installation
from equipoise.run.directory import RunDirectory
from equipoise.train.nemo_rl.engine import nemo_rl_config
from tests.contract.dtensor_worker import LENGTHS
from tests.contract.rehearsal import needs_checkout, needs_extra, run_ranks

DTENSOR, DYNAMIC_BATCHING = "policy.dtensor_cfg", "policy.dynamic_batching"
#: Less than a row of two of the longest.
TOKENS = 24
DYNAMIC = (
    f"{DYNAMIC_BATCHING}.enabled=true",
    *(f"{DYNAMIC_BATCHING}.{stage}_mb_tokens={TOKENS}" for stage in ("train", "logprob")),
    f"{DYNAMIC_BATCHING}.sequence_length_round=4",
)
PACKED = (
    "policy.sequence_packing.enabled=true",
    *(f"policy.sequence_packing.{stage}_mb_tokens={2 * TOKENS}" for stage in ("train", "logprob")),
)
SPLIT = (f"{DTENSOR}.tensor_parallel_size=2", "cluster.gpus_per_node=2")
#: Sequences are shared as well, and logits are computed in pieces.
SPLIT_TWICE = (*SPLIT, f"{DTENSOR}.sequence_parallel=true", "policy.logprob_chunk_size=4")
#: Ranks -> name -> what differs in the configuration.
GROUPS = {
    1: {"plain": (), "dynamic batches": DYNAMIC, "packed sequences": PACKED},
    2: {"tensor parallel": SPLIT, "sequence parallel": SPLIT_TWICE},
}
OTHERS = tuple(name for cases in GROUPS.values() for name in cases if name != "plain")
#: In float32; two updates move log-probabilities by more than 0.1.
AT_START, AFTER_UPDATES = 1e-5, 2e-3

pytestmark = [needs_checkout, needs_extra("tensorboard", "prometheus_client")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    examples = [Example(({"role": "user", "content": "What dose?"},), "None.")]
    train_tokenizer(examples, WarmStart(steps=1, batch_size=2, vocab_size=400)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def out(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    for ranks, cases in GROUPS.items():
        for name, words in cases.items():
            write_config(folder / f"{name}.yaml", model, words)
        words = (str(folder), *cases)
        run_ranks(ranks, ("-m", "tests.contract.dtensor_worker", *words), 2 * len(cases))
    return folder


def write_config(path, model, words):
    """Write the configuration of a small-scale run for NeMo-RL, with all weights in float32."""
    scale = (f"--config={CONFIG_FOLDER / 'small.yaml'}", "equipoise.engine=nemo_rl")
    tiny = ("policy.precision=float32", f"{DTENSOR}.lora_cfg.enabled=false")
    fast = ("policy.optimizer.kwargs.lr=0.002", "equipoise.gpu_memory_gb=null")
    loaded = load_config("fairness", parse_flags("x", (*scale, *tiny, *fast, *words)))
    base = find_installation().base_config
    run = RunDirectory(path.parent / "run")
    OmegaConf.save(OmegaConf.create(nemo_rl_config(loaded, base, run, str(model))), path)


def logprobs(out, name):
    return load_file(out / f"{name}.safetensors")


def record(out, name):
    return json.loads((out / f"{name}.json").read_text())


def test_a_worker_starts_with_the_model_and_trains_it(out, model):
    seen = logprobs(out, "plain")
    ids = seen["input_ids"]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model)(ids).logits[:, :-1]
    wanted = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    inside = torch.arange(1, ids.shape[1]) < torch.tensor(LENGTHS)[:, None]
    assert furthest(seen["start"][:, 1:], wanted * inside) < AT_START
    assert furthest(seen["trained"], seen["start"]) > 0.1


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_one_policy_in_every_setting(name, out):
    seen, plain = logprobs(out, name), logprobs(out, "plain")
    assert furthest(seen["start"], plain["start"]) < AT_START
    assert furthest(seen["trained"], plain["trained"]) < AFTER_UPDATES
    wanted = record(out, "plain")["gradients"]
    assert record(out, name)["gradients"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ("plain", *OTHERS))
def test_a_checkpoint_is_the_policy_that_was_trained(name, out):
    seen = logprobs(out, name)
    assert furthest(seen["resumed"], seen["trained"]) < AT_START


@pytest.mark.parametrize("name", [name for name in OTHERS if "dynamic" in name])
def test_dynamic_batches_are_by_tokens(name, out):
    (batches,) = record(out, name)["micro_batches"]
    rows = [end - start for start, end in batches]
    assert sum(rows) == len(LENGTHS) and len(set(rows)) > 1


def furthest(one, other):
    return float((one - other).abs().max())
