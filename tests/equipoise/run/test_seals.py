"""Finished results of a run are compared with their manifest before use."""

import shutil

import pytest

from equipoise.files.disk import read_json, write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import Provenance
from equipoise.run.seals import MANIFEST, Manifest, check_part, find_checkpoints, open_run, seal
from tests.refusals import refusal


@pytest.fixture
def run(tmp_path):
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
    seal(run)
    assert open_run(run.root) == run
    return run


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("final/rollouts.jsonl", '{"value": 0.75}\n', "was changed since it was written"),
        ("baseline/evaluation.json", None, "is missing"),
        ("reference.jsonl", None, "is missing"),
    ],
)
def test_what_is_not_as_it_was_written_is_named(run, name, content, fault):
    path = run.root / name
    path.unlink() if content is None else path.write_text(content)
    with refusal("run.damaged-files", f"{name} {fault}"):
        open_run(run.root)
    seal(run, path.parent if content else path)
    open_run(run.root)


def test_of_weights_that_are_gone_a_line_is_said(run):
    (run.final_checkpoint / "model.safetensors").write_bytes(b"WEIGHTS")
    open_run(run.root)  # which leaves them out
    with refusal("run.damaged-files", "model.safetensors was changed"):
        check_part(run.final_checkpoint)
    shutil.rmtree(run.final_checkpoint)
    with refusal("run.damaged-files", "final_checkpoint is missing"):
        check_part(run.final_checkpoint)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 99_999])
@pytest.mark.parametrize("name", [MANIFEST, "provenance.json"])
def test_a_damaged_record_is_one_clear_error(run, name, content):
    (run.root / name).write_bytes(content)
    code = "run.unreadable-manifest" if name == MANIFEST else "run.unreadable-ledger"
    with refusal(code, name):
        open_run(run.root)


def test_what_a_run_is_made_from_stays_what_it_was(run):
    run.ledger.update(Provenance(hashes={"model": "org/model@one"}))
    with refusal("run.changed-source", "org/model@one"):
        run.ledger.update(Provenance(hashes={"model": "org/model@two"}))
    assert run.ledger.read().hashes == {"model": "org/model@one"}


def test_what_the_manifest_does_not_list_is_not_read_as_good(run):
    run.comparison.write_text("{}")
    with refusal("run.unlisted-files", "comparison.json"):
        open_run(run.root)
    seal(run)
    open_run(run.root)
    (run.root / MANIFEST).unlink()
    for action in (lambda: open_run(run.root), lambda: check_part(run.final_checkpoint)):
        with refusal("run.unlisted-files", "final"):
            action()


def test_a_run_that_trains_is_read_without_its_history(run):
    for part in (run.evaluation("final").parent, run.final_checkpoint):
        shutil.rmtree(part)
    seal(run)
    run.history.write_text("row 1\nrow 2\n")
    open_run(run.root)


def test_what_is_no_result_is_not_listed(run):
    """Else it would be missing when it is removed, or changed when it is edited."""
    names = ("final/.rollouts.jsonl.abc.unfinished", "final/generations.jsonl")
    for name in (*names, "final_checkpoint/README.md"):
        (run.root / name).write_text("x")
    seal(run, run.evaluation("final").parent, run.final_checkpoint)
    assert len(Manifest.read(run.root).files) == 7


@pytest.mark.parametrize("name", ["reference.jsonl", "final_checkpoint"])
def test_what_lies_in_no_run_has_nothing_to_be_compared_with(run, name):
    run.provenance.unlink()
    (run.root / MANIFEST).unlink()
    check_part(run.root / name)


@pytest.mark.parametrize(
    "name", ["{outside}/kept.txt", "../x", "baseline/../../x", "baseline/link", "baseline/\0"]
)
def test_a_file_outside_is_not_looked_at(run, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept.txt").write_text("x")
    (run.root / "baseline" / "link").symlink_to("/dev/zero")
    name = name.format(outside=outside)
    files = read_json(run.root / MANIFEST)["files"]
    write_json(run.root / MANIFEST, {"files": files | {name: {"bytes": 0, "hash": "sha256:0"}}})
    before = sorted(run.root.rglob("*"))
    with refusal("run.damaged-files"):
        open_run(run.root)
    assert sorted(run.root.rglob("*")) == before


def test_the_newest_checkpoint_that_was_written_to_its_end_counts(tmp_path):
    for name in ("3", "10", "12", "abc", "", "²", "٤", "9" * 200):
        (tmp_path / f"checkpoint-{name}").mkdir()
        if name != "12":
            (tmp_path / f"checkpoint-{name}" / "last").touch()
    (tmp_path / "checkpoint-7").touch()
    (tmp_path / "checkpoint-8").symlink_to(tmp_path / "nowhere")
    assert [c.step for c in find_checkpoints(tmp_path, "checkpoint-", "last")] == [10, 3]
    assert find_checkpoints(tmp_path / "none", "checkpoint-") == []
