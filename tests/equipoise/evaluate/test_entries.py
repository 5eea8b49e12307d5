"""Runs of others as entries of a comparison."""

from pathlib import Path

from equipoise.evaluate.entries import task_of
from equipoise.run.directory import RunDirectory
from tests.refusals import refusal

#: A task of 46,656 words with as many lists above, once its aliases are followed.
BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 6)}]\n"
    for below, name in zip("abcdef", "bcdefg", strict=True)
)


def test_a_configuration_that_expands_without_end_names_no_task(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"{BOMB}equipoise: {{task: *g}}\n")
    with refusal("entry.no-task"):
        task_of(RunDirectory(tmp_path))


def test_the_task_is_that_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("equipoise: {task: fairness}\n")
    assert task_of(RunDirectory(tmp_path)) == "fairness"
