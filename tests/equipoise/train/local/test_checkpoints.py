from pathlib import Path

from equipoise.run.history import append_row, restore
from equipoise.train.local_callbacks import (
    checkpoint_path,
    finish_checkpoint,
    latest_checkpoint,
)


def save(folder: Path, step: int, *, complete: bool) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text("weights")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    if complete:
        append_row(folder / "history.jsonl", {"step": step, "reward": step / 3})
        finish_checkpoint(path, folder / "history.jsonl")
    return path


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path):
    save(tmp_path, 9, complete=True)
    newest = save(tmp_path, 10, complete=True)
    save(tmp_path, 20, complete=False)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (newest, 10)


def test_the_history_comes_back_as_the_checkpoint_knew_it(tmp_path: Path):
    history = tmp_path / "history.jsonl"
    for step in (1, 2):
        save(tmp_path, step, complete=True)
    whole = history.read_bytes()
    history.write_text("other rows\n")
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    restore(history, newest.path / history.name)
    assert history.read_bytes() == whole
    restore(history, None)
    assert not history.exists()
