"""Prompts that cannot be trained on; each fault in one sentence."""

from dataclasses import replace

import pytest

from environments.base import PromptRecord
from equipoise.config import check_prompts, control_token_problems


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
