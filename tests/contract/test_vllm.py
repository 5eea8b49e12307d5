"""NeMo-RL's vLLM worker with vLLM's CPU build: what it generates, and what a refit changes."""

import copy
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import Qwen2Config, Qwen2ForCausalLM

from equipoise.config.nemo_rl.installation import PATH_VARIABLE, find_installation
from equipoise.train.nemo_rl.engine import prepare_process
from equipoise.train.nemo_rl.rehearsal.vllm import PYTHON_VARIABLE, generation_worker

NEEDED = {
    PATH_VARIABLE: "a checkout of NeMo-RL",
    PYTHON_VARIABLE: "the Python that tests/contract/vllm_environment.py makes",
}
pytestmark = [
    pytest.mark.usefixtures("only_ray"),
    *(
        pytest.mark.skipif(name not in os.environ, reason=f"{name} does not name {what}")
        for name, what in NEEDED.items()
    ),
]
ROOT = Path(__file__).resolve().parents[2]
PAD, STOPS, VOCABULARY, LENGTH = 0, list(range(1, 8)), 96, 48
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,  # so that tokens differ in their probabilities
    "bos_token_id": None,
    "eos_token_id": STOPS[0],
    "pad_token_id": PAD,
}
Weights = dict[str, torch.Tensor]
#: Asynchronous GRPO: one rank trains, vLLM's asynchronous engine generates for another.
APART = (
    *("cluster.gpus_per_node=2", "policy.generation.colocated.enabled=false"),
    "policy.generation.colocated.resources.gpus_per_node=1",
    *("policy.generation.vllm_cfg.async_engine=true", "grpo.async_grpo.enabled=true"),
    "loss_fn.use_importance_sampling_correction=true",
)


def tiny(seed: int, tied: bool = True) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**TINY, tie_word_embeddings=tied)).eval()


@pytest.fixture(scope="module", autouse=True)
def nemo_rl() -> None:
    find_installation().make_importable()
    prepare_process()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`policy.generation` as NeMo-RL's own driver hands it on, for a tiny model."""
    upstream = importlib.import_module("nemo_rl.utils.config")
    upstream.register_omegaconf_resolvers()
    base = OmegaConf.load(find_installation().base_config)
    policy = {
        "max_total_sequence_length": LENGTH,
        "precision": "float32",
        "generation": base.policy.generation,
    }
    resolved: Any = OmegaConf.to_container(OmegaConf.create({"policy": policy}), resolve=True)
    folder = tmp_path_factory.mktemp("model")
    tiny(0).save_pretrained(folder)
    generation = resolved["policy"]["generation"]
    generation |= {"model_name": str(folder), "max_new_tokens": 16, "stop_token_ids": STOPS}

    class Tokenizer:
        pad_token_id, eos_token_id = PAD, STOPS[0]

    configure = importlib.import_module("nemo_rl.models.generation").configure_generation_config
    return configure(generation, Tokenizer())


@pytest.fixture(scope="module")
def vllm(settings: dict[str, Any]) -> Iterator[Any]:
    """NeMo-RL's `VllmGeneration` on a GPU that is a number of Ray's."""
    ray = importlib.import_module("ray")
    cluster = importlib.import_module("nemo_rl.distributed.virtual_cluster")
    generation = importlib.import_module("nemo_rl.models.generation.vllm.vllm_generation")
    registry = importlib.import_module("nemo_rl.distributed.ray_actor_environment_registry")
    worker = generation_worker()
    assert worker.name.endswith(".CpuVllmWorker"), "a stand-in certifies nothing of vLLM"
    registry.ACTOR_ENVIRONMENT_REGISTRY[worker.name] = worker.python
    ray.init(address="local", num_gpus=1, num_cpus=4, include_dashboard=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "resolve_generation_worker_cls", lambda *_: worker.name)
        gpu = cluster.RayVirtualCluster([1], max_colocated_worker_groups=2, num_gpus_per_node=1)
        vllm = generation.VllmGeneration(gpu, settings)
        yield vllm
        vllm.shutdown()
        gpu.shutdown()
    ray.shutdown()


@pytest.fixture
def refit(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Weights], None]:
    """Sends weights as NeMo-RL's policy workers do, in several buffers."""
    zmq = importlib.import_module("zmq")
    ray = importlib.import_module("ray")
    sender = importlib.import_module("nemo_rl.models.policy.utils")
    no_stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: no_stream)

    def refit(weights: Weights) -> None:
        assert vllm.finish_generation()
        vllm.prepare_refit_info({name: (w.shape, w.dtype) for name, w in weights.items()})
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 60_000)
            socket.bind(f"ipc:///tmp/{vllm.device_uuids[0][0]}.sock")
            received = vllm.update_weights_via_ipc_zmq()
            largest = 4 * max(weight.numel() for weight in weights.values())
            sender.stream_weights_via_ipc_zmq_impl(
                iter(weights.items()), 4 * largest, socket, 0, "the test"
            )
            assert ray.get(received) == [True]
        assert vllm.prepare_for_generation()

    return refit


@pytest.fixture(scope="module")
def prompts() -> Any:
    batched = importlib.import_module("nemo_rl.distributed.batched_data_dict")
    lengths = torch.tensor([9, 4, 1, 9, 6, 2, 7, 8])
    ids = torch.randint(8, VOCABULARY, (8, 9), generator=torch.Generator().manual_seed(0))
    ids[torch.arange(9)[None] >= lengths[:, None]] = PAD
    return batched.BatchedDataDict({"input_ids": ids, "input_lengths": lengths})


def generated(prompts: Any, output: Any) -> list[slice]:
    """Where each row's completion stands."""
    ends = output["unpadded_sequence_lengths"].tolist()
    return [slice(a, b) for a, b in zip(prompts["input_lengths"].tolist(), ends, strict=True)]


@torch.no_grad()
def difference(model: Qwen2ForCausalLM, prompts: Any, output: Any) -> float:
    """The largest one between vLLM's logprobs of what it generated and the model's."""
    ids = output["output_ids"]
    logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1], -1)
    expected = torch.nn.functional.pad(logprobs.gather(-1, ids[:, 1:, None])[..., 0], (1, 0))
    rows = enumerate(generated(prompts, output))
    return max(float((expected[i, at] - output["logprobs"][i, at]).abs().max()) for i, at in rows)


def test_its_logprobs_are_those_of_the_model(vllm, refit, prompts) -> None:
    model = tiny(0)
    assert difference(model, prompts, vllm.generate(prompts)) > 1, "vLLM starts with dummy weights"
    refit(model.state_dict())
    assert difference(model, prompts, vllm.generate(prompts)) < 1e-3
    assert difference(model, prompts, vllm.generate(prompts, greedy=True)) < 1e-3


def test_completions_end_at_a_stop_token_and_are_padded(vllm, refit, prompts) -> None:
    refit(tiny(0).state_dict())
    output = vllm.generate(prompts)
    stopped = []
    for i, at in enumerate(generated(prompts, output)):
        ids, logprobs = output["output_ids"][i], output["logprobs"][i]
        assert torch.equal(ids[: at.start], prompts["input_ids"][i, : at.start])
        assert (ids[at.stop :] == PAD).all()
        assert not logprobs[: at.start].any()
        assert not logprobs[at.stop :].any()
        is_stop = torch.isin(ids[at], torch.tensor(STOPS))
        assert not is_stop[:-1].any()
        assert bool(is_stop[-1]) != bool(output["truncated"][i])
        stopped.append(bool(is_stop[-1]))
    assert any(stopped)
    assert output["generation_lengths"].max() <= 16


def test_a_refit_replaces_all_weights(vllm, refit, prompts) -> None:
    old, new = tiny(0), tiny(1)
    refit(old.state_dict())
    refit(new.state_dict())
    output = vllm.generate(prompts)
    assert difference(new, prompts, output) < 1e-3
    assert difference(old, prompts, output) > 1


def test_a_head_that_differs_from_the_embeddings_it_is_tied_to_is_dropped(
    vllm, refit, prompts
) -> None:
    """So a LoRA adapter on the head would train another policy than the one that generates."""
    tied, trained = tiny(2), tiny(2, tied=False)
    weights = copy.deepcopy(tied.state_dict())
    weights["lm_head.weight"] = weights["lm_head.weight"] + 0.1
    weights["lm_head.weight"][::2] *= 0.5
    trained.load_state_dict(weights)
    refit(weights)
    output = vllm.generate(prompts)
    assert difference(tied, prompts, output) < 1e-3
    assert difference(trained, prompts, output) > 1


@pytest.mark.parametrize("apart", [(), APART], ids=["together", "apart"])
def test_a_rehearsal_trains_the_policy_that_vllm_samples(apart, tmp_path) -> None:
    """NeMo-RL's own workers on both sides, with a stop and a resume in between."""
    words = (
        *apart,
        *("--rehearse", "--run-name=vllm", f"--output-dir={tmp_path}"),
        *("--config=nemo_configs/small.yaml", "--iterations=2", "--num-samples=160"),
        *("equipoise.local_model.steps=150", "equipoise.evaluation.bootstrap_draws=200"),
        *("equipoise.evaluation.permutations=100", "env.fairness.reference_generations=2"),
        *("equipoise.max_failure_rate=1.0", f"equipoise.cache_dir={tmp_path / 'cache'}"),
    )
    done = subprocess.run(
        [sys.executable, "recipes/grpo_fairness.py", *words],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        text=True,
        capture_output=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vLLM's CPU build generates" in done.stdout + done.stderr
    provenance = json.loads((tmp_path / "fairness" / "vllm" / "provenance.json").read_text())
    assert max(provenance["logprobs_differ_by"].values()) < 1e-3
