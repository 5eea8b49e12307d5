"""Merging, interpolation, and who set what."""

import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from equipoise.config.compose import (
    Options,
    compose,
    read_assignment,
    read_file,
    read_value,
    run_sources,
)
from equipoise.config.validate import Origin
from equipoise.files.errors import UsageError
from tests.refusals import refusal


def read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return read_file(tmp_path / name, by_user=True)


def words(*assignments):
    return compose([read_assignment(text) for text in assignments])


def test_later_sources_win_and_sections_are_merged(tmp_path):
    composition = compose(
        [
            read(tmp_path, "a.yaml", "s: {x: 1, y: 2}\nlist: [1, 2]"),
            read(tmp_path, "b.yaml", "s: {y: 3}\nlist: [4]"),
            read_value("--flag", "s.z", 5),
        ]
    )
    assert composition.values == {"s": {"x": 1, "y": 3, "z": 5}, "list": [4]}
    labels = {key: Path(origin.label).name for key, origin in composition.origins.items()}
    assert labels == {"s.x": "a.yaml", "s.y": "b.yaml", "list": "b.yaml", "s.z": "--flag"}


def test_a_value_takes_the_place_of_a_section_and_the_reverse():
    composition = words("s.x=1", "s=2", "t=1", "t.x=2")
    assert composition.values == {"s": 2, "t": {"x": 2}}
    assert set(composition.origins) == {"s", "t.x"}


def test_an_empty_section_changes_nothing():
    composition = compose([read_value("a", "s.x", 1), read_value("b", "s", {})])
    assert composition.values == {"s": {"x": 1}}
    assert composition.origins == {"s.x": Origin("a", by_user=True)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("${a}", 12), ("${s.b}", 5), ("${mul:${a},${s.b}}", 60), ("${div:${a},3}", 4)),
        *(("${div:${a},5}", 2.4), ("${floordiv:${a},5}", 2), ("${max:${a},${s.b}}", 12)),
        *(("1e-3", 0.001), ("5.0e-6", 5e-6), ("null", None), ('[1, "${a}"]', [1, 12])),
        ('{y: "${.z}", z: 3}', {"y": 3, "z": 3}),
    ],
)
def test_interpolation_and_yaml_values(value, expected):
    values = words("a=12", "s.b=5", f"x={value}").values
    assert values["x"] == expected
    assert type(values["x"]) is type(expected)


def test_an_interpolation_sees_what_a_later_source_sets():
    assert words("x=${mul:${a},2}", "a=1", "a=4").values["x"] == 8


@pytest.mark.parametrize(
    "value", ["${nope}", "${nope:1}", "${x}", "${mul:a,2}", "${mul:true,2}", "${div:1,0}", "???"]
)
def test_what_cannot_be_resolved_is_refused_with_its_key(value):
    with refusal("config.unresolvable-value", "x = "):
        words(f"x={value}", "y=1")


def test_a_cycle_of_sections_is_refused():
    with pytest.raises(UsageError):
        words("a.b=${c}", "c.d=${a}")


@pytest.mark.parametrize(
    "text",
    [
        *("word", "=1", "a..b=1", ".a=1", "a b=1", "--a=1", "a=[", "a={", "a=${", "a='x", "a=@"),
        *("a=\udc80", "a=\0", "a=!!python/name:os.system", "a=" + "1" * 5000),
        "a=0x" + "f" * 6000,
    ],
)
def test_a_word_that_is_no_assignment_is_refused(text):
    with pytest.raises(UsageError):
        read_assignment(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(("a: 1\n  b: 2\n", "line 2: "), ("a: 1\na: 2", "duplicate key")),
        *(("5", "cannot be read"), ("- 1\n- 2", "should hold sections")),
        *(("a: ${", "no viable alternative"), ("a: {null: 1}", "NoneType")),
        *(("a: \0", "not allowed"), (b"a: \xff", "cannot be read")),
        *((None, "No such file"), ("folder", "cannot be read")),
    ],
)
def test_a_file_that_is_no_configuration(text, said, tmp_path):
    path = tmp_path if text == "folder" else tmp_path / "bad.yaml"
    if text not in (None, "folder"):
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with refusal("config.unreadable-file", path, said):
        read_file(path, by_user=True)


def test_a_resolver_that_is_there_already_stays():
    words("x=1")  # registers ours
    assert OmegaConf.has_resolver("mul")
    OmegaConf.clear_resolver("mul")
    with warnings.catch_warnings():  # OmegaConf 2.4 has renamed it; NeMo-RL's container has 2.3
        warnings.simplefilter("ignore")
        OmegaConf.register_resolver("mul", lambda a, b: "theirs")
    try:
        assert words("x=${mul:2,3}").values == {"x": "theirs"}
    finally:
        OmegaConf.clear_resolver("mul")


@pytest.mark.parametrize("value", ["${oc.env:HOME}", "${.a}${.a}", "${policy.x}", "${${b}}"])
def test_a_run_of_somebody_else_reads_the_number_of_steps_alone(value, tmp_path):
    path = tmp_path / "config.yaml"
    for text, refused in ((value, True), ("${mul:${grpo.max_num_steps},2}", False)):
        path.write_text(f"policy: {{scheduler: [{{name: '{text}'}}]}}")
        expected = refusal("config.foreign-reference", "policy.scheduler")
        with expected if refused else nullcontext():
            run_sources("fairness", Options((path,), stored=True))
