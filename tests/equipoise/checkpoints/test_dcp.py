"""Folders of torch.distributed.checkpoint, whole, damaged and hostile."""

import enum
import os
import pickle
import random
import resource

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex

from equipoise.checkpoints.dcp import dcp_tensors, layered_tensors
from equipoise.files.errors import EquipoiseError
from tests.refusals import refusal

STATE = {
    "a.layers.x": torch.arange(24.0).reshape(2, 3, 4),
    "b": torch.arange(6, dtype=torch.bfloat16),
}


@pytest.fixture
def folder(tmp_path):
    dcp.save(STATE, checkpoint_id=tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_reads_what_torch_wrote(folder):
    tensors = dcp_tensors(folder)
    assert tensors.keys() == STATE.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.read(), STATE[name])
        assert (tensor.shape, tensor.dtype) == (tuple(STATE[name].shape), STATE[name].dtype)


def test_names_of_what_was_saved_below_a_key(tmp_path):
    """As DTensor's first form does, whatever the model's own names begin with."""
    state = {"model.layers.0.x": torch.ones(2), "transformer.h.0.x": torch.zeros(3)}
    dcp.save({"model": state}, checkpoint_id=tmp_path / "below")
    assert dcp_tensors(tmp_path / "below", within="model").keys() == state.keys()
    dcp.save(state, checkpoint_id=tmp_path / "flat")
    assert dcp_tensors(tmp_path / "flat", within="model").keys() == state.keys()


def test_a_stack_is_a_tensor_for_each_layer(folder):
    tensors = layered_tensors(folder)
    assert tensors.keys() == {"a.layers.0.x", "a.layers.1.x", "b"}
    for number in (0, 1):
        layer = tensors[f"a.layers.{number}.x"]
        assert torch.equal(layer.read(), STATE["a.layers.x"][number])
        assert layer.shape == (3, 4)


def test_a_record_that_asks_for_all_memory(folder):
    """Five bytes that put a value into place 2**32 - 1 of the list of values seen."""
    (folder / ".metadata").write_bytes(b"\x80\x04Nr\xff\xff\xff\xff.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refusal("torch-dist.foreign-metadata"):
        dcp_tensors(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10**6  # KB


class Command:
    """A command that a hostile file makes its reader run."""

    def __init__(self, touched):
        self.touched = touched

    def __reduce__(self):
        return os.system, (f"touch {self.touched}",)


def test_runs_nothing(folder, tmp_path):
    record = folder / ".metadata"
    touched = tmp_path / "ran"
    with record.open("rb") as stream:
        metadata = pickle.load(stream)
    record.write_bytes(pickle.dumps(Command(touched)))
    with refusal("torch-dist.foreign-metadata"):
        dcp_tensors(folder)
    assert not touched.exists()
    file = next(folder.glob("*.distcp"))
    place = next(p for i, p in metadata.storage_data.items() if i.fqn == "b")
    data = bytearray(file.read_bytes())
    place.offset, place.length = len(data), 0
    torch.save(Command(touched), folder / "bad")
    bad = (folder / "bad").read_bytes()
    place.length = len(bad)
    file.write_bytes(bytes(data) + bad)
    with record.open("wb") as stream:
        pickle.dump(metadata, stream)
    with refusal("torch-dist.unreadable-part", "b"):
        dcp_tensors(folder)["b"].read()
    assert not touched.exists()


def changed(folder, change):
    """Change the record of a checkpoint by `change`, and return the checkpoint's folder."""
    record = folder / ".metadata"
    with record.open("rb") as stream:
        metadata = pickle.load(stream)
    change(metadata)
    record.write_bytes(pickle.dumps(metadata))
    return folder


def in_two_parts(folder):
    """`whole` is made of two tensors that torch wrote: rows 0 to 2, and row 3."""
    whole = torch.arange(12.0).reshape(4, 3)
    dcp.save({"top": whole[:3].clone(), "whole": whole[3:].clone()}, checkpoint_id=folder)

    def join(metadata):
        kept, places = metadata.state_dict_metadata, metadata.storage_data
        below = kept["whole"]
        below.chunks[0].offsets = torch.Size((3, 0))
        below.chunks.insert(0, kept.pop("top").chunks[0])
        below.size = torch.Size((4, 3))
        first, second = (place for _, place in sorted(places.items(), key=lambda i: i[0].fqn))
        places.clear()
        places[MetadataIndex("whole", (0, 0), 0)] = first
        places[MetadataIndex("whole", (3, 0), 1)] = second

    return changed(folder, join), whole


def part(metadata, number):
    return metadata.state_dict_metadata["whole"].chunks[number]


def place(metadata, number):
    return list(metadata.storage_data.values())[number]


def setting(select, number, **values):
    def change(metadata):
        for name, value in values.items():
            setattr(select(metadata, number), name, value)

    return change


def whole(metadata, _):
    return metadata.state_dict_metadata["whole"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: whole(m, 0).chunks.pop(), "tensors.missing-part | whole"),
        (lambda m: whole(m, 0).chunks.append(part(m, 0)), "tensors.repeated-part | whole"),
        (setting(part, 1, offsets=torch.Size((2, 0))), "torch-dist.unplaced-part | whole | (2, 0)"),
        (setting(part, 0, sizes=torch.Size((4, 3))), "tensors.repeated-part | whole"),
        (setting(part, 0, sizes=torch.Size((3, 10**9))), "torch-dist.short-part | (3, 1000000000)"),
        (setting(part, 0, sizes=torch.Size((2, 3))), "tensors.missing-part | whole"),
        (setting(part, 0, sizes=torch.Size((1, 9))), "tensors.other-extent | (4, 3)"),
        (setting(part, 0, sizes=torch.Size((3,))), "tensors.other-extent | (4, 3)"),
        (setting(part, 1, offsets=(-1, 0)), "torch-dist.unlisted-parts | whole"),
        (setting(part, 1, sizes=None), "torch-dist.unlisted-parts | whole"),
        (setting(whole, 0, size=torch.Size((10**9, 10**9))), "tensors.missing-part | whole"),
        (setting(whole, 0, size=(4.0, 3.0)), "torch-dist.undescribed-tensor | whole"),
        (setting(whole, 0, chunks=None), "torch-dist.undescribed-tensor | whole"),
        (
            lambda m: setattr(whole(m, 0).properties, "dtype", 7),
            "torch-dist.undescribed-tensor | whole",
        ),
        (setting(place, 1, relative_path="../__0_0.distcp"), "torch-dist.foreign-file"),
        (setting(place, 1, relative_path=".."), "torch-dist.missing-file"),
        (setting(place, 1, relative_path=7), "torch-dist.unplaced-tensor | whole"),
        (setting(place, 1, offset=-1), "torch-dist.unplaced-tensor | whole"),
        (setting(place, 1, length="all"), "torch-dist.unplaced-tensor | whole"),
        (setting(place, 1, length=10**15), "torch-dist.cut-off-file | whole"),
        (
            setting(place, 1, offset=0),
            "torch-dist.shared-bytes | whole and whole into the same bytes",
        ),
        (lambda m: m.storage_data.clear(), "torch-dist.unplaced-part | whole"),
        (lambda m: m.storage_data.update(nonsense=7), ""),
        (lambda m: setattr(m, "storage_data", None), "torch-dist.foreign-metadata"),
        (lambda m: setattr(m, "state_dict_metadata", [1]), "torch-dist.foreign-metadata"),
    ],
)
def test_a_record_that_lies(change, message, tmp_path):
    folder, tensor = in_two_parts(tmp_path / "two")
    changed(folder, change)
    if not message:  # what is not asked for does no harm
        assert torch.equal(dcp_tensors(folder)["whole"].read(), tensor)
        return
    with refusal(message, folder):
        dcp_tensors(folder)


def test_another_format_of_numbers_than_the_record_s(tmp_path):
    """It would be cast without a word where a tensor is in several parts."""
    folder, _ = in_two_parts(tmp_path / "two")
    other = torch.int32
    changed(folder, lambda m: setattr(whole(m, 0).properties, "dtype", other))
    with refusal("torch-dist.absent-tensor", "distcp", "whole"):
        dcp_tensors(folder)["whole"].read()


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_cut_off_anywhere_the_file_is_named(name, tmp_path):
    folder, _ = in_two_parts(tmp_path / "two")
    data = (folder / name).read_bytes()
    drawn = random.Random(0)
    for cut in {0, 1, len(data) - 1, *drawn.sample(range(len(data)), 60)}:
        (folder / name).write_bytes(data[:cut])
        with pytest.raises(EquipoiseError, match=rf"{name} is"):
            dcp_tensors(folder)


def test_a_record_that_is_damaged_anywhere_gives_no_other_tensor(tmp_path):
    """A bit of `.metadata` that is another one is refused, or changes no number of a tensor."""
    folder, tensor = in_two_parts(tmp_path / "two")
    data = (folder / ".metadata").read_bytes()
    drawn = random.Random(0)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << drawn.randrange(8)
        (folder / ".metadata").write_bytes(bytes(changed))
        try:
            tensors = dcp_tensors(folder)
            own = tensors["whole"].read() if "whole" in tensors else tensor
        except EquipoiseError:
            continue
        assert torch.equal(own, tensor), at


class Unrelated(enum.Enum):
    MEMBER = "member"


@pytest.mark.parametrize("by_name", [True, False])
def test_a_record_of_each_python_is_read(by_name, folder):
    """Python 3.11.2 pickles members of enums as `getattr(enum, name)`, later ones `enum(value)`."""

    class Pickler(pickle._Pickler):
        def reducer_override(self, value):
            if not isinstance(value, enum.Enum):
                return NotImplemented
            return (
                (getattr, (type(value), value.name)) if by_name else (type(value), (value.value,))
            )

    record = folder / ".metadata"
    tensors = {name: tensor.read() for name, tensor in dcp_tensors(folder).items()}
    metadata = pickle.loads(record.read_bytes())
    metadata.planner_data = Unrelated.MEMBER
    with record.open("wb") as stream:
        Pickler(stream, protocol=4).dump(metadata)
    assert (b"getattr" in record.read_bytes()) == by_name
    again = dcp_tensors(folder)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name].read(), tensors[name]) for name in tensors)


@pytest.mark.parametrize("owner", [torch.Size, torch.float32, "text"])
def test_a_record_reads_no_attribute_of_anything_but_an_enum(owner, folder):
    class Attribute:
        def __reduce__(self):
            return getattr, (owner, "__class__")

    record = folder / ".metadata"
    metadata = pickle.loads(record.read_bytes())
    metadata.planner_data = Attribute()
    record.write_bytes(pickle.dumps(metadata))
    with refusal("torch-dist.damaged-metadata", "'__class__' of something that is not an enum"):
        dcp_tensors(folder)
