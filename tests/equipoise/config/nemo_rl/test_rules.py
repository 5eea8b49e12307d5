"""What NeMo-RL would get wrong or refuse late: each is refused, and its neighbour is not."""

import pytest

from equipoise.config.flags import CONFIG_FOLDER
from tests.refusals import holds

DTENSOR, MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
VLLM = "policy.generation.vllm_cfg"
LORA = f"{DTENSOR}.lora_cfg"
PRETRAINED = ["policy.pretrained_checkpoint={path: made, format: megatron_bridge}"]


@pytest.fixture
def refused(problems):
    """The problems of a shipped scale with changes."""

    def lines(scale, *words):
        path = str(CONFIG_FOLDER / f"{scale}.yaml")
        return problems("--config", path, "--engine", "nemo_rl", *words)

    return lines


APART = "policy.generation.colocated"
#: Asynchronous GRPO as NeMo-RL runs it.
ASYNC_GRPO = [
    "grpo.async_grpo.enabled=true",
    f"{VLLM}.async_engine=true",
    f"{APART}.enabled=false",
    f"{APART}.resources.gpus_per_node=4",
    "loss_fn.use_importance_sampling_correction=true",
]

REFUSED = [
    (
        "medium",
        ["checkpointing.enabled=false"],
        "checkpointing.enabled",
        "checkpointing.none-saved",
    ),
    ("small", [f"{DTENSOR}._v2=false"], f"{DTENSOR}._v2", "config.invalid-value | v0.7.0"),
    (
        "medium",
        [*ASYNC_GRPO, "checkpointing.metric_name=train:env/disparity_ratio"],
        "checkpointing.metric_name",
        "checkpointing.late-metric | env/disparity_ratio",
    ),
    ("medium", ["async_rl.sampler.name=windowed"], "async_rl", "nemo-rl.async-rl"),
    ("large", [*ASYNC_GRPO, "async_rl={}"], "async_rl", "nemo-rl.async-rl"),
    ("medium", ["data_plane.enabled=true"], "data_plane.enabled", "nemo-rl.data-plane"),
    ("large", [*ASYNC_GRPO, "data_plane.enabled=true"], "data_plane.enabled", "nemo-rl.data-plane"),
    (
        "medium",
        ["on_policy_distillation.enabled=true"],
        "on_policy_distillation.enabled",
        "nemo-rl.distillation",
    ),
    (
        "large",
        [f"{MEGATRON}.optimizer.lr=1.0e-6"],
        f"{MEGATRON}.optimizer.lr",
        "megatron-keys.divergent-value | 1e-06 | policy.optimizer.kwargs.lr | 1e-05",
    ),
    (
        "large",
        [f"{MEGATRON}.peft.enabled=false"],
        f"{MEGATRON}.peft.enabled",
        "megatron-keys.divergent-value",
    ),
    (
        "large",
        [f"{MEGATRON}.peft.dim=8"],
        f"{MEGATRON}.peft.dim",
        f"megatron-keys.divergent-value | {LORA}.dim | 32",
    ),
    (
        "large",
        ["policy.scheduler=[{name: torch.optim.lr_scheduler.ConstantLR, kwargs: {}}]"],
        "policy.scheduler",
        "megatron-keys.unread-scheduler",
    ),
    ("medium", PRETRAINED, "policy.pretrained_checkpoint", "dtensor-keys.unread-checkpoint"),
    ("large", PRETRAINED, "policy.pretrained_checkpoint.path", "megatron-keys.lora-on-checkpoint"),
    ("large", ["policy.max_grad_norm=null"], "policy.max_grad_norm", "megatron-keys.null-clipping"),
    (
        "medium",
        ["grpo.stop_at_validation_metric=accuracy", "grpo.stop_at_validation_threshold=0.9"],
        "grpo.stop_at_validation_metric",
        "nemo-rl.early-stop",
    ),
    (
        "large",
        [f"{LORA}.target_modules=[q_proj]", f"{LORA}.exclude_modules=[]"],
        f"{LORA}.target_modules",
        "megatron-keys.lora-names",
    ),
    (
        "small",
        [f"{LORA}.match_all_linear=true", f"{LORA}.exclude_modules=[]"],
        f"{LORA}.exclude_modules",
        "lora-keys.unshared-output | lm_head | Qwen/Qwen2.5-0.5B-Instruct",
    ),
    (
        "small",
        [f"{LORA}.exclude_modules=[o_proj]"],
        f"{LORA}.exclude_modules",
        "lora-keys.unshared-output | lm_head",
    ),
    (
        "small",
        [f"{LORA}.target_modules=['*.q_proj', lm_head]", f"{LORA}.exclude_modules=[]"],
        f"{LORA}.target_modules",
        "lora-keys.unshared-output | lm_head",
    ),
    (
        "large",
        [f"{MEGATRON}.peft.target_modules=[]", "policy.model_name=nobody/has-this"],
        f"{MEGATRON}.peft.target_modules",
        "lora-keys.unshared-output | output_layer",
    ),
    (
        "medium",
        ["checkpointing.metric_name=val:disparity_ratio"],
        "checkpointing.metric_name",
        "checkpointing.unknown-metric | accuracy, avg_length",
    ),
    (
        "medium",
        [
            "checkpointing.metric_name=train:env/disparity_ratio",
            "grpo.use_dynamic_sampling=true",
        ],
        "checkpointing.metric_name",
        "checkpointing.late-metric | env/disparity_ratio",
    ),
    (
        "medium",
        ["policy.train_micro_batch_size=256"],
        "policy.train_micro_batch_size",
        "layout.unfilled-batch | 1024 | 8 data-parallel ranks x 256 rollouts | 2048",
    ),
    (
        "large",
        [
            "--batch-size",
            "4",
            "grpo.num_generations_per_prompt=5",
            "grpo.val_batch_size=4",
            "cluster.num_nodes=3",
        ],
        "cluster.num_nodes",
        "layout.unfilled-batch | 20 | 3 data-parallel ranks | 3",
    ),
    (
        "large",
        ["policy.make_sequence_length_divisible_by=2"],
        "policy.make_sequence_length_divisible_by",
        "lengths.uneven-divisor | 8 | 2",
    ),
    (
        "large",
        [f"{MEGATRON}.context_parallel_size=2"],
        "policy.make_sequence_length_divisible_by",
        "lengths.uneven-divisor | 32 | 8",
    ),
    (
        "large",
        ["policy.max_total_sequence_length=1022"],
        "policy.max_total_sequence_length",
        "lengths.uneven-total | 1022 | 8",
    ),
    (
        "medium",
        [
            "policy.model_name=Qwen/Qwen2.5-72B-Instruct",
            f"{LORA}.enabled=false",
            f"{VLLM}.tensor_parallel_size=8",
        ],
        "policy.model_name",
        "memory.training | 80",
    ),
    (
        "medium",
        ["policy.model_name=Qwen/Qwen2.5-72B-Instruct"],
        "",
        "memory.vllm-weights | 145 GB",
    ),
    (
        "medium",
        [
            "policy.model_name=Qwen/Qwen2.5-32B-Instruct",
            f"{VLLM}.tensor_parallel_size=2",
            f"{VLLM}.gpu_memory_utilization=0.4",
        ],
        f"{VLLM}.gpu_memory_utilization",
        "memory.no-generation | 32 GB | 33 GB",
    ),
]


@pytest.mark.parametrize(("scale", "words", "key", "reason"), REFUSED)
def test_it_is_refused(scale, words, key, reason, refused):
    found = refused(scale, *words)
    assert [line for line in found if key in line and holds(line, reason)], found


ALLOWED = [
    ("large", ["policy.max_grad_norm=null", f"{MEGATRON}.optimizer.clip_grad=0.0"]),
    ("large", ["--learning-rate", "3.0e-6"]),
    ("medium", ASYNC_GRPO),
    ("medium", ["grpo.stop_at_validation_metric=null"]),
    ("large", ["--lora-rank", "8"]),
    (
        "large",
        [f"{MEGATRON}.context_parallel_size=2", "policy.make_sequence_length_divisible_by=32"],
    ),
    ("large", [f"{MEGATRON}.peft.target_modules=[linear_qkv]"]),
    ("large", [f"{MEGATRON}.peft.target_modules=[]"]),  # this model's output layer is its own
    ("medium", [f"{LORA}.match_all_linear=true", f"{LORA}.exclude_modules=[]"]),
    ("small", [f"{LORA}.exclude_modules=['*head', o_proj]"]),
    ("small", [f"{LORA}.target_modules=['*_proj']", f"{LORA}.exclude_modules=[]"]),
    ("large", ["checkpointing.metric_name=train:env/disparity_ratio"]),
    ("large", ["checkpointing.metric_name=val:env/disparity_ratio"]),
    ("medium", ["data_plane.enabled=false", "on_policy_distillation.enabled=false"]),
    ("medium", ["data_plane=null", "on_policy_distillation=null"]),
    ("medium", [f"{APART}.enabled=false", f"{APART}.resources.gpus_per_node=4"]),
    ("medium", [f"{LORA}.enabled=false"]),
    ("medium", ["policy.model_name=nobody/has-this"]),
    ("medium", ["policy.train_micro_batch_size=128", "equipoise.gpu_memory_gb=null"]),
    ("small", ["--model-name", "Qwen/Qwen2.5-1.5B-Instruct"]),
]


@pytest.mark.parametrize(("scale", "words"), ALLOWED)
def test_its_neighbour_is_not(scale, words, refused):
    assert refused(scale, *words) == []


def test_all_weights_may_begin_with_a_checkpoint_of_megatron_s(refused):
    lines = refused("large", f"{LORA}.enabled=false", *PRETRAINED)
    assert not [line for line in lines if "pretrained" in line]


def test_null_for_the_optimizer_names_what_megatron_does_with_it(refused):
    lines = refused("large", "policy.optimizer=null")
    assert lines == [
        "command line: policy.optimizer: is where Megatron's optimizer takes its learning rate "
        "from too; leave the key out instead of setting it to null [config.invalid-value]"
    ]


def test_the_local_model_has_no_layout(problems):
    words = ("--model-name", "local", "--engine", "nemo_rl", "cluster.gpus_per_node=7")
    assert problems("--config", str(CONFIG_FOLDER / "medium.yaml"), *words) == []


def test_the_local_engine_needs_none_of_it(problems):
    small = str(CONFIG_FOLDER / "small.yaml")
    words = ("policy.max_grad_norm=null", "equipoise.gpu_memory_gb=1")
    assert problems("--config", small, "--engine", "local", *words) == []


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], False),
        (["policy.max_total_sequence_length=2048"], True),
        (["policy.max_total_sequence_length=2048", "policy.train_micro_batch_size=2"], False),
        (["policy.max_total_sequence_length=2048", "equipoise.gpu_memory_gb=80"], False),
    ],
)
def test_memory_that_may_not_suffice_is_a_warning(words, warned, load):
    small = str(CONFIG_FOLDER / "small.yaml")
    warnings = load("--config", small, "--engine", "nemo_rl", *words).warnings
    assert [" GB of each GPU, which has 24 GB" in line for line in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("data.use_multiple_dataloader=true", "data.use_multiple_dataloader"),
        ("data.custom_dataloader=my.Loader", "data.custom_dataloader"),
        ("data.train.dataset_name=squad", "data.train.dataset_name"),
        ("data.validation=[{dataset_name: squad}]", "data.validation"),
        ("data.default.prompt_file=mine.txt", "data.default.prompt_file"),
    ],
)
def test_data_that_nemo_rl_does_not_get_is_named(word, key, load):
    medium = ("--config", str(CONFIG_FOLDER / "medium.yaml"), "--engine", "nemo_rl")
    said = load(*medium, "data.num_workers=2", word).warnings
    assert said == (f"NeMo-RL with DTensor does not read {key}",)
    assert not load(*medium, "data.num_workers=2", "data.max_input_seq_length=512").warnings
