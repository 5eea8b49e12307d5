"""Runs get a folder and a name, and one that cannot start leaves nothing."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from equipoise.run.directory import NewRun, model_label, open_run_directory
from tests.refusals import refusal

STARTED = datetime(2026, 3, 4, 5, 6, 7)


def new(folder, name=None):
    return NewRun(folder, name, "tiny", STARTED)


def fill(run, name):
    run.config.write_text("x: 1")
    run.provenance.write_text(f'{{"run_name": "{name}"}}')


def test_a_name_is_never_reused_silently(tmp_path):
    run = new(tmp_path, "first").create(fill)
    again = new(tmp_path, "first")
    for refused in (again.check, lambda: again.create(fill)):
        with refusal("run.existing-run", f"--resume {run.root}"):
            refused()
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    assert new(tmp_path, "second").create(fill).root.is_dir()


def test_a_folder_that_is_no_run_is_not_said_to_be_one(tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "provenance.json").write_text("{}")
    with refusal("run.existing-folder") as error:
        new(tmp_path, "half").check()
    assert "--resume" not in str(error.value)


def test_a_run_without_a_name_is_called_after_its_model_and_the_time(tmp_path):
    run = new(tmp_path).create(fill)
    assert run.root == tmp_path / "tiny-20260304-050607"
    assert "tiny-20260304-050607" in run.provenance.read_text()


def test_starts_in_one_second_do_not_collide(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: new(tmp_path).create(fill), range(16)))
    assert len({run.root for run in runs}) == 16
    assert all(run.root.name in run.provenance.read_text() for run in runs)
    assert len(list(tmp_path.iterdir())) == 16


def test_a_run_that_could_not_be_written_leaves_nothing(tmp_path):
    def fail(run, name):
        fill(run, name)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        new(tmp_path, "mine").create(fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/results", "/dev/null"])
def test_a_folder_that_cannot_be_used_is_told_at_the_start(place, tmp_path):
    (tmp_path / "file").touch()
    with refusal("run.unusable-folder", "--output-dir"):
        new(tmp_path / place, "mine").check()


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("results/fairness/one/final_checkpoint/", "final_checkpoint"),
        ("./my models/ä b", "b"),
        ("/", "run"),
        ("x" * 300, "x" * 100),
    ],
)
def test_a_models_name_becomes_a_part_of_a_folders(model, label):
    assert model_label(model) == label


@pytest.mark.parametrize("lacks", ["config.yaml", "provenance.json"])
def test_only_a_run_can_be_resumed(lacks, tmp_path):
    root = new(tmp_path, "mine").create(fill).root
    assert open_run_directory(root).report == root / "report.html"
    (root / lacks).unlink()
    with refusal("resume.no-run", lacks):
        open_run_directory(root)
