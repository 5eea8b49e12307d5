"""NeMo-RL's own Megatron worker on a CPU: set-up, LoRA, training, reference, refit, checkpoint.

    python policy_worker.py PACKAGES NEMO_RL MODEL OUT nemo_rl.yaml CONVERTED

NEMO_RL is a checkout, nemo_rl.yaml what Equipoise writes for a run, CONVERTED a checkpoint for
`policy.pretrained_checkpoint`. Writes result.json, the weights
that go to vLLM before and after two updates, and the checkpoint step_2/ into OUT.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import cpu

#: Of a batch of two micro batches; shorter ones are padded at the right.
LENGTHS, VOCABULARY = (16, 14, 16, 12), 250


def main(model, out, config, converted):
    from megatron.bridge.models import gpt_provider
    from safetensors.torch import save_file

    from tests.contract.batch import random_batch

    settings = resolved(config, str(model))
    policy = settings["policy"]
    worker = build(policy)
    batch = random_batch(LENGTHS, VOCABULARY)
    result = {"trained": [n for n, p in worker.model.named_parameters() if p.requires_grad]}
    logprobs = {"start": worker.get_logprobs(data=batch, micro_batch_size=2)["logprobs"]}
    logprobs["reference"] = reference(worker, batch)
    result["gradients"] = train(worker, batch, settings["loss_fn"], logprobs["start"])
    logprobs["trained"] = worker.get_logprobs(data=batch, micro_batch_size=2)["logprobs"]
    logprobs["reference after training"] = reference(worker, batch)
    save_file(sent_to_vllm(worker), out / "refit.safetensors")
    policy_folder = out / "step_2" / "policy"
    paths = {f"{kind}_path": str(policy_folder / kind) for kind in ("weights", "optimizer")}
    worker.save_checkpoint(**paths)
    # The optimizer's state stays behind: that of torch's Adam, which is Megatron's without Apex or
    # Transformer Engine, is written and not read by this megatron-core.
    resumed = build(policy, weights_path=paths["weights_path"])
    logprobs["resumed"] = resumed.get_logprobs(data=batch, micro_batch_size=2)["logprobs"]
    logprobs["reference after resuming"] = reference(resumed, batch)
    pretrained = {"path": str(converted), "format": "megatron_bridge"}
    # It names Transformer Engine's layers, in whose place are megatron-core's own here.
    local = gpt_provider.local_layer_spec
    with mock.patch.object(gpt_provider, "transformer_engine_layer_spec", local):
        other = build(policy | {"pretrained_checkpoint": pretrained})
    logprobs["pretrained"] = other.get_logprobs(data=batch, micro_batch_size=2)["logprobs"]
    save_file({"input_ids": batch["input_ids"]} | logprobs, out / "logprobs.safetensors")
    (out / "result.json").write_text(json.dumps(result))


def resolved(config, model):
    """The run's configuration with what a CPU and a tiny model need; LoRA's keys stay."""
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()
    settings = OmegaConf.to_container(load_config(str(config)), resolve=True)
    policy = settings["policy"]
    policy |= {"model_name": model, "precision": "float32"}
    policy["tokenizer"]["name"] = model
    policy["sequence_packing"]["enabled"] = False  # packed attention is Transformer Engine's
    megatron = policy["megatron_cfg"]
    megatron |= {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    megatron |= {"pipeline_dtype": "float32", "train_iters": 10}
    for fusion in ("moe_permute_fusion", "apply_rope_fusion", "bias_activation_fusion"):
        megatron[fusion] = False  # likewise
    half = {"bf16": False, "fp16": False, "use_precision_aware_optimizer": False}
    megatron["optimizer"] |= half | {"params_dtype": "float32"}
    return settings


def build(policy, **paths):
    """The worker that Ray would build, with the layers that need no Transformer Engine."""
    import numpy as np
    import ray
    from megatron.bridge.models.gpt_provider import local_layer_spec
    from nemo_rl.distributed.named_sharding import NamedSharding
    from nemo_rl.models.megatron import setup
    from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl
    from transformers import AutoTokenizer

    forget_the_last_worker()
    axes = ["pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel"]
    world = np.arange(int(os.environ["WORLD_SIZE"]))
    ranks = NamedSharding(layout=world.reshape(1, 1, 1, -1), names=axes)
    on_cpu = {"_transformer_layer_spec": staticmethod(local_layer_spec)}
    worker = type("Worker", (MegatronPolicyWorkerImpl,), on_cpu)
    initialize = partial(setup.initialize_megatron, allow_no_cuda=True)
    tokenizer = AutoTokenizer.from_pretrained(policy["model_name"])
    with (
        mock.patch.object(ray, "get_gpu_ids", lambda: [0]),
        mock.patch.object(setup, "initialize_megatron", initialize),
    ):
        built = worker(policy, tokenizer, worker_sharding_annotations=ranks, **paths)
    built.optimizer.grad_norms_by_group = {}  # from megatron-core 0.19 on
    return built


def forget_the_last_worker():
    """Megatron's global state, which ends with a worker's process."""
    from megatron.core import num_microbatches_calculator, parallel_state, rerun_state_machine

    num_microbatches_calculator.unset_num_microbatches_calculator()
    rerun_state_machine.destroy_rerun_state_machine()
    parallel_state.destroy_model_parallel()


def reference(worker, batch):
    """Log probabilities of the reference policy."""
    key = "reference_logprobs"
    return worker.get_reference_policy_logprobs(data=batch, micro_batch_size=2)[key]


def train(worker, batch, loss, logprobs):
    """Two updates; returns the norms of their gradients."""
    from nemo_rl.algorithms.loss import loss_functions

    batch["prev_logprobs"] = batch["generation_logprobs"] = logprobs
    batch["reference_policy_logprobs"] = reference(worker, batch)
    settings = loss_functions.ClippedPGLossConfig(**loss)
    loss_function = loss_functions.ClippedPGLossFn(settings)
    worker.prepare_for_training()
    updates = [worker.train(batch, loss_function, gbs=len(LENGTHS), mbs=2) for _ in range(2)]
    return [float(update["grad_norm"]) for update in updates]


def sent_to_vllm(worker):
    """The worker's own generator of parameters, as tensors that can be saved."""
    worker.prepare_refit_info()
    sent = worker._iter_params_with_optional_kv_scales()
    return {name: tensor.contiguous().clone() for name, tensor in sent}


if __name__ == "__main__":
    packages, nemo_rl, *folders = sys.argv[1:]
    sys.path.insert(0, nemo_rl)
    os.environ["NRL_MEGATRON_CHECKPOINT_DIR"] = str(Path(folders[1]) / "imported")
    cpu.prepare(packages)
    sys.modules["nemo_automodel"] = None  # NeMo-RL's environment for Megatron has none
    main(*map(Path, folders))
