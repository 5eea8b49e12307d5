"""The command `equipoise`: its verbs are there, and each reads its own words."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.commands.main import VERBS, main, options_of
from equipoise.config.compose import tasks
from equipoise.config.gone import VERBS as GONE
from equipoise.config.words import read_options


def started(*words, folder=None):
    """The command in a process and a folder of its own."""
    command = [sys.executable, "-m", "equipoise", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_names_every_verb_and_imports_nothing_that_takes_long(words):
    script = "import sys; from equipoise.__main__ import main\ntry: main(sys.argv[1:])\nfinally: "
    script += "sys.stderr.write(str({'torch', 'numpy', 'omegaconf'} & set(sys.modules)))"
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "set()"
    assert all(f"  {name} " in done.stdout for name in VERBS)


@pytest.mark.parametrize("verb", GONE)
def test_a_verb_that_is_gone_says_what_to_use(verb, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([verb])
    assert capsys.readouterr().err == f"error: there is no verb {verb}: {GONE[verb]}\n"


def examples_in(text):
    """The words of every example of a help text that starts something of ours."""
    lines = [
        shlex.split(line, comments=True) for line in text.partition("examples:\n")[2].split("\n")
    ]
    ours = (("equipoise",), ("uv", "run"))
    return [words for words in lines if any(tuple(words[: len(own)]) == own for own in ours)]


def refuse_words(words):
    """Read the words as the command `equipoise` does, and start nothing."""
    name = next(name for name in VERBS if words[: name.count(" ") + 1] == name.split())
    words = words[name.count(" ") + 1 :]
    options = read_options(options_of(name), words)
    if hasattr(options, "check"):
        options.check()
    if hasattr(options, "training"):
        options.training.as_options()
    assert getattr(options, "task", None) in (None, "all", *tasks())


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_called_by_its_name_and_every_example_in_its_help_is_read(
    name, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["equipoise"])
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    said = capsys.readouterr().out
    assert stopped.value.code == 0 and said.startswith(f"usage: equipoise {name} ")
    examples = examples_in(said)
    assert examples
    for words in examples:
        refuse_words(words[1:] if words[0] == "equipoise" else [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("compare", "a", "b", "--outptu-dir=x"),
            "there is no --outptu-dir=x, did you mean --output-dir?",
        ),
        (("convert", "a", "b", "--adaptor"), "there is no --adaptor, did you mean --adapter?"),
        (("export", "gym"), "RUN the folder of a run"),
        (("convert", "a", "b", "--to", "tpu"), "'tpu' for argument '--to'"),
        (("evaluate", "--seed", "x"), "Error parsing --seed"),
        (("convert", "a", "b", "c"), "options.extra-word"),
        (("evaluate", "fairnes", "--model", "m"), "audit.unknown-task"),
        (("evaluate", "--task", "all", "--model", "m"), "name the task as the first word"),
        (("probe", "fairness", "--rehearse"), "there is no --rehearse; see --help"),
        (("train", "fairness", "--lr=1e-5"), "there is no --lr: use policy.optimizer.kwargs.lr"),
        (("trian",), "there is no verb trian, did you mean train?"),
        (("lm-eval",), "there is no verb lm-eval: use `equipoise evaluate TASK --model NAME`"),
        (("train", "fairness", "--iteratons=3"), "did you mean --iterations?"),
        (("doctor", "--seed=1"), "config.unknown-task"),
        (("export",), "say what to export: export gym or export verifiers"),
        (("calibrate",), "LABELS"),
        (("gate", "a"), "gate.too-few-sides"),
        (("gate", "a", "b", "--plan"), "gate.two-to-plan"),
        (("evaluate", "all", "--model=m", "--plan=p", "--limit=1"), "audit.plan-and-limit"),
        (("evaluate", "all", "--model=m", "--plan=absent.json"), "audit.no-plan"),
    ],
)
def test_wrong_words_are_one_clear_error(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error") and told.count("error") == 1
    assert said in told
    assert "│" not in told


def test_a_shipped_configuration_is_found_from_any_folder(tmp_path):
    done = started(
        "train", "fairness", "--config=nemo_configs/smoke.yaml", "--dry-run", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "task fairness, engine local" in done.stdout


def test_words_may_stand_between_flags_and_flags_be_repeated():
    words = ["rag", "env.a=1", "--config=a.yaml", "env.b=x=y", "--config", "b.yaml", "c=2"]
    options = read_options(options_of("evaluate"), [*words, "--output-dir", "new"])
    assert options.assignments == ("env.a=1", "env.b=x=y", "c=2")
    assert options.config == (Path("a.yaml"), Path("b.yaml"))
    assert options.output_dir == Path("new")
