"""Questions from files and from the hub: every form, and all that can be wrong with one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.pubmedqa.items import Item, Section, normal_question
from data_prep.pubmedqa.sources import Fields, load_hub, read_items
from data_prep.text_files import DataError
from tests.refusals import refusal

OFFICIAL = {
    "101": {
        "QUESTION": "Does  it work?",
        "CONTEXTS": ["Nobody knew.", "Pain fell."],
        "LABELS": ["BACKGROUND", "RESULTS"],
        "LONG_ANSWER": "It works.",
        "final_decision": "yes",
    },
    "102": {
        "QUESTION": "Is it safe?",
        "CONTEXTS": ["Two fell ill."],
        "LABELS": ["RESULTS"],
        "final_decision": "maybe",
    },
}
ITEMS = [
    Item(
        "101",
        "Does it work?",
        (Section("BACKGROUND", "Nobody knew."), Section("RESULTS", "Pain fell.")),
        "yes",
        {"conclusion": "It works."},
    ),
    Item("102", "Is it safe?", (Section("RESULTS", "Two fell ill."),), "maybe"),
]
HUB = [
    {
        "pubid": int(name),
        "question": row["QUESTION"],
        "context": {"contexts": row["CONTEXTS"], "labels": row["LABELS"], "meshes": []},
        "long_answer": row.get("LONG_ANSWER", ""),
        "final_decision": row["final_decision"],
    }
    for name, row in OFFICIAL.items()
]


def written(folder: Path, content: Any, name: str = "set.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(folder: Path, content: Any, fields: Fields | None = None, **labels: str) -> list[Item]:
    return read_items(written(folder, content), fields, labels)


def test_the_official_form(tmp_path: Path) -> None:
    assert read(tmp_path, OFFICIAL) == ITEMS


def test_the_rows_of_the_hub_in_a_file(tmp_path: Path) -> None:
    assert read(tmp_path, HUB) == ITEMS


def test_question_context_and_ground_truth(tmp_path: Path) -> None:
    rows = [
        {"question": "Does it work?", "context": "Pain fell.", "ground_truth": "YES"},
        {"question": "Is it safe?", "context": "Two fell ill.", "ground_truth": " No "},
    ]
    assert read(tmp_path, rows) == [
        Item("1", "Does it work?", (Section("", "Pain fell."),), "yes"),
        Item("2", "Is it safe?", (Section("", "Two fell ill."),), "no"),
    ]


def test_json_lines(tmp_path: Path) -> None:
    rows = [json.dumps(row) for row in HUB]
    path = written(tmp_path, "\n".join([rows[0], "", rows[1]]), "set.jsonl")
    assert read_items(path, None, {}) == ITEMS


def test_any_other_set_through_a_mapping(tmp_path: Path) -> None:
    rows = [
        {"key": "a", "q": {"text": "Does it work?"}, "passage": "Pain fell.", "answer": True},
        {"key": "b", "q": {"text": "Is it safe?"}, "passage": ["One.", "Two."], "answer": False},
    ]
    fields = Fields(id="key", question="q.text", context="passage", label="answer")
    assert read(tmp_path, rows, fields, true="yes", false="no") == [
        Item("a", "Does it work?", (Section("", "Pain fell."),), "yes"),
        Item("b", "Is it safe?", (Section("", "One."), Section("", "Two.")), "no"),
    ]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    rows = {
        "1": OFFICIAL["101"],
        "2": {"QUESTION": "", "CONTEXTS": [], "final_decision": "perhaps"},
        "3": {"QUESTION": 5, "CONTEXTS": ["a", ""], "LABELS": ["A", "B"]},
        "4": OFFICIAL["101"] | {"LABELS": ["RESULTS"]},
        "5": "no row",
        "6": OFFICIAL["101"] | {"CONTEXTS": {"text": "a"}},
    }
    with refusal("pubmedqa.invalid-items") as error:
        read(tmp_path, rows)
    assert str(error.value).splitlines()[1:] == [
        "  key '2': QUESTION is empty; CONTEXTS is empty; final_decision is 'perhaps', "
        "not one of yes, no, maybe",
        "  key '3': QUESTION is '5', not a text; CONTEXTS is empty; final_decision is missing",
        "  key '4': LABELS has 1 labels for 2 sections",
        "  key '5': QUESTION is missing; CONTEXTS is missing; final_decision is missing",
        "  key '6': CONTEXTS is an object, not a text",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"1": {"QUESTION":\n]', "line 2: not valid JSON"),
        ("a.json", "", "line 1: not valid JSON"),
        ("a.json", "[]", "holds no questions"),
        ("a.json", "{}", "holds no questions"),
        ("a.json", "5", "holds neither an object nor a list"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '[{"q": 1, "a": 2}]', "its rows have q, a: say with equipoise.data.fields"),
        ("a.json", '{"1": "yes"}', "its rows have no keys"),
        ("a.jsonl", "", "holds no questions"),
    ],
    ids=range(9),
)
def test_a_file_that_holds_no_set(tmp_path: Path, name: str, content: str, said: str) -> None:
    with refusal("pubmedqa.no-items", said):
        read_items(written(tmp_path, content, name), None, {})


def test_duplicate_ids(tmp_path: Path) -> None:
    row = json.dumps(OFFICIAL["101"])
    with refusal("pubmedqa.invalid-items", "key '101': id '101' is that of key '101' too"):
        read(tmp_path, f'{{"101": {row}, "102": {row}, "101": {row}}}')
    with refusal("pubmedqa.invalid-items", "item 3: id '101' is that of item 1 too"):
        read(tmp_path, [*HUB, HUB[0]])


def test_a_field_given_twice(tmp_path: Path) -> None:
    row = json.dumps(OFFICIAL["101"])[:-1] + ', "final_decision": "no"}'
    with refusal("pubmedqa.invalid-items", "key '1': final_decision is given twice"):
        read(tmp_path, f'{{"1": {row}}}')


def test_every_bad_line_of_json_lines_has_its_number(tmp_path: Path) -> None:
    lines = ["{", json.dumps(HUB[0]), json.dumps(HUB[1] | {"final_decision": None}), "]"]
    with refusal("pubmedqa.invalid-items") as error:
        read_items(written(tmp_path, "\n".join(lines), "set.jsonl"), None, {})
    found = [line.split(": ")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert sorted(found) == ["line 1", "line 3", "line 4"]


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = [HUB[0] | {"pubid": n, "final_decision": "?"} for n in range(50)]
    with refusal("pubmedqa.invalid-items", "and 30 more"):
        read(tmp_path, rows)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with refusal("source.unreadable-file", "No such file"):
        read_items(tmp_path / "none.json", None, {})
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    with refusal("source.other-encoding", "5"):
        read_items(tmp_path / "latin.json", None, {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {"question": json_values, "context": json_values, "ground_truth": json_values}
)


@given(st.lists(rows, min_size=1, max_size=4))
def test_whatever_the_rows_hold_only_an_item_error_is_raised(tmp_path_factory, found) -> None:
    folder = tmp_path_factory.mktemp("rows")
    try:
        items = read(folder, found)
    except DataError:
        return
    assert all(item.question and item.sections and item.gold for item in items)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out as the data set is on the hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "PubMedQA"
    (folder / "pqa_labeled").mkdir(parents=True)
    datasets.Dataset.from_list(HUB).to_parquet(folder / "pqa_labeled" / "train-0.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: pqa_labeled\n  data_files:\n"
        "  - split: train\n    path: pqa_labeled/train-*\n---\n"
    )
    return folder


def test_the_hub(hub: Path) -> None:
    assert load_hub(str(hub), "pqa_labeled") == ITEMS


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*none: hub_name is a data set"):
        load_hub(str(tmp_path / "none"), "pqa_labeled")


@pytest.mark.parametrize("kind", [ConnectionError, ValueError, RuntimeError])
def test_whatever_the_hub_s_client_raises(kind: type[Exception], monkeypatch) -> None:
    """Without a network some versions end with that their client has been closed."""

    def fail(*_: object, **__: object) -> None:
        raise kind("no answer")

    monkeypatch.setattr("datasets.load_dataset", fail)
    monkeypatch.setattr("data_prep.pubmedqa.sources.offline_reason", lambda: None)
    with pytest.raises(ValueError, match=r"no answer\. Without a network take source: file"):
        load_hub("qiaojin/PubMedQA", "pqa_labeled")


@pytest.mark.parametrize(
    "question",
    ["Does it work?", "does it work", " DOES  IT—work ?", "Does_it work…"],
)
def test_questions_with_the_same_words_are_the_same(question: str) -> None:
    assert normal_question(question) == "does it work"
