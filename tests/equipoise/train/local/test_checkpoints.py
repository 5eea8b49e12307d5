import shutil
from pathlib import Path

from equipoise.run.history import append_row, restore
from equipoise.train.local.callbacks import (
    checkpoint_path,
    finish_checkpoint,
    latest_checkpoint,
)
from tests.refusals import refusal


def save(folder: Path, step: int, *, complete: bool) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text("weights")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    if complete:
        append_row(folder / "history.jsonl", {"step": step, "reward": step / 3})
        finish_checkpoint(path, folder / "history.jsonl")
    return path


def test_the_newest_complete_checkpoint_is_taken_and_a_half_written_one_removed(tmp_path: Path):
    save(tmp_path, 9, complete=True)
    newest = save(tmp_path, 10, complete=True)
    half = save(tmp_path, 20, complete=False)
    said: list[str] = []
    found = latest_checkpoint(tmp_path, said.append)
    assert found is not None
    assert (found.path, found.step) == (newest, 10)
    assert said == [f"{half} was not written to its end, and is removed"]
    assert not half.exists()


def test_checkpoints_that_were_copied_without_their_lists_are_not_thrown_away(tmp_path: Path):
    """A kill leaves one half-written checkpoint at most."""
    folders = [save(tmp_path, step, complete=True) for step in (2, 4, 6)]
    for folder in folders:
        (folder / "manifest.json").unlink()
    with refusal("resume.no-whole-checkpoint"):
        latest_checkpoint(tmp_path, print)
    assert [folder.exists() for folder in folders] == [True, True, False]


def test_a_link_to_another_folder_is_not_emptied(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "checkpoint-5").symlink_to(other)
    assert latest_checkpoint(folder, print) is None
    assert (other / "precious").exists()


def test_the_history_comes_back_as_the_checkpoint_knew_it(tmp_path: Path):
    history = tmp_path / "history.jsonl"
    for step in (1, 2):
        save(tmp_path, step, complete=True)
    whole = history.read_bytes()
    history.write_text("other rows\n")
    newest = latest_checkpoint(tmp_path, print)
    assert newest is not None
    restore(history, newest.path / history.name)
    assert history.read_bytes() == whole
    restore(history, None)
    assert not history.exists()


def test_one_step_s_checkpoint_under_another_s_name_is_set_aside(tmp_path: Path):
    """Its list is whole, so that training would go on from the wrong step."""
    first, second = save(tmp_path, 1, complete=True), save(tmp_path, 2, complete=True)
    copy = checkpoint_path(tmp_path, 4)
    shutil.copytree(first, copy)
    said: list[str] = []
    found = latest_checkpoint(tmp_path, said.append)
    assert found is not None
    assert (found.path, found.step) == (second, 2)
    assert said == [
        f"{copy} is damaged: it was written at step 1, which is not that of its name; "
        "step 2 is taken instead"
    ]
    assert not copy.exists()
