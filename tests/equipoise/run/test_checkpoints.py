"""The newest checkpoint that can be trusted, whatever else lies beside it."""

from pathlib import Path

import pytest

from equipoise.run.seals import find_checkpoints, newest_whole, seal
from tests.refusals import refusal

FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def save(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_text(f"{name} of step {step}")
    seal(path)
    return path


def found(folder: Path, said: list[str]) -> Path | None:
    newest = newest_whole(find_checkpoints(folder, "checkpoint-"), said.append)
    return newest.path if newest else None


def test_the_newest_whole_one_is_taken_without_a_word(tmp_path: Path):
    save(tmp_path, 9)
    newest = save(tmp_path, 10)
    said: list[str] = []
    assert found(tmp_path, said) == newest
    assert said == []


@pytest.mark.parametrize("name", FILES)
def test_one_that_lacks_a_file_is_named_and_set_aside(tmp_path: Path, name: str):
    before, damaged = save(tmp_path, 9), save(tmp_path, 10)
    (damaged / name).unlink()
    said: list[str] = []
    assert found(tmp_path, said) == before
    assert said == [f"{damaged} is damaged: {name} is missing; step 9 is taken instead"]
    assert not damaged.exists()
    assert (tmp_path / "damaged-checkpoint-10").is_dir()
    assert found(tmp_path, []) == before


def test_where_none_is_whole_nothing_is_moved_and_the_way_out_is_said(tmp_path: Path):
    for step in (4, 8):
        (save(tmp_path, step) / "optimizer.pt").write_text("x")
    with refusal(
        "resume.no-whole-checkpoint",
        "checkpoint-4 is damaged: optimizer.pt has 1 bytes of 22",
        tmp_path,
    ):
        found(tmp_path, [])
    assert len(find_checkpoints(tmp_path, "checkpoint-")) == 2


def test_stray_things_are_left_alone(tmp_path: Path):
    kept = save(tmp_path, 3)
    for name in ("checkpoint-abc", "checkpoint-", "checkpoint-²", "checkpoint-٤", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").touch()
    (tmp_path / "checkpoint-8").symlink_to(tmp_path / "nowhere")
    (tmp_path / f"checkpoint-{'9' * 200}").mkdir()
    before = sorted(tmp_path.iterdir())
    assert found(tmp_path, []) == kept
    assert sorted(tmp_path.iterdir()) == before


def test_there_may_be_none(tmp_path: Path):
    assert found(tmp_path / "checkpoints", []) is None
