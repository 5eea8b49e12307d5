"""The command `equipoise`: its verbs are there, and each reads its own words."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from equipoise.__main__ import VERBS, main


def started(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process and a folder of its own."""
    command = [sys.executable, "-m", "equipoise", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_names_every_verb_and_imports_nothing_that_takes_long(words: tuple[str, ...]) -> None:
    script = "import sys; from equipoise.__main__ import main\ntry: main(sys.argv[1:])\nfinally: "
    script += "sys.stderr.write(str({'torch', 'numpy', 'omegaconf'} & set(sys.modules)))"
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "set()"
    assert all(f"  {name} " in done.stdout for name in VERBS)


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.module])
def test_a_verb_reads_its_words_and_is_called_by_its_name(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["equipoise"])
    assert callable(import_module(VERBS[name].module).run)
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: equipoise {name} ")


@pytest.mark.parametrize("name", ["train", "probe"])
def test_training_and_probing_name_the_task_first(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["equipoise"])
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: equipoise {name} TASK ")
    with pytest.raises(SystemExit) as stopped:
        main([name, "fairnes"])
    assert stopped.value.code == 2
    assert f"For instance: equipoise {name} dharma" in capsys.readouterr().err


def test_an_unknown_verb_is_wrong_usage() -> None:
    done = started("trian")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no verb trian\nusage: equipoise VERB")


def test_a_shipped_configuration_is_found_from_any_folder(tmp_path: Path) -> None:
    done = started(
        "train", "fairness", "--config=nemo_configs/smoke.yaml", "--dry-run", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "task fairness, engine local" in done.stdout
