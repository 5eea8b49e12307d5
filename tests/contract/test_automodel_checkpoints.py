"""Checkpoints of DTensor, written by Automodel's and NeMo-RL's own code from several processes.

    uv run tests/contract/packages.py automodel    # makes the folder of Automodel, once
    NEMO_RL_PATH=<checkout> uv run --extra rehearse pytest <this file>

Without a checkout, Automodel's files alone are read. What was written is compared with the weights
that were saved.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise.checkpoints.convert import convert
from equipoise.files.errors import EquipoiseError
from equipoise.files.nemo_rl import PATH_VARIABLE
from tests.command import finished, with_our_code
from tests.contract.packages import AUTOMODEL, missing
from tests.equipoise.checkpoints.samples import same, weights_of

WORKER = Path(__file__).parent / "automodel"
PACKAGES = AUTOMODEL.folder
CHECKOUT = os.environ.get(PATH_VARIABLE, "") if find_spec("hydra") else ""

pytestmark = pytest.mark.skipif(bool(missing("automodel")), reason=missing("automodel"))
nemo_rl = pytest.mark.skipif(
    not CHECKOUT, reason=f"{PATH_VARIABLE} names no checkout of NeMo-RL, or no extra rehearse"
)
FORMS = ("sharded", "torch_save")
WRITTEN = [f"{ranks}{form}" for ranks in ("", "three_", "grid_") for form in FORMS]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("automodel")
    path = os.pathsep.join(filter(None, (str(PACKAGES), CHECKOUT)))
    command = [sys.executable, "-W", "ignore", str(WORKER / "write.py"), str(folder), CHECKOUT]
    finished(command, env=with_our_code(PYTHONPATH=path), timeout=540)
    return folder


@pytest.fixture(scope="module")
def saved(written):
    """The weights that all of the processes together had: the base's, doubled."""
    return {name: 2 * tensor for name, tensor in weights_of(written / "base").items()}


def converted(source, tmp_path, base=None):
    convert(source, tmp_path / "out", base=base and str(base))
    return weights_of(tmp_path / "out")


@pytest.mark.parametrize("name", (*WRITTEN, "consolidated"))
def test_every_form_is_read_bit_for_bit(name, written, saved, tmp_path):
    assert same(converted(written / name / "model", tmp_path, written / "base"), saved)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert same(dict(loaded.state_dict()), saved)


def test_parts_were_cut_unevenly_and_in_two_dimensions(written):
    """The premise of the other tests: no form of these is a whole tensor in one file."""
    three = [weights_of_file(written / "three_sharded/model", rank) for rank in (1, 2, 3)]
    rows = [part["model.embed_tokens.weight"].shape[0] for part in three]
    assert rows == [21, 21, 19]
    grid = weights_of_file(written / "grid_sharded/model", 1)
    assert grid["model.layers.0.mlp.down_proj.weight"].shape == (16, 23)  # of 32 by 46


def weights_of_file(folder, rank):
    from safetensors.torch import load_file

    return load_file(folder / f"shard-{rank:05}-model-00001-of-00001.safetensors")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_file_of_a_rank_is_missing(rank, written, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (written / "three_sharded/model").glob("shard-*"):
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / f"shard-{rank:05}-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(EquipoiseError) as caught:
        converted(copy, tmp_path, written / "base")
    told = str(caught.value)
    assert "model.embed_tokens.weight" in told
    assert ("the last rank" if rank == 3 else "is missing") in told
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_what_peft_makes_of_it(written, tmp_path):
    own = converted(written / "adapter/model", tmp_path)
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(written / "base", dtype=torch.float32),
        written / "adapter/model",
    )
    wanted = adapted.merge_and_unload().state_dict()
    base = weights_of(written / "base")
    for name, tensor in own.items():
        assert torch.equal(tensor, wanted[name].to(tensor.dtype)), name
        assert torch.equal(tensor, base[name]) != name.endswith("_proj.weight")


@nemo_rl
class TestAStepOfNeMoRl:
    """The folders of NeMo-RL's own CheckpointManager, and the files of its worker's code."""

    @pytest.mark.parametrize("run", ["second", "second_torch_save"])
    def test_of_all_weights(self, run, written, saved, tmp_path, capsys):
        step = written / run / "step_1"
        assert {"config.yaml", "policy", "training_info.json"} <= {p.name for p in step.iterdir()}
        assert (step / "policy" / "optimizer").is_dir()
        assert same(converted(step, tmp_path), saved)
        assert "NeMo-RL's step_1" in capsys.readouterr().out
        own = AutoTokenizer.from_pretrained(tmp_path / "out")
        assert own.get_vocab() == AutoTokenizer.from_pretrained(written / "base").get_vocab()

    def test_of_an_adapter(self, written, tmp_path):
        step = converted(written / "lora" / "step_1", tmp_path)
        (tmp_path / "alone").mkdir()
        assert same(step, converted(written / "adapter/model", tmp_path / "alone"))
        record = json.loads((tmp_path / "out" / "conversion.json").read_text())
        assert record["source"]["base"] == str(written / "base")
        assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()
