"""The rules refuse each value that NeMo-RL gets wrong or refuses late, but not its neighbour."""

from pathlib import Path

import pytest
import yaml

from equipoise.config import validate
from equipoise.config.schema import Config
from equipoise.config.validate import known_keys, whole_schema
from tests.equipoise.config.conftest import on_nemo_rl, rows
from tests.refusals import holds

APART = "policy.generation.colocated"
#: What words stand for in the tables. Asynchronous GRPO is as NeMo-RL runs it.
SHORT = {
    "ASYNC": f"grpo.async_grpo.enabled=true VLLM.async_engine=true {APART}.enabled=false "
    f"{APART}.resources.gpus_per_node=4 loss_fn.use_importance_sampling_correction=true",
    "PRETRAINED": 'policy.pretrained_checkpoint={"path":made,"format":megatron_bridge}',
    "APART": APART,
    "LORA": "policy.dtensor_cfg.lora_cfg",
    "DTENSOR": "policy.dtensor_cfg",
    "MEGATRON": "policy.megatron_cfg",
    "VLLM": "policy.generation.vllm_cfg",
}
#: Scale, words -> key, code and values.
REFUSED = """
medium checkpointing.enabled=false -> checkpointing.enabled -> checkpointing.none-saved
small DTENSOR._v2=false -> DTENSOR._v2 -> config.invalid-value
medium ASYNC checkpointing.metric_name=train:env/disparity_ratio
    -> checkpointing.metric_name -> checkpointing.late-metric | env/disparity_ratio
medium checkpointing.metric_name=train:env/disparity_ratio grpo.use_dynamic_sampling=true
    -> checkpointing.metric_name -> checkpointing.late-metric | env/disparity_ratio
medium checkpointing.metric_name=val:disparity_ratio
    -> checkpointing.metric_name -> checkpointing.unknown-metric | accuracy, avg_length
medium data_plane.enabled=true -> data_plane.enabled -> config.invalid-value
medium on_policy_distillation.enabled=true -> on_policy_distillation.enabled
    -> config.invalid-value
medium grpo.stop_at_validation_metric=accuracy grpo.stop_at_validation_threshold=0.9
    -> grpo.stop_at_validation_metric -> config.invalid-value
large MEGATRON.optimizer.lr=1.0e-6 -> MEGATRON.optimizer.lr
    -> megatron-keys.divergent-value | 1e-06 | policy.optimizer.kwargs.lr | 5e-05
large MEGATRON.peft.enabled=false -> MEGATRON.peft.enabled -> megatron-keys.divergent-value
large MEGATRON.peft.dim=8 -> MEGATRON.peft.dim -> megatron-keys.divergent-value | LORA.dim | 32
large policy.scheduler=[{"name":torch.optim.lr_scheduler.ConstantLR,"kwargs":{}}]
    -> policy.scheduler -> megatron-keys.unread-scheduler | policy.scheduler; set it to null
large policy.max_grad_norm=null -> policy.max_grad_norm -> megatron-keys.null-clipping
medium PRETRAINED -> policy.pretrained_checkpoint -> dtensor-keys.unread-checkpoint
large PRETRAINED -> policy.pretrained_checkpoint.path -> megatron-keys.lora-on-checkpoint
large LORA.target_modules=[q_proj] LORA.exclude_modules=[]
    -> LORA.target_modules -> megatron-keys.lora-names
small LORA.match_all_linear=true LORA.exclude_modules=[] -> LORA.exclude_modules
    -> lora-keys.unshared-output | lm_head | Qwen/Qwen2.5-0.5B-Instruct
small LORA.exclude_modules=[o_proj]
    -> LORA.exclude_modules -> lora-keys.unshared-output | lm_head
small LORA.target_modules=['*.q_proj',lm_head] LORA.exclude_modules=[]
    -> LORA.target_modules -> lora-keys.unshared-output | lm_head
large MEGATRON.peft.target_modules=[] policy.model_name=nobody/has-this
    -> MEGATRON.peft.target_modules -> lora-keys.unshared-output | output_layer
medium policy.train_micro_batch_size=256 -> policy.train_micro_batch_size
    -> layout.unfilled-batch | 1024 | 8 data-parallel ranks x 256 rollouts | 2048
large --batch-size 4 grpo.num_generations_per_prompt=5 grpo.val_batch_size=4 cluster.num_nodes=3
    -> cluster.num_nodes -> layout.unfilled-batch | 20 | 3 data-parallel ranks | 3
large policy.make_sequence_length_divisible_by=2
    -> policy.make_sequence_length_divisible_by -> lengths.uneven-divisor | 8 | 2
large MEGATRON.context_parallel_size=2
    -> policy.make_sequence_length_divisible_by -> lengths.uneven-divisor | 32 | 8
large policy.max_total_sequence_length=1022
    -> policy.max_total_sequence_length -> lengths.uneven-total | 1022 | 8
medium policy.model_name=Qwen/Qwen2.5-72B-Instruct LORA.enabled=false VLLM.tensor_parallel_size=8
    -> policy.model_name -> memory.training | 80
medium policy.model_name=Qwen/Qwen2.5-72B-Instruct -> -> memory.vllm-weights | 145 GB
medium VLLM.max_model_len=512 -> policy -> config.invalid-value | max_model_len
"""
#: The last one has an output layer of its own.
ALLOWED = """
large policy.max_grad_norm=null MEGATRON.optimizer.clip_grad=0.0
large --learning-rate 3.0e-6
medium ASYNC
medium grpo.stop_at_validation_metric=null
large --lora-rank 8
large MEGATRON.context_parallel_size=2 policy.make_sequence_length_divisible_by=32
large MEGATRON.peft.target_modules=[linear_qkv]
medium LORA.match_all_linear=true LORA.exclude_modules=[]
small LORA.exclude_modules=['*head',o_proj]
small LORA.target_modules=['*_proj'] LORA.exclude_modules=[]
large checkpointing.metric_name=train:env/disparity_ratio
large checkpointing.metric_name=val:env/disparity_ratio
medium data_plane.enabled=false on_policy_distillation.enabled=false
medium data_plane=null on_policy_distillation=null
medium APART.enabled=false APART.resources.gpus_per_node=4
medium LORA.enabled=false
medium policy.model_name=nobody/has-this
medium policy.train_micro_batch_size=128 equipoise.gpu_memory_gb=null
medium --model-name local cluster.gpus_per_node=7
small --model-name Qwen/Qwen2.5-1.5B-Instruct
large MEGATRON.peft.target_modules=[]
"""


def in_full(words):
    for short, text in SHORT.items():
        words = words.replace(short, text)
    return words.split()


@pytest.mark.parametrize(("words", "key", "reason"), rows(REFUSED))
def test_it_is_refused(words, key, reason, problems):
    found = problems(*on_nemo_rl(*in_full(words)))
    key, reason = (" ".join(in_full(text)) for text in (key, reason))
    assert [line for line in found if key in line and holds(line, reason)], found


@pytest.mark.parametrize("words", ALLOWED.strip().splitlines())
def test_its_neighbour_is_not(words, problems):
    assert problems(*on_nemo_rl(*in_full(words))) == []


def test_all_weights_may_begin_with_a_checkpoint_of_megatron_s(problems):
    words = "medium policy.scheduler=null policy.dtensor_cfg.enabled=false MEGATRON.enabled=true"
    assert problems(*on_nemo_rl(*in_full(f"{words} LORA.enabled=false PRETRAINED"))) == []


def test_the_local_engine_needs_none_of_it(problems):
    words = ("--engine", "local", "policy.max_grad_norm=null", "equipoise.gpu_memory_gb=1")
    assert problems(*on_nemo_rl("small")[:2], *words) == []


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], False),
        (["policy.dtensor_cfg.lora_cfg.enabled=false", "equipoise.gpu_memory_gb=10"], True),
        (["policy.dtensor_cfg.lora_cfg.enabled=false"], False),
    ],
)
def test_memory_that_may_not_suffice_is_a_warning(words, warned, load):
    warnings = load(*on_nemo_rl("small", *words)).warnings
    assert [" GB of each GPU, which has 10 GB" in line for line in warnings] == [True] * warned


LISTED = yaml.safe_load(Path(validate.__file__).with_name("nemo_rl_keys.yaml").read_text("utf-8"))
NAMES = {
    name if section == "top" else f"{section}.{name}"
    for section, names in LISTED.items()
    for name in names
}


def test_every_listed_name_is_known_and_lies_in_a_listed_section():
    assert NAMES - set(known_keys(whole_schema())) == set()
    assert set(LISTED) - NAMES == {"top"}


def test_every_key_that_equipoise_reads_is_one_of_nemo_rls():
    """In the sections that are listed; what lies below other keys NeMo-RL's classes leave open.

    Trackers of TRL are refused with NeMo-RL.
    """
    ours = {key for key in known_keys(Config) if not key.startswith("equipoise")}
    unlisted = {key for key in ours - NAMES if (key.rpartition(".")[0] or "top") in LISTED}
    assert unlisted == {"logger.report_to"}
