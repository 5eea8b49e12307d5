"""The local model of a run: loaded on this machine, and how it writes in the stages of a run."""

import ctypes
import gc
import logging
import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from environments.base import PromptRecord, Rollout
from equipoise.config.schema import Config
from equipoise.files.hub import model_identity, quiet_transformers
from equipoise.files.pretrained import identity_of
from equipoise.run.directory import GREEDY
from equipoise.run.job import REFERENCE, Job, Sample, record_model
from equipoise.run.model import load_model, load_weights
from equipoise.run.sampling import LoadedModel, Sampling, sample
from equipoise.run.task import check_readable
from equipoise.run.tokenizer import template_of, tokenizer_of

_LOG = logging.getLogger(__name__)


#: Of glibc's malloc.h, and the largest threshold that it takes on 64 bits.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 * 2**20


def open_policy(config: Config, records: Sequence[PromptRecord], model_name: str) -> LoadedModel:
    """Load the model on its device. Raises `EquipoiseError`, also for prompts it cannot read."""
    quiet_transformers()
    if platform.libc_ver()[0] == "glibc":
        # It keeps for itself what is freed. Each step takes and frees the same sizes: by default
        # half a million pages go back to the system and are fetched again, a tenth of the time.
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 16 * _LARGEST_THRESHOLD)
    torch.set_num_threads(config.equipoise.threads or torch.get_num_threads())
    device = config.equipoise.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load_policy(config, model_name, torch.device(device))
    check_readable(loaded.tokenizer, records)
    return loaded


def load_policy(config: Config, model_name: str, device: torch.device) -> LoadedModel:
    """The model to train.

    With bfloat16, full fine-tuning keeps float32 weights under autocast, since small updates
    vanish in bfloat16 weights; LoRA leaves the base frozen, which may then be bfloat16.
    """
    policy, four_bit = config.policy, config.equipoise.load_in_4bit
    half = policy.precision == "bfloat16" and policy.dtensor_cfg.lora_cfg.enabled
    dtype = torch.bfloat16 if half and has_bfloat16(device) else torch.float32
    tokenizer_name, template = tokenizer_of(policy, model_name), template_of(policy.tokenizer)
    model, tokenizer = load_model(
        model_name, tokenizer_name, template, dtype=dtype, device=device, four_bit=four_bit
    )
    identity = identity_of(model_name, tokenizer_name, template) + (", 4 bits" if four_bit else "")
    return LoadedModel(model, tokenizer, identity)


def load_trained(base: LoadedModel, checkpoint: Path, device: torch.device) -> LoadedModel:
    """The trained model of a final checkpoint: a whole model, or `base` with the adapter.

    The adapter is put on a fresh copy of the base, so that nothing of the training run is left.
    """
    if (checkpoint / "adapter_config.json").exists():
        source = base.model.get_base_model() if isinstance(base.model, PeftModel) else base.model
        four_bit = getattr(source, "is_loaded_in_4bit", False)
        fresh = load_weights(source.name_or_path, source.dtype, device, four_bit=four_bit)
        model = PeftModel.from_pretrained(fresh, str(checkpoint))
    else:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=base.model.dtype, trust_remote_code=False
        )
    model.to(device).eval()
    return LoadedModel(model, base.tokenizer, model_identity(str(checkpoint)))


def in_half(config: Config, model: PreTrainedModel) -> bool:
    """Whether to compute in bfloat16: on a GPU if configured, on a CPU if the base is loaded so."""
    is_bfloat16 = config.policy.precision == "bfloat16"
    return is_bfloat16 and (model.device.type != "cpu" or model.dtype == torch.bfloat16)


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32; on a CPU that takes instructions for it."""
    if device.type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def record_policy(job: Job, loaded: LoadedModel) -> None:
    """Record the model in the provenance, and log where it differs from the configuration."""
    if job.config.policy.precision == "bfloat16" and not in_half(job.config, loaded.model):
        _LOG.info(
            "the local engine computes in float32 here, not in bfloat16: on a CPU that takes a "
            "LoRA and a processor with bfloat16 instructions"
        )
    record_model(job, loaded.tokenizer, loaded.identity, device=str(loaded.model.device))


def sampling_of(
    config: Config, generations: int, batch_size: int, seed: int, *, greedy: bool = False
) -> Sampling:
    """Draw as `policy.generation` says, or take the likeliest tokens."""
    generation = config.policy.generation
    temperature = 0.0 if greedy else generation.temperature
    tokens, top_p, top_k = generation.max_new_tokens, generation.top_p, generation.top_k
    return Sampling(generations, tokens, temperature, top_p, top_k, batch_size, seed)


def sampler(job: Job, loaded: LoadedModel) -> Sample:
    """How this model writes in the stages around training."""
    config, evaluation = job.config, job.config.equipoise.evaluation

    def draw(records: Sequence[PromptRecord], generations: int, stage: str) -> list[Rollout]:
        # The baseline and the final evaluation have one random stream, the reference its own.
        seed = config.grpo.seed + 1 if stage == REFERENCE else evaluation.seed + 2
        greedy, size = stage == GREEDY, evaluation.batch_size
        sampling = sampling_of(config, generations, size, seed, greedy=greedy)
        with job.display.progress(stage, len(records) * generations) as bar:
            return sample(loaded, records, sampling, bar, job.meter.add_tokens)

    return draw


def give_memory_back() -> None:
    """Have glibc give back what it keeps, between stages whose objects differ in size."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
