"""Whatever a run wrote, made into a model that loads with `from_pretrained` and nothing else."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from equipoise.checkpoints import hugging_face as writer
from equipoise.checkpoints.convert import convert
from equipoise.run.ledger import Ledger, Provenance
from tests.equipoise.checkpoints.samples import made, refused, same, weights_of
from tests.equipoise.sealing import seal_run
from tests.refusals import holds, refusal

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[3]


def test_dtensor_s_first_form_has_a_prefix(step, model, tmp_path):
    folder, weights = step
    weights.rmdir()
    dcp.save({"model": weights_of(model)}, checkpoint_id=weights.parent)
    assert same(made(folder, tmp_path / "out"), weights_of(model))


class TestARunDirectory:
    def test_its_newest_checkpoint_counts(self, step, model, tmp_path):
        run = tmp_path / "run"
        (run / "checkpoints").mkdir(parents=True)
        Ledger(run / "provenance.json").create(Provenance())
        dcp.save(weights_of(model), checkpoint_id=step[1])
        step[0].rename(run / "checkpoints" / "step_10")
        (run / "checkpoints" / "step_9").mkdir()
        assert same(made(run, tmp_path / "out"), weights_of(model))

    def test_what_it_ended_with_is_taken_first(self, model, tmp_path):
        run = tmp_path / "run"
        shutil.copytree(model, run / "final_checkpoint")
        seal_run(run)
        assert same(made(run, tmp_path / "out"), weights_of(model))


class TestHuggingFace:
    def test_in_files_of_a_size(self, model, tmp_path, monkeypatch):
        monkeypatch.setattr(writer, "SHARD_BYTES", 8_000)
        assert same(made(model, tmp_path / "out"), weights_of(model))
        names = {path.name for path in (tmp_path / "out").glob("*.safetensors")}
        assert len(names) > 2
        assert f"model-00001-of-{len(names):05}.safetensors" in names
        again = made(tmp_path / "out", tmp_path / "again")
        assert same(again, weights_of(model))

    def test_a_tied_weight_is_written_once(self, tied, tmp_path):
        twice = tmp_path / "twice"
        shutil.copytree(tied, twice)
        weights = weights_of(tied)
        save_file(
            weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
            twice / "model.safetensors",
        )
        assert same(made(twice, tmp_path / "out"), weights_of(tied))

    def test_says_what_was_checked(self, model, tmp_path, capsys):
        made(model, tmp_path / "out")
        record = json.loads((tmp_path / "out" / "conversion.json").read_text())
        assert record["checked"]["loads"] and record["checked"]["tensors"] == len(weights_of(model))
        assert "loads and answers" in capsys.readouterr().out


class TestWhatCannotBeConverted:
    def test_a_folder_that_is_there(self, model, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("kept")
        with refusal("convert.existing-destination"):
            convert(model, tmp_path / "out")
        assert (tmp_path / "out" / "mine").read_text() == "kept"

    def test_no_checkpoint(self, tmp_path):
        (tmp_path / "empty").mkdir()
        assert holds(refused(tmp_path / "empty", tmp_path / "out"), "convert.unknown-format")
        assert holds(
            refused(tmp_path / "nothing", tmp_path / "out"), "convert.no-folder | does not exist"
        )

    def test_no_base(self, model, tmp_path):
        dcp.save(weights_of(model), checkpoint_id=tmp_path / "weights")
        assert holds(refused(tmp_path / "weights", tmp_path / "out"), "convert.unstated-model")

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lambda w: w.pop("model.norm.weight"), "verify.missing-tensors | model.norm.weight"),
            (lambda w: w.update(extra=torch.ones(2)), "verify.extra-tensors | extra"),
            (
                lambda w: w.update({"model.norm.weight": torch.ones(9)}),
                "verify.other-shape | model.norm.weight | (9,)",
            ),
        ],
    )
    def test_other_tensors_than_the_configuration_s(self, change, told, model, tmp_path):
        weights = weights_of(model)
        change(weights)
        other = tmp_path / "other"
        other.mkdir()
        shutil.copy(model / "config.json", other)
        save_file(weights, other / "model.safetensors")
        assert holds(refused(other, tmp_path / "out"), told)

    def test_an_index_that_leads_out_of_its_folder(self, model, tmp_path):
        other = tmp_path / "other"
        shutil.copytree(model, other)
        (other / "model.safetensors").unlink()
        index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
        (other / "model.safetensors.index.json").write_text(json.dumps(index))
        assert holds(refused(other, tmp_path / "out"), "safetensors.foreign-file")


#: Converts as the recipe does, and halts after the call of a function of ours.
_HALTS = """
import importlib, os, signal, sys
from equipoise.commands.convert import ConvertOptions, run
from equipoise.files.exits import guarded
from equipoise.config.words import read_options

module, name, *words = sys.argv[1:]
function = getattr(importlib.import_module(module), name)

def halting(*arguments, **settings):
    result = function(*arguments, **settings)
    if name != "flush" or (arguments[0] / "out").exists():
        os.kill(os.getpid(), signal.SIGSTOP)
    return result

setattr(sys.modules[module], name, halting)
options = read_options(ConvertOptions, words)
sys.exit(guarded(lambda reporter: run(options, reporter)))
"""


@contextmanager
def halted(module, name, model, destination):
    """A process that converts and stands still after `module.name`; it goes on afterwards."""
    words = [sys.executable, "-c", _HALTS, module, name, str(model), str(destination)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_is_stopped_leaves_nothing_under_the_name_and_the_next_one_is_whole(
    number, model, tmp_path
):
    writing = "equipoise.checkpoints.convert", "write_model"
    with halted(*writing, model, tmp_path / "out") as process:
        process.send_signal(number)
    _, errors = process.communicate()
    assert not (tmp_path / "out").exists()
    if number != signal.SIGKILL:
        assert errors == f"stopped; nothing is kept at {tmp_path / 'out'}\n"
        assert not list(tmp_path.iterdir())
    assert same(made(model, tmp_path / "out"), weights_of(model))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_stopped_once_it_has_its_name_is_whole(model, tmp_path):
    with halted("equipoise.files.disk", "flush", model, tmp_path / "out") as process:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert errors.endswith(f"stopped; {tmp_path / 'out'} is whole\n")
    assert process.returncode == 130
    assert same(weights_of(tmp_path / "out"), weights_of(model))


def test_a_disk_that_is_full_in_the_middle(model, tmp_path):
    """A small disk of its own, which fills up although there seemed to be room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    code = (
        "import shutil, sys; from pathlib import Path\n"
        "from equipoise.checkpoints.convert import convert\n"
        "try:\n"
        "    convert(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except OSError as error:\n"
        "    print(error, list(Path(sys.argv[2]).parent.iterdir()))\n"
    )
    mounted = f'mount -t tmpfs -o size=28k tmpfs {disk} && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", mounted, "sh", sys.executable, "-c", code]
    done = subprocess.run(
        [*words, model, disk / "out"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no disk can be made here: {done.stderr}")
    assert "No space left on device" in done.stdout
    assert done.stdout.rstrip().endswith("[]"), done.stdout + done.stderr


def test_the_format_is_the_library_s(tmp_path):
    """Our file reads as the one that the library writes, down to an empty tensor."""
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.empty(0, 4)}
    lazy = {
        name: writer.LazyTensor(tuple(t.shape), t.dtype, lambda t=t: t)
        for name, t in tensors.items()
    }
    writer.write_file(tmp_path / "own.safetensors", lazy, lambda _: None)
    save_file(tensors, tmp_path / "library.safetensors")
    assert same(
        load_file(tmp_path / "own.safetensors"), load_file(tmp_path / "library.safetensors")
    )
