"""A sealed folder says of every file whether it is what was written."""

from pathlib import Path

import pytest

from equipoise.run.seals import LIST, folder_damage, is_sealed, is_whole, seal, seal_file, set_aside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-3"
    (folder / "policy" / "weights").mkdir(parents=True)
    (folder / "policy" / "weights" / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "rng_state.pth").write_bytes(b"random")
    (folder / "empty").touch()
    return folder


def test_what_is_sealed_is_whole(folder: Path):
    assert not is_sealed(folder)
    seal(folder)
    assert is_sealed(folder)
    assert folder_damage(folder) == []


def test_every_flipped_bit_of_the_weights_is_named(folder: Path):
    seal(folder)
    path = folder / "policy" / "weights" / "model.safetensors"
    whole = path.read_bytes()
    for place in (0, 5_000, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert folder_damage(folder) == [
            "policy/weights/model.safetensors was changed since it was written"
        ]


def test_what_is_missing_or_cut_off_is_named(folder: Path):
    seal(folder)
    (folder / "rng_state.pth").unlink()
    (folder / "policy" / "weights" / "model.safetensors").write_bytes(b"cut")
    assert folder_damage(folder) == [
        "policy/weights/model.safetensors has 3 bytes of 10,240",
        "rng_state.pth is missing",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b"\xff", b"[" * 9_999])
def test_a_damaged_list_trusts_nothing(folder: Path, content: bytes):
    seal(folder)
    (folder / LIST).write_bytes(content)
    assert folder_damage(folder) == ["complete, the list of its files, is damaged"]


def test_a_file_beside_others_is_sealed_alone(tmp_path: Path):
    path = tmp_path / "reference.jsonl"
    assert not is_whole(path)
    path.write_text("one\n")
    assert not is_whole(path), "it was not sealed, so it may be cut off"
    seal_file(path)
    assert is_whole(path)
    path.write_text("two\n")
    assert not is_whole(path)


def test_what_is_set_aside_makes_room_for_the_next(tmp_path: Path):
    for content in ("first", "second"):
        (tmp_path / "final").mkdir()
        (tmp_path / "final" / "x").write_text(content)
        set_aside(tmp_path / "final")
    assert (tmp_path / "damaged-final" / "x").read_text() == "second"
    set_aside(tmp_path / "nothing")
    (tmp_path / "a.csv").write_text("1")
    set_aside(tmp_path / "a.csv")
    assert (tmp_path / "damaged-a.csv").exists()
