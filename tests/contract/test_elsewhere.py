"""Every block of docs/elsewhere.md does what the page says."""

import os
import re
import shlex
import sys

import pytest

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import Message, PromptRecord
from equipoise.files.records import write_prompts
from tests.command import ROOT, finished, with_our_code
from tests.contract.gym.served import made_run
from tests.contract.packages import GYM, missing

PAGE = (ROOT / "docs" / "elsewhere.md").read_text("utf-8")
PACKAGES, UNAVAILABLE = GYM.folder, missing("gym")
METADATA = {"gold": "yes", "context": "RESULTS: Pain fell.", "question": "Does pain fall?"}


def asks(text):
    return (Message(role="user", content=text),)


RECORDS = [
    PromptRecord(name, "pubmedqa", asks(name), name, "train", METADATA) for name in ("q1", "q2")
]


def block(heading, language):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return found


def run(code, folder, **variables):
    command = [sys.executable, "-W", "ignore", "-c", code]
    return finished(command, cwd=folder, env=with_our_code(**variables))


def test_every_block_is_here():
    assert re.findall(r"```(\w+)", PAGE) == [
        *("bash", "python", "python"),  # plain Python, TRL
        *("bash", "bash", "toml", "bash"),  # NeMo Gym, verifiers, Inspect
    ]


def test_plain_python_prints_what_the_page_says(tmp_path):
    code = block("Plain Python", "python")
    (said,) = re.findall(r"  # (.*)", code)
    assert run(code, tmp_path).strip() == said


def test_the_function_for_trl_trains(tmp_path):
    write_prompts(tmp_path / "prompts.jsonl", RECORDS, {})
    examples = [Example(record.messages, "<answer>yes</answer>") for record in RECORDS]
    model = warm_start(examples, WarmStart(steps=1, batch_size=2, vocab_size=400), tmp_path / "c")
    code = block("TRL", "python").replace("Qwen/Qwen2.5-0.5B-Instruct", str(model))
    code = code.replace(
        'GRPOConfig("grpo",', 'GRPOConfig("grpo", **LESS, max_steps=2, logging_steps=1,'
    )
    less = 'LESS = {"max_completion_length": 8}'
    shown = "print(trainer.state.global_step, 'reward' in trainer.state.log_history[0])"
    said = run(f"{less}\n{code}\n{shown}", tmp_path, HF_HUB_OFFLINE="1")
    assert said.splitlines()[-1] == "2 True"


@pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
def test_the_commands_for_nemo_gym_make_what_its_validation_takes(tmp_path):
    run_folder = made_run(tmp_path / "results" / "pubmedqa" / "RUN", "pubmedqa", RECORDS)
    assert run_folder.prompts.exists()
    ours, theirs = block("NeMo Gym", "bash").splitlines()
    words = shlex.split(ours)
    assert words[:5] == ["uv", "run", "equipoise", "export", "gym"]
    command = [sys.executable, "-m", *words[2:]]
    finished(command, cwd=tmp_path)
    words = shlex.split(theirs)
    assert words[0] == "gym"
    code = f"import sys; sys.argv = {words!r}; from nemo_gym.cli.main import main; main()"
    path = os.pathsep.join(map(str, (ROOT, PACKAGES / "beside", PACKAGES / "gym")))
    assert "equipoise_pubmedqa" in run(code, tmp_path, PYTHONPATH=path)
