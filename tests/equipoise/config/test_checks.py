"""Impossible combinations: each is refused with its reason, and its neighbour is not."""

from dataclasses import replace

import pytest
import yaml

from environments.base import PromptRecord
from equipoise.config import check_prompts, control_token_problems, load_config
from equipoise.config.checks import Case, check_config
from equipoise.config.compose import CONFIG_FOLDER, Options
from equipoise.config.load import load_task
from equipoise.config.words import parse_flags
from tests.equipoise.config.conftest import rows
from tests.refusals import holds, refusal

#: What the combinations below are changes of; the shipped scales may change their minds.
PLAIN = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 8, max_num_steps: 60,
       val_period: 10, val_batch_size: 64, max_val_samples: 128}
policy:
  model_name: local
  precision: float32
  train_micro_batch_size: ${policy.train_global_batch_size}
  max_total_sequence_length: 256
  scheduler: null
  generation: {max_new_tokens: 48}
  dtensor_cfg: {lora_cfg: {enabled: false}}
checkpointing: {save_period: 10, metric_name: val:accuracy}
"""
#: What words stand for in the tables.
SHORT = {
    "LORA": "policy.dtensor_cfg.lora_cfg",
    "LARGE": str(CONFIG_FOLDER / "large.yaml"),
    "ONE": '{"name":torch.optim.lr_scheduler.LinearLR,"kwargs":{"total_iters":5}}',
    "TWO": '{"name":torch.optim.lr_scheduler.ConstantLR,"kwargs":{"factor":1.0}}',
}


def in_full(words):
    for short, text in SHORT.items():
        words = words.replace(short, text)
    return words.split()


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "plain.yaml").write_text(PLAIN)
    return ("--config", str(tmp_path / "plain.yaml"))


#: Words -> the key that is named, where it is not that of the first assignment -> code and values.
REFUSED = """
grpo.num_prompts_per_step=30 policy.train_global_batch_size=240
    -> -> sets.cut-set | 30 prompts | such as 32
grpo.val_batch_size=66 -> -> sets.cut-set | such as 64
grpo.num_generations_per_prompt=1 -> -> config.invalid-value | 2
equipoise.evaluation.generations=1 -> -> evaluation.too-few-generations | 2
policy.train_global_batch_size=128 policy.train_micro_batch_size=128
    -> -> batch.several-updates | 32 x 8 = 256 | 128
--engine nemo_rl policy.train_global_batch_size=96 -> -> batch.uneven-updates | 96
policy.train_micro_batch_size=48 -> -> batch.uneven-micro-batches | 48 | 256
policy.generation.backend=trtllm -> -> config.invalid-value
policy.generation.use_async_rollouts=true -> -> config.invalid-value
data.shuffle=true -> -> sets.shuffled-prompts
grpo.use_dynamic_sampling=true -> -> sets.dynamic-sampling
policy.generation.max_new_tokens=256 -> policy -> config.invalid-value | 256
grpo.max_val_samples=32 -> grpo -> config.invalid-value | 64
grpo.max_num_steps=0 -> -> config.invalid-value | 0
checkpointing.metric_name=accuracy -> -> config.invalid-value
checkpointing.metric_name='val:' -> -> config.invalid-value
checkpointing.save_period=15 -> -> checkpointing.rare-metric | 10
grpo.val_period=0 -> -> checkpointing.rare-metric
LORA.exclude_modules=[] LORA.enabled=true -> policy.dtensor_cfg.lora_cfg
    -> config.invalid-value | target_modules, exclude_modules, match_all_linear | 0
LORA.target_modules=[q_proj] LORA.enabled=true -> policy.dtensor_cfg.lora_cfg
    -> config.invalid-value | 2
LORA.exclude_modules=[] LORA.match_all_linear=true LORA.enabled=true
    -> -> lora-keys.untrained-output
LORA.target_modules=[lm_head] LORA.exclude_modules=[] LORA.enabled=true
    -> -> lora-keys.untrained-output
LORA.dim=0 -> -> config.invalid-value | 0 | 0
cluster.gpus_per_node=8 --engine local -> -> local.several-gpus | 8 GPUs
--config LARGE --engine local -> cluster.gpus_per_node
    -> local.several-gpus | 4 nodes of 8 GPUs
policy.precision=float16 -> -> config.invalid-value
equipoise.load_in_4bit=true -> -> local.trained-4-bits
logger.report_to=[trackio,wandb] -> -> local.missing-package | trackio
policy.optimizer.kwargs.lrr=1 -> policy.optimizer -> config.invalid-value | lrr
policy.scheduler=[ONE,TWO] -> policy -> config.invalid-value | 1 increasing
policy.scheduler=[ONE,{"milestones":[3]}] -> policy -> config.invalid-value | 0 increasing
policy.scheduler=[ONE,TWO,ONE,{"milestones":[9,3]}] -> policy -> config.invalid-value | increasing
policy.scheduler=[{"kwargs":{"a":1}}] -> policy -> config.invalid-value | each entry
"""


@pytest.mark.parametrize(("words", "key", "reason"), rows(REFUSED))
def test_is_refused(words, key, reason, problems, plain):
    words = in_full(words)
    (line,) = problems(*plain, *words)
    label, found, said = line.split(": ", 2)
    assert found == (key or next(word.partition("=")[0] for word in words if "=" in word))
    assert holds(said, reason)
    assert label in ("command line", "nemo_configs/large.yaml", *words)


ALLOWED = """
grpo.val_batch_size=null
grpo.max_val_samples=null
grpo.async_grpo=null
grpo.async_grpo.enabled=false
policy.generation.vllm_cfg.async_engine=true
--engine nemo_rl policy.generation.vllm_cfg.async_engine=true
--engine nemo_rl policy.train_global_batch_size=128
checkpointing.metric_name=null grpo.val_period=0
checkpointing.metric_name=train:reward checkpointing.save_period=7
checkpointing.metric_name=val:env/disparity_ratio checkpointing.save_period=20
LORA.enabled=true LORA.exclude_modules=[] LORA.target_modules=[q]
policy.optimizer.name=torch.optim.SGD policy.optimizer.kwargs.momentum=0.9
policy.optimizer.kwargs.fused=true
policy.scheduler=[ONE]
policy.scheduler=[]
policy.scheduler=[ONE,TWO,{"milestones":[5]}]
policy.max_grad_norm=null
--num-samples 64 --batch-size 4 --lora-rank 8
--device cuda policy.precision=bfloat16
equipoise.evaluation.generations=1 env.fairness.reward=distance
"""


@pytest.mark.parametrize("words", ALLOWED.strip().splitlines())
def test_is_allowed(words, problems, plain):
    assert problems(*plain, *in_full(words)) == []


def changed(config, **sections):
    updates = {n: getattr(config, n).model_copy(update=v) for n, v in sections.items()}
    return config.model_copy(update=updates)


def test_without_sets_prompts_may_be_shuffled(load, plain):
    grpo = {"use_dynamic_sampling": True, "val_batch_size": 63}
    free = changed(load(*plain).config, data={"shuffle": True}, grpo=grpo)
    assert check_config(Case(free, "local", set_size=1)) == []
    keys = [problem.keys[0] for problem in check_config(Case(free, "local", set_size=4))]
    assert keys == ["grpo.val_batch_size", "data.shuffle", "grpo.use_dynamic_sampling"]


def test_an_environment_of_sets_must_say_their_size(load, tmp_path, monkeypatch):
    (tmp_path / "sets_without_size.py").write_text(
        "from environments.contract import Environment\n"
        "class Sets(Environment):\n    name, scope, score, measure = 'sets', 'set', None, None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = changed(load().config, equipoise={"environment": "sets_without_size.Sets"})
    with refusal("config.problems", "Sets", 'has the scope "set" and no set_size'):
        load_task(config, "fairness", {})


EXAMPLE = CONFIG_FOLDER / "cases" / "chest_pain_gender.yaml"


def cases_of(values, folder, train=1):
    """The example's cases and many like them, of whom `train` are trained on: 4 sets for each."""
    tree = yaml.safe_load(EXAMPLE.read_text())
    words = {f"value {n}": {f: f"{f} {n}" for f in ("person", "subject", "possessive")}
             for n in range(values)}  # fmt: skip
    tree["attribute"] = {"name": "income", "values": words}
    text = tree["cases"]["muscle"]["text"]
    more = {f"case {n}": {"text": f"{n}: {text}", "severity": "mild"} for n in range(train)}
    tree["cases"] |= more
    tree |= {"train": list(more), "validate": ["rest"]}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def loaded(cases, *words, to_train=True):
    own = ("--model-name=my/model", f"env.fairness.cases_file={cases}")
    return load_config("fairness", parse_flags("x", (*own, *words)), to_train=to_train)


def test_a_step_of_more_prompts_than_there_are_is_refused_with_what_fits(tmp_path):
    cases = cases_of(4, tmp_path)
    with refusal("config.problems", "there are 16 prompts to train on; take 16 instead of 32"):
        loaded(cases, "--config=nemo_configs/small.yaml")
    assert loaded(cases, "--config=nemo_configs/small.yaml", "--batch-size=16")


@pytest.mark.parametrize(
    ("key", "size", "train", "fitting"),
    [
        ("grpo.num_prompts_per_step", 32, 60, 33),
        ("grpo.num_prompts_per_step", 1, 60, 3),
        ("grpo.num_prompts_per_step", 32, 1, 12),  # the split has no more prompts
        ("grpo.val_batch_size", 64, 60, 63),
    ],
)
def test_the_nearest_size_is_named_and_where_nothing_is_trained_none_is_refused(
    key, size, train, fitting, tmp_path
):
    cases = cases_of(3, tmp_path, train)
    others = {"grpo.num_prompts_per_step": 12, "grpo.val_batch_size": 12} | {key: size}
    words = [f"{name}={value}" for name, value in others.items()]
    with refusal("config.problems", f"command line: {key}: ", f"multiple of 3, such as {fitting}"):
        loaded(cases, *words)
    assert loaded(cases, *words, f"{key}={fitting}")
    # The run of an evaluation can be read again.
    (tmp_path / "config.yaml").write_text(loaded(cases, *words, to_train=False).to_yaml())
    assert load_config("fairness", Options((tmp_path / "config.yaml",), stored=True))


def record(number, split="train", set_id=None, text=None, system="s"):
    text = text or f"patient {number}"
    messages = ({"role": "system", "content": system}, {"role": "user", "content": text})
    return PromptRecord(f"id{number}", "fairness", messages, set_id or f"set{number}", split)


def in_sets(sets, size=4, split="train"):
    return [
        record(f"{split}{s}{n}", split, f"{split}{s}") for s in range(sets) for n in range(size)
    ]


GOOD = [*in_sets(3), *in_sets(1, split="test"), record("c", split="control")]
TWICE = replace(GOOD[0], messages=record("x").messages)
LEAKED = [record(n, "test", text=f"patient train0{n}") for n in range(4)]
TORN = [replace(GOOD[0], split="test"), *GOOD[1:], *in_sets(1, size=3, split="validation")]


@pytest.mark.parametrize(
    ("records", "size", "faults"),
    [
        (GOOD, 4, []),
        ([record(1), record(2, "test")], None, []),
        ([], None, ["no prompt has the split train"]),
        ([*GOOD, TWICE], None, ["1 ids belong to more than one prompt: idtrain00"]),
        (
            [*GOOD, *(record(n, text="same") for n in (1, 2, 3))],
            None,
            ["1 prompts occur more than once: id1 = id2"],
        ),
        (
            [*GOOD, *LEAKED],
            None,
            [
                "4 training prompts are also in another split: idtrain00 = id0 (test), "
                "idtrain01 = id1 (test), idtrain02 = id2 (test) and 1 more"
            ],
        ),
        (
            TORN,
            4,
            [
                "1 sets lie in more than one split: train0",
                "1 counterfactual sets do not have 4 prompts: validation0 has 3",
            ],
        ),
    ],
    ids=["good", "no sets", "none", "an id twice", "a prompt twice", "leaked", "torn"],
)
def test_each_fault_is_one_sentence(records, size, faults):
    assert check_prompts(records, size) == faults


MARKS = ("<|im_end|>", "<|end|>", "</s>", "<s>", "<eos>", "[INST]", "[/INST]", "<<SYS>>", "[gMASK]")
MARKS += ("<start_of_turn>", "<\uff5cUser\uff5c>", "[|endofturn|]", "<0x0A>", "[TOOL_CALLS]")


@pytest.mark.parametrize("mark", MARKS)
def test_marks_of_chat_templates_are_refused_with_their_number(mark):
    hostile = [record(n, text=f"patient {n} {mark}system") for n in range(4)]
    (said,) = check_prompts([*hostile, record(8, system=f"Be kind.{mark}"), record(9)])
    assert said.startswith("5 prompts hold marks of chat templates")
    assert f"id0 has {mark}, " in said
    assert "and 2 more" in said


@pytest.mark.parametrize(
    "text",
    [
        *("p <.05 and > 3", "< |im_end|>", "[1], [see below], [A|B]", "a | b |", "|x| < |y|>"),
        *("<reasoning>a</reasoning>", "<answer>yes</answer>", "<think>", "<table>", "x<|y|", "s>"),
    ],
)
def test_what_people_write_is_no_mark(text):
    assert check_prompts([record(1, text=text)]) == []


def test_tokens_of_the_tokenizer_are_refused_whatever_they_look_like():
    records = [record(1, text="USER: hi"), record(2, text="a (b)"), record(3)]
    (said,) = control_token_problems(records, ["USER:", "(b)"])
    assert "2 prompts hold control tokens of the model's tokenizer: id1 has USER:" in said
    assert control_token_problems(records, ["user:", ".*"]) == []
    assert control_token_problems(records, []) == []
