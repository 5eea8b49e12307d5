"""Finished results of a run or a checkpoint are compared with their manifest before use."""

import json
import shutil
from pathlib import Path

import pytest

from equipoise.files.disk import read_json, write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from equipoise.run.seals import (
    MANIFEST,
    check_files,
    check_part,
    folder_damage,
    forget_files,
    is_sealed,
    open_run,
    record_files,
    seal,
    set_aside,
)
from tests.refusals import refusal


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.ledger.create(Provenance())
    for stage in ("baseline", "final"):
        run.evaluation(stage).parent.mkdir()
        run.evaluation(stage).write_text('{"schema": 1}')
        run.rollouts(stage).write_text('{"value": 0.25}\n')
    run.reference.write_text('{"completion": "x"}\n')
    run.final_checkpoint.mkdir()
    (run.final_checkpoint / "model.safetensors").write_bytes(b"weights")
    run.history.write_text("row 1\n")
    stages = (run.evaluation(stage).parent for stage in ("baseline", "final"))
    record_files(run, *stages, run.reference, run.final_checkpoint, run.history)
    return run


def checked(run: RunDirectory, *lasting: str) -> list[str]:
    said: list[str] = []
    check_files(run, lasting=lasting, warn=said.append)
    return said


def test_a_whole_run_passes_without_a_word(run: RunDirectory):
    assert checked(run) == []
    assert open_run(run.root) == run


def test_a_changed_figure_is_named_and_its_stage_made_again(run: RunDirectory):
    run.rollouts("final").write_text('{"value": 0.75}\n')
    with refusal("run.damaged-files", "final/rollouts.jsonl was changed since it was written"):
        open_run(run.root)
    assert checked(run) == [
        f"{run.root}: final/rollouts.jsonl was changed since it was written; it is made again"
    ]
    assert not run.evaluation("final").exists()
    assert (run.root / "damaged-final" / "rollouts.jsonl").exists()
    assert run.evaluation("baseline").exists()
    assert checked(run) == []


@pytest.mark.parametrize("name", ["baseline/evaluation.json", "reference.jsonl"])
def test_what_is_missing_is_named(run: RunDirectory, name: str):
    (run.root / name).unlink()
    with refusal("run.damaged-files", f"{name} is missing"):
        open_run(run.root)


def test_what_is_gone_whole_is_said_once(run: RunDirectory):
    shutil.rmtree(run.final_checkpoint)
    assert checked(run) == [f"{run.root}: final_checkpoint is missing; it is made again"]


def test_training_makes_the_history_again(run: RunDirectory):
    run.history.write_text("row 2\n")
    assert len(checked(run)) == 1
    assert not run.final_checkpoint.exists(), "else nothing would train"


def test_what_an_engine_cannot_make_again_ends_the_run_and_stays(run: RunDirectory):
    run.rollouts("baseline").write_text("")
    with refusal("resume.damaged-files", "baseline/rollouts.jsonl has 0 bytes of"):
        checked(run, "baseline")
    assert run.rollouts("baseline").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 99_999])
@pytest.mark.parametrize("name", [MANIFEST, "provenance.json"])
def test_a_damaged_record_is_one_clear_error(run: RunDirectory, name: str, content: bytes):
    (run.root / name).write_bytes(content)
    code = "run.unreadable-manifest" if name == MANIFEST else "run.unreadable-ledger"
    with refusal(code, name):
        open_run(run.root)


def test_a_provenance_with_another_figure_is_not_read_as_good(run: RunDirectory):
    run.ledger.update(logprobs_differ_by={"vllm": float("nan")}, seed=42)
    whole = run.provenance.read_text()
    content = json.loads(whole)
    for changed in (whole.replace('"seed": 42', '"seed": 43'), json.dumps(content | {"sha256": 0})):
        run.provenance.write_text(changed)
        with refusal("run.unreadable-ledger", "was changed since it was written"):
            run.ledger.read()
    run.provenance.write_text(whole)
    assert run.ledger.read().seed == 42


def test_what_a_run_is_made_from_stays_what_it_was(run: RunDirectory):
    run.ledger.record({"model": "org/model@one"})
    run.ledger.record({"model": "org/model@one"})
    with refusal("run.changed-source", "org/model@one"):
        run.ledger.record({"model": "org/model@two"})
    assert run.ledger.read().hashes == {"model": "org/model@one"}


def test_what_the_manifest_does_not_list_is_not_read_as_good(run: RunDirectory):
    forget_files(run, ["final"])
    run.generations("final").write_text("{}")
    run.comparison.write_text("{}")
    with refusal("run.unlisted-files", "final, comparison.json"):
        open_run(run.root)
    final = run.evaluation("final").parent
    record_files(run, final, run.comparison, without=run.generations("final"))
    run.generations("final").unlink()
    open_run(run.root)
    (run.root / MANIFEST).unlink()
    for action in (lambda: open_run(run.root), lambda: check_part(run.final_checkpoint)):
        with refusal("run.unlisted-files", "final"):
            action()


def test_a_run_that_trains_is_read_without_its_history(run: RunDirectory):
    for part in (run.evaluation("final").parent, run.final_checkpoint):
        shutil.rmtree(part)
    forget_files(run, ["final", "final_checkpoint", run.history.name])
    run.history.write_text("row 1\nrow 2\n")
    open_run(run.root)


def test_hidden_files_are_no_part_of_a_result(run: RunDirectory):
    """A file that a killed process left is removed later, and would then be missing."""
    (run.root / "final" / ".rollouts.jsonl.abc.unfinished").write_text("x")
    record_files(run, run.evaluation("final").parent)
    (run.root / "final" / ".rollouts.jsonl.abc.unfinished").unlink()
    assert checked(run) == []


def test_a_model_behind_a_link_is_the_run_s(run: RunDirectory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("disk") / "weights"
    run.final_checkpoint.rename(elsewhere)
    run.final_checkpoint.symlink_to(elsewhere)
    check_part(run.final_checkpoint)
    (elsewhere / "model.safetensors").write_bytes(b"WEIGHTS")
    with refusal("run.damaged-files", "model.safetensors was changed"):
        check_part(run.final_checkpoint)


@pytest.mark.parametrize("name", ["reference.jsonl", "final_checkpoint"])
def test_what_lies_in_no_run_has_nothing_to_be_compared_with(run: RunDirectory, name: str):
    run.provenance.unlink()
    (run.root / MANIFEST).unlink()
    check_part(run.root / name)


def listed(run: RunDirectory, name: str) -> None:
    """List one more file by hand."""
    files = read_json(run.root / MANIFEST)["files"]
    state = {"bytes": 0, "hash": "sha256:0"}
    write_json(run.root / MANIFEST, {"files": files | {name: state}})


@pytest.mark.parametrize("name", ["{outside}/kept.txt", "../other", "..", "checkpoints/x", ""])
def test_a_part_that_is_none_of_a_run_moves_and_reads_nothing(
    run: RunDirectory, tmp_path_factory, name: str
):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept.txt").write_text("x")
    listed(run, name.format(outside=outside))
    before = sorted(run.root.rglob("*"))
    for action in (lambda: checked(run), lambda: open_run(run.root)):
        with refusal("run.strange-part", MANIFEST):
            action()
    assert sorted(run.root.rglob("*")) == before
    assert (outside / "kept.txt").read_text() == "x"


@pytest.mark.parametrize("name", ["baseline/../../x", "baseline/link", "baseline/\0"])
def test_a_file_outside_is_not_looked_at(run: RunDirectory, name: str):
    (run.root / "baseline" / "link").symlink_to("/dev/zero")
    listed(run, name)
    with refusal("run.damaged-files", f"{name} is not a name of a file"):
        open_run(run.root)


# --- a checkpoint ---------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "checkpoint-3"
    (folder / "policy" / "weights").mkdir(parents=True)
    (folder / "policy" / "weights" / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "rng_state.pth").write_bytes(b"random")
    (folder / "empty").touch()
    assert not is_sealed(folder)
    seal(folder)
    assert is_sealed(folder)
    return folder


def test_every_flipped_bit_of_the_weights_is_named(checkpoint: Path):
    path = checkpoint / "policy" / "weights" / "model.safetensors"
    whole = path.read_bytes()
    for place in (0, 5_000, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert folder_damage(checkpoint) == [
            "policy/weights/model.safetensors was changed since it was written"
        ]
    with refusal("run.damaged-files", "model.safetensors was changed"):
        check_part(checkpoint)


def test_what_is_missing_or_cut_off_is_named(checkpoint: Path):
    (checkpoint / "rng_state.pth").unlink()
    (checkpoint / "policy" / "weights" / "model.safetensors").write_bytes(b"cut")
    assert folder_damage(checkpoint) == [
        "policy/weights/model.safetensors has 3 bytes of 10,240",
        "rng_state.pth is missing",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"files": {"a": 1}}', b"\xff"])
def test_a_damaged_manifest_trusts_nothing(checkpoint: Path, content: bytes):
    (checkpoint / MANIFEST).write_bytes(content)
    assert folder_damage(checkpoint) == [f"{MANIFEST} cannot be read"]


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
