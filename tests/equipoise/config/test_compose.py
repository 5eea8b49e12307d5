"""Merging, interpolation, and who set what; nothing raises for what a user wrote."""

import warnings
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from equipoise.config.compose import compose
from equipoise.config.problems import Origin
from equipoise.config.sources import read_assignment, read_file, read_value


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
    "value",
    [
        *("${nope}", "${nope:1}", "${x}", "${mul:a,2}", "${mul:true,2}", "${div:1,0}", "???"),
        "0x" + "f" * 6000,
    ],
)
def test_what_cannot_be_resolved_is_a_problem_of_its_key(value):
    composition = words(f"x={value}", "y=1")
    assert [problem.keys for problem in composition.problems] == [("x",)]
    assert composition.values == {"y": 1}


def test_a_cycle_of_sections_is_a_problem():
    assert words("a.b=${c}", "c.d=${a}").problems


@pytest.mark.parametrize(
    "text",
    [
        *("word", "=1", "a..b=1", ".a=1", "a b=1", "--a=1", "a=[", "a={", "a=${", "a='x", "a=@"),
        *("a=\udc80", "a=\0", "a=!!python/name:os.system", "a=" + "1" * 5000),
    ],
)
def test_a_word_that_is_no_assignment_is_a_problem(text):
    source = read_assignment(text)
    assert source.tree == {}
    assert len(source.problems) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(("a: 1\n  b: 2\n", "line 2: not valid YAML"), ("a: 1\na: 2", "duplicate key")),
        *(("5", "cannot be read"), ("- 1\n- 2", "should hold sections")),
        *(("a: ${", "no viable alternative"), ("a: {null: 1}", "NoneType")),
        *(("a: \0", "not valid YAML"), (b"a: \xff", "cannot be read")),
        *((None, "there is no such file"), ("folder", "cannot be read")),
    ],
)
def test_a_file_that_is_no_configuration(text, said, tmp_path):
    path = tmp_path if text == "folder" else tmp_path / "bad.yaml"
    if text not in (None, "folder"):
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    (problem,) = read_file(path, by_user=True).problems
    assert said in problem.message
    assert problem.origin == Origin(str(path), by_user=True)


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


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("number", "value", "said"),
    [
        (40, "${{a{0}}}${{a{0}}}", "lead to more than 500 values"),
        (40, "${{max:${{a{0}}},${{a{0}}}}}", "lead to more than 500 values"),
        (120, "${{a{0}}}", "recursion depth"),
    ],
)
def test_interpolations_without_end_are_problems(number, value, said, order, tmp_path):
    """Each key has the one before it in its value."""
    lines = ["a0: x", *(f"a{n}: '{value.format(n - 1)}'" for n in range(1, number))]
    found = compose([read(tmp_path, "mine.yaml", "\n".join(lines[::order]))])
    assert any(said in problem.message for problem in found.problems)
    assert found.values["a0"] == "x"
