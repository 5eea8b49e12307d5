"""One command makes the prompts of any task and seals a file; each mistake is one message."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.__main__ import main
from equipoise.commands.prepare import find_task
from equipoise.config.compose import tasks
from equipoise.files.records import read_prompts
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[3]
LINE = {
    "id": "a",
    "task": "dharma",
    "messages": [{"role": "user", "content": "My knee hurts."}],
    "set_id": "a",
    "split": "train",
    "metadata": {},
}
OWN = """
from data_prep.contract import DataModule, DataSettings
from environments.base import PromptRecord

class OwnData(DataModule):
    class PromptSettings(DataSettings):
        num_samples: int

    def build_prompts(self, settings):
        ask, n = ({"role": "user", "content": "Why?"},), range(settings.num_samples)
        return [PromptRecord(str(i), "own", ask, str(i), "train") for i in n]
"""


def ended(*words):
    """The exit code of the command."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def failure(capsys, *words):
    """Code and message of a command that must fail."""
    code = ended(*words)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "words", "chosen"),
    [
        ("fairness", ["cases=[whiplash]", "seed=3"], {"cases": ["whiplash"], "seed": 3}),
        ("dharma", [], {}),
        ("pubmedqa", ["source=synthetic", "classes=2"], {"source": "synthetic", "classes": 2}),
        ("rag", ["index={}/i", "fractions.train=0.6", "fractions.test=0.3"], None),
    ],
)
def test_what_is_written_is_what_the_settings_say(task, words, chosen, tmp_path, capsys):
    folder, words = tmp_path / "new", [word.format(tmp_path) for word in words]
    assert not ended("prepare", task, "num_samples=24", "--output-dir", str(folder), *words)
    if chosen is None:
        fractions = {"train": 0.6, "validation": 0.1, "test": 0.3}
        chosen = {"index": f"{tmp_path}/i", "fractions": fractions}
    module = find_task(task)
    settings = module.PromptSettings(num_samples=24, **chosen)
    records = read_prompts(folder / "prompts.jsonl")
    assert records == module.build_prompts(settings)
    about = json.loads((folder / "prompts.manifest.json").read_text())["about"]
    assert about == {"module": module.__module__, "settings": settings.model_dump(mode="json")}
    said = capsys.readouterr().out
    assert re.search(r"prompts\.jsonl: .*\b\d+ train", said)
    assert "invented: all of it" in said


@pytest.mark.parametrize("task", tasks())
def test_examples_are_conversations_that_no_evaluation_asks(task, tmp_path):
    keys = {"pubmedqa": ["source=synthetic"], "rag": [f"index={tmp_path}/index"]}.get(task, [])
    file = tmp_path / "examples" / "task.jsonl"
    files = ("--output-dir", str(tmp_path), "--examples", str(file))
    assert not ended("prepare", task, "num_samples=160", *keys, *files)
    lines = [json.loads(line)["messages"] for line in file.open(encoding="utf-8")]
    assert len(lines) == 2000
    assert {messages[-1]["role"] for messages in lines} == {"assistant"}
    records = read_prompts(tmp_path / "prompts.jsonl")
    held_out = {r.messages[-1]["content"] for r in records if r.split != "train"}
    assert held_out and not held_out & {messages[-2]["content"] for messages in lines}
    # What a model is told besides the question is what a run tells it.
    assert {m[0]["content"] for m in lines if len(m) > 2} <= {
        r.messages[0]["content"] for r in records
    }


def test_a_data_module_of_ones_own(tmp_path):
    (tmp_path / "own_task.py").write_text(OWN)
    words = ("prepare", "own_task.OwnData", "num_samples=3", "--output-dir", "out")
    command = [sys.executable, "-m", "equipoise", *words]
    environment = {"PYTHONPATH": str(ROOT)}
    made = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "out/prompts.jsonl: 3 train" in made.stdout
    assert "not said by own_task" in made.stdout
    assert len(read_prompts(tmp_path / "out" / "prompts.jsonl")) == 3
    command[-1:] = ["out", "--examples=x.jsonl"]
    made = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (made.returncode, "prepare.no-examples" in made.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fairnes"], "fairnes is not a task: fairnes does not name a class"),
        (["a/b.C"], "a/b.C does not name a class"),
        (["nothing_of_the_kind.C"], "No module named"),
        (["equipoise.files.records.Name"], "does not extend data_prep.contract"),
        (["fairness", "num_samples=50", "--output-dir", "{}/new"], "take 48 or 52"),
        (["fairness", "seed=1"], "--output-dir DIR"),
        (["fairness", "whiplash"], "'whiplash' is not a key=value"),
        (["fairness", "case=[whiplash]"], "case: unknown key, did you mean cases?"),
        (["fairness", "cases=["], "not YAML"),
        (["fairness", "seed=${nothing}"], "nothing"),
        (["dharma", "num_samples=9999"], "more than there are: 5,078"),
        (["pubmedqa", "source=file"], "belong together"),
        (["rag", "corpus=mine"], "needs a folder of its own"),
    ],
    ids=str,
)
def test_wrong_usage_is_told_and_nothing_is_written(words, said, tmp_path, capsys):
    code, message = failure(capsys, "prepare", *(w.replace("{}", str(tmp_path)) for w in words))
    assert code == 2
    assert said in message
    assert not list(tmp_path.iterdir())


def test_a_bug_of_a_module_keeps_its_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "buggy", raising=False)
    (tmp_path / "buggy.py").write_text(OWN.replace("ask, n =", "1 / 0; ask, n ="))
    words = ("prepare", "buggy.OwnData", "num_samples=1", "--output-dir", str(tmp_path / "out"))
    code, message = failure(capsys, *words)
    assert code == 1
    assert "Traceback" in message and 'buggy.py", line' in message
    assert "ZeroDivisionError" in message


@pytest.mark.parametrize("task", tasks())
def test_a_task_alone_has_every_key_listed_with_its_default(task, capsys):
    assert not ended("prepare", task)
    said = capsys.readouterr().out
    for name in find_task(task).PromptSettings.model_fields:
        assert re.search(rf"^  {name}[=.]", said, re.MULTILINE), name


def lines(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_that_was_edited_is_read_again_once_it_is_sealed(tmp_path, capsys):
    path = lines(tmp_path / "prompts.jsonl", LINE)
    assert not ended("seal", str(path))
    lines(path, LINE, LINE | {"id": "b", "split": "test"})
    with refusal("prompts.invalid-file", "its hash is not the one"):
        read_prompts(path)
    assert not ended("seal", str(path))
    assert [record.id for record in read_prompts(path)] == ["a", "b"]
    assert ": 1 train, 1 test\n" in capsys.readouterr().out


def test_the_line_that_the_documentation_shows_is_one(tmp_path):
    page = (ROOT / "docs" / "own-data.md").read_text("utf-8")
    shown = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "mine.jsonl"
    path.write_text(shown[1])
    assert not ended("seal", str(path))
    assert [record.id for record in read_prompts(path)] == ["knee-1"]


def test_examples_take_the_keys_that_they_share_with_the_prompts(tmp_path):
    def made(*words):
        assert not ended("prepare", "dharma", "--examples", str(tmp_path / "x.jsonl"), *words)
        return (tmp_path / "x.jsonl").read_text("utf-8")

    assert made("seed=1") == made("seed=1") != made("seed=2")
