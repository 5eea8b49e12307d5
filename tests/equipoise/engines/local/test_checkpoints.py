from pathlib import Path

from equipoise.engines.local.checkpoints import checkpoint_path, latest_checkpoint, mark_complete


def save(folder: Path, step: int, *, complete: bool) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text("weights")
    if complete:
        mark_complete(path)
    return path


def test_the_newest_complete_checkpoint_is_taken_and_a_half_written_one_removed(tmp_path: Path):
    save(tmp_path, 9, complete=True)
    newest = save(tmp_path, 10, complete=True)
    half = save(tmp_path, 20, complete=False)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (newest, 10)
    assert not half.exists()


def test_no_checkpoint_yet(tmp_path: Path):
    assert latest_checkpoint(tmp_path / "checkpoints") is None
