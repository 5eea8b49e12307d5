"""What a run has finished is looked at again before it is read."""

import shutil
from pathlib import Path

import pytest

from data_prep.files import read_json, write_json
from equipoise.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.seals import check_files, check_part, forget_files, open_run, record_files
from tests.refusals import refusal


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.ledger.create({"hashes": {}, "seconds": {}})
    for stage in ("baseline", "final"):
        run.evaluation(stage).parent.mkdir()
        run.evaluation(stage).write_text('{"schema": 1}')
        run.rollouts(stage).write_text('{"value": 0.25}\n')
    run.reference.write_text('{"completion": "x"}\n')
    run.final_checkpoint.mkdir()
    (run.final_checkpoint / "model.safetensors").write_bytes(b"weights")
    run.history.write_text("step,reward\n1,0.5\n")
    stages = (run.evaluation(stage).parent for stage in ("baseline", "final"))
    record_files(run, *stages, run.reference, run.final_checkpoint, run.history)
    return run


def checked(run: RunDirectory, *lasting: str) -> list[str]:
    said: list[str] = []
    check_files(run, lasting=lasting, warn=said.append)
    return said


def test_a_whole_run_passes_without_a_word(run: RunDirectory):
    assert checked(run) == []
    assert run.evaluation("baseline").exists()


def test_a_changed_figure_is_named_and_its_stage_made_again(run: RunDirectory):
    run.rollouts("final").write_text('{"value": 0.75}\n')
    assert checked(run) == [
        f"{run.root}: final/rollouts.jsonl was changed since it was written; it is made again"
    ]
    assert not run.evaluation("final").exists()
    assert (run.root / "damaged-final" / "rollouts.jsonl").exists()
    assert run.evaluation("baseline").exists()
    assert checked(run) == []


def test_what_is_gone_whole_is_said_once(run: RunDirectory):
    for file in run.final_checkpoint.iterdir():
        file.unlink()
    run.final_checkpoint.rmdir()
    assert checked(run) == [f"{run.root}: final_checkpoint is missing; it is made again"]


def test_training_makes_the_history_again(run: RunDirectory):
    run.history.write_text("step,reward\n1,0.9\n")
    assert len(checked(run)) == 1
    assert not run.final_checkpoint.exists(), "else nothing would train"


def test_what_an_engine_cannot_make_again_ends_the_run_and_stays(run: RunDirectory):
    run.rollouts("baseline").write_text("")
    with refusal("resume.damaged-files", "baseline/rollouts.jsonl has 0 bytes of"):
        checked(run, "baseline")
    assert run.rollouts("baseline").exists()


def test_what_is_forgotten_is_not_looked_at(run: RunDirectory):
    forget_files(run, ["final"])
    run.rollouts("final").write_text("")
    assert checked(run) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 99_999])
def test_a_damaged_provenance_is_one_clear_error(run: RunDirectory, content: bytes):
    run.provenance.write_bytes(content)
    for action in (
        lambda: run.ledger.read(),
        lambda: run.ledger.update({"device": "cpu"}),
        lambda: checked(run),
    ):
        with refusal("run.unreadable-ledger", "provenance.json"):
            action()
    run.provenance.unlink()
    with refusal("run.unreadable-ledger"):
        run.ledger.read()


def test_a_provenance_with_another_figure_is_not_read_as_good(run: RunDirectory):
    run.ledger.update({"seconds": {"training": float("nan")}, "seed": 42})
    whole = run.provenance.read_text()
    run.provenance.write_text(whole.replace('"seed": 42', '"seed": 43'))
    with refusal("run.unreadable-ledger", "was changed since it was written"):
        run.ledger.read()
    run.provenance.write_text(whole)
    assert run.ledger.read()["seed"] == 42


def test_seals_that_are_damaged_trust_nothing(run: RunDirectory):
    run.ledger.update({"files": {"final": {"final/rollouts.jsonl": 5}}})
    assert "the list of its files is damaged" in checked(run)[0]


def test_what_a_run_is_made_from_stays_what_it_was(run: RunDirectory):
    run.ledger.record_hash("model", "org/model@one")
    run.ledger.record_hash("model", "org/model@one")
    with refusal("run.changed-source", "org/model@one"):
        run.ledger.record_hash("model", "org/model@two")
    assert run.ledger.read()["hashes"] == {"model": "org/model@one"}


def test_a_seal_that_was_taken_out_is_not_put_in_again(run: RunDirectory):
    """A new seal would vouch for files that nobody has looked at."""
    content = read_json(run.provenance)
    write_json(run.provenance, {k: v for k, v in content.items() if k != "sha256"})
    before = run.provenance.read_bytes()
    for action in (
        lambda: run.ledger.update({"device": "cpu"}),
        lambda: record_files(run, run.reference),
        lambda: checked(run),
        lambda: open_run(run.root),
    ):
        with pytest.raises(EquipoiseError, match="no seal"):
            action()
    assert run.provenance.read_bytes() == before


def test_what_has_no_seal_is_told_apart_from_what_is_whole(run: RunDirectory):
    assert open_run(run.root).unsealed == ()
    run.comparison.write_text("{}")
    run.training.parent.mkdir()
    with refusal("run.no-seals", "comparison.json, training", "--unsealed"):
        open_run(run.root)
    assert open_run(run.root, unsealed=True).unsealed == ("comparison.json", "training")
    run.rollouts("final").write_text("")
    with refusal("run.damaged-files", "final/rollouts.jsonl has 0 bytes"):
        open_run(run.root, unsealed=True)


def test_a_run_that_trains_is_read_without_its_history(run: RunDirectory):
    for part in (run.evaluation("final").parent, run.final_checkpoint):
        shutil.rmtree(part)
    forget_files(run, ["final", "final_checkpoint", run.history.name])
    run.history.write_text("step,reward\n1,0.5\n2,0.6\n")
    assert open_run(run.root).unsealed == ()


def test_hidden_files_are_no_part_of_a_result(run: RunDirectory):
    """What a killed process left is removed later, and would then be missing."""
    (run.root / "final" / ".rollouts.jsonl.abc.unfinished").write_text("x")
    record_files(run, run.evaluation("final").parent)
    (run.root / "final" / ".rollouts.jsonl.abc.unfinished").unlink()
    assert checked(run) == []


def test_a_stage_that_a_kill_kept_from_its_seal_is_not_read_as_good(run: RunDirectory):
    forget_files(run, ["final"])
    run.generations("final").write_text("{}")
    with refusal("run.no-seals", "final"):
        open_run(run.root)
    record_files(run, run.evaluation("final").parent, without=run.generations("final"))
    assert open_run(run.root).unsealed == (), "what it was made of is no part of it"


def test_a_model_behind_a_link_is_the_run_s(run: RunDirectory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("disk") / "weights"
    run.final_checkpoint.rename(elsewhere)
    run.final_checkpoint.symlink_to(elsewhere)
    assert check_part(run.final_checkpoint) == ()
    (elsewhere / "model.safetensors").write_bytes(b"WEIGHTS")
    with refusal("run.damaged-files", "model.safetensors was changed"):
        check_part(run.final_checkpoint)


@pytest.mark.parametrize("name", ["reference.jsonl", "final_checkpoint"])
def test_what_lies_in_no_run_has_nothing_to_be_compared_with(run: RunDirectory, name: str):
    run.provenance.unlink()
    assert check_part(run.root / name) == ()


@pytest.mark.parametrize("name", ["{outside}", "..", "../other", "checkpoints", "baseline/../.."])
def test_a_part_that_is_none_of_a_run_moves_and_reads_nothing(
    run: RunDirectory, tmp_path_factory, name: str
):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept.txt").write_text("x")
    seal = {"bytes": 9, "hash": "sha256:0"}
    run.ledger.update({"files": {name.format(outside=outside): {"kept.txt": seal}}})
    before = sorted(run.root.rglob("*"))
    for action in (lambda: checked(run), lambda: open_run(run.root)):
        with refusal("run.strange-part", "provenance.json"):
            action()
    assert sorted(run.root.rglob("*")) == before
    assert (outside / "kept.txt").read_text() == "x"


@pytest.mark.parametrize("name", ["/etc/hostname", "../x", "baseline/link"])
def test_a_file_outside_is_not_looked_at(run: RunDirectory, name: str, monkeypatch):
    (run.root / "baseline" / "link").symlink_to("/dev/zero")
    seals = read_json(run.provenance)["files"]["baseline"]
    run.ledger.update({"files": {"baseline": seals | {name: {"bytes": 0, "hash": "sha256:0"}}}})
    with refusal("run.damaged-files", f"{name} is not a name of a file"):
        open_run(run.root)
