"""Shards of several ranks: whole, lost, mixed and hostile.

Those that Automodel and torch write are in tests/contract/test_automodel_checkpoints.py.
"""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import save_file

from equipoise.checkpoints.hugging_face import sharded_tensors
from equipoise.files.errors import EquipoiseError
from tests.equipoise.checkpoints.samples import made, same, weights_of
from tests.refusals import holds

STATE = {
    "a": torch.arange(77.0).reshape(11, 7),
    "b": torch.arange(11, dtype=torch.bfloat16),
    "c": torch.tensor(3.5),
}
#: What ranks have of `a`: as torch cuts 11 rows for three, and a grid of two by two.
ROWS = [((0, 0), (4, 7)), ((4, 0), (4, 7)), ((8, 0), (3, 7))]
GRID = [((0, 0), (6, 4)), ((0, 4), (6, 3)), ((6, 0), (5, 4)), ((6, 4), (5, 3))]


def name_of(rank):
    return f"shard-{rank:05}-model-00001-of-00001.safetensors"


def write_rank(folder, rank, parts, told=None):
    """`parts` is name -> (offsets, tensor); `told` is what the header says in their place."""
    folder.mkdir(exist_ok=True)
    offsets = {name: {"saved_offsets": list(begin)} for name, (begin, _) in parts.items()}
    text = told if isinstance(told, str) else json.dumps(offsets | (told or {}))
    tensors = {name: tensor.contiguous() for name, (_, tensor) in parts.items()}
    save_file(tensors, folder / name_of(rank), metadata={"DCP_SHARDING_INFO": text})


def write(folder, boxes):
    """Of `a` every rank has a box, the first one has all of the others."""
    for rank, (begin, sizes) in enumerate(boxes, start=1):
        place = tuple(slice(o, o + n) for o, n in zip(begin, sizes, strict=True))
        parts = {"a": (begin, STATE["a"][place])}
        if rank == 1:
            parts |= {"b": ((0,), STATE["b"]), "c": ((), STATE["c"])}
        write_rank(folder, rank, parts)
    return folder


def told_by(folder):
    with pytest.raises(EquipoiseError) as caught:
        sharded_tensors(folder)
    return f"{caught.value} [{caught.value.code}]"


@pytest.mark.parametrize("boxes", [ROWS, GRID])
def test_parts_become_the_tensor(boxes, tmp_path):
    tensors = sharded_tensors(write(tmp_path / "s", boxes))
    assert tensors.keys() == STATE.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.read(), STATE[name])
        assert (tensor.shape, tensor.dtype) == (tuple(STATE[name].shape), STATE[name].dtype)


@pytest.mark.parametrize("boxes", [ROWS, GRID])
def test_a_file_is_missing(boxes, tmp_path):
    write(tmp_path / "s", boxes)
    (tmp_path / "s" / name_of(2)).unlink()
    assert holds(told_by(tmp_path / "s"), "tensors.missing-part | a")


def test_a_tensor_of_which_no_file_has_a_part(tmp_path):
    write(tmp_path / "s", ROWS)
    (tmp_path / "s" / ".hf_metadata").mkdir()
    places = tmp_path / "s" / ".hf_metadata" / "fqn_to_file_index_mapping.json"
    places.write_text(json.dumps({"a": 1, "b": 1, "c": 1, "d": 1}))
    assert holds(told_by(tmp_path / "s"), "safetensors.missing-part | d")
    places.write_text("[1]")
    assert holds(told_by(tmp_path / "s"), "model.no-json-object")


def test_as_many_numbers_as_the_tensor_and_yet_a_gap(tmp_path):
    """One part twice, another one not at all: what is not there would be whatever memory held."""
    write(tmp_path / "s", ROWS[:2])
    write_rank(tmp_path / "s", 2, {"a": ((1, 0), STATE["a"][4:8])})
    write_rank(tmp_path / "s", 3, {"a": ((8, 0), STATE["a"][8:])})
    told = told_by(tmp_path / "s")
    assert holds(told, f"tensors.repeated-part | {name_of(1)} | {name_of(2)} | a | (1, 0)")


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"a": {"saved_offsets": [-4, 0]}}, "tensors.other-extent | a | (4, 7) at (-4, 0)"),
        ({"a": {"saved_offsets": [10**15, 0]}}, "tensors.missing-part | a"),
        ({"a": {"saved_offsets": [4]}}, "safetensors.other-dimensions | a"),
        ({"a": {"saved_offsets": [4.0, 0]}}, "safetensors.unplaced-part | a"),
        ({"a": {"saved_offsets": None}}, "safetensors.unplaced-part | a"),
        ({"a": 7}, "safetensors.unplaced-part | a"),
        ("{}", "safetensors.unplaced-part | a"),
        ("[]", "safetensors.no-offsets"),
        ('{"a":', "safetensors.no-offsets"),
        ("[" * 100_000, "safetensors.no-offsets"),
    ],
)
def test_a_header_that_lies(told, message, tmp_path):
    write(tmp_path / "s", ROWS)
    write_rank(tmp_path / "s", 2, {"a": ((4, 0), STATE["a"][4:8])}, told)
    said = told_by(tmp_path / "s")
    assert holds(said, message)
    assert str(tmp_path / "s") in said


def test_another_format_of_numbers(tmp_path):
    write(tmp_path / "s", ROWS)
    write_rank(tmp_path / "s", 2, {"a": ((4, 0), STATE["a"][4:8].half())})
    assert f"{name_of(2)}: a is torch.float16" in told_by(tmp_path / "s")


def test_cut_off_anywhere_the_file_is_named(tmp_path):
    """No place at which a file ends early gives tensors, right or wrong."""
    write(tmp_path / "s", ROWS)
    data = (tmp_path / "s" / name_of(2)).read_bytes()
    drawn = random.Random(0)
    for cut in {0, 7, 8, 9, len(data) - 1, *drawn.sample(range(len(data)), 40)}:
        file = write(tmp_path / str(cut), ROWS) / name_of(2)
        file.write_bytes(data[:cut])
        assert str(file) in told_by(file.parent), cut


def test_damaged_anywhere_nothing_but_numbers_changes(tmp_path):
    """A byte of a header that is another one is refused, or leaves every tensor as it is."""
    write(tmp_path / "s", ROWS)
    data = (tmp_path / "s" / name_of(2)).read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    drawn = random.Random(0)
    for at in drawn.sample(range(header), 60):
        changed = bytearray(data)
        changed[at] ^= 1 << drawn.randrange(8)
        file = write(tmp_path / str(at), ROWS) / name_of(2)
        file.write_bytes(bytes(changed))
        try:
            tensors = sharded_tensors(file.parent)
        except EquipoiseError:
            continue
        assert (
            "a" not in tensors
            or tensors["a"].shape != (11, 7)
            or torch.equal(tensors["a"].read(), STATE["a"])
        ), at


def test_a_step_that_was_consolidated(step, model, tmp_path):
    folder, weights = step
    shutil.copytree(model, weights / "consolidated")
    assert same(made(folder, tmp_path / "out"), weights_of(model))
