"""Questions from files and from the hub: every form, and all that can be wrong with one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.pubmedqa.sources import Item, Section, load_hub, normal_question, read_items
from equipoise.files.records import DataError
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


def read(folder, content):
    path = folder / "set.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_items(path)


@pytest.mark.parametrize("form", [OFFICIAL, HUB])
def test_the_published_forms(tmp_path, form):
    assert read(tmp_path, form) == ITEMS


def test_question_context_and_ground_truth(tmp_path):
    rows = [
        {"question": "Does it work?", "context": "Pain fell.", "ground_truth": "YES"},
        {"question": "Is it safe?", "context": ["One.", "Two."], "ground_truth": " No "},
    ]
    assert read(tmp_path, rows) == [
        Item("1", "Does it work?", (Section("", "Pain fell."),), "yes"),
        Item("2", "Is it safe?", (Section("", "One."), Section("", "Two.")), "no"),
    ]


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    first = json.dumps(OFFICIAL["101"])
    rows = {
        "2": {"QUESTION": "", "CONTEXTS": [], "final_decision": "perhaps"},
        "3": {"QUESTION": 5, "CONTEXTS": ["a", ""]},
        "4": OFFICIAL["101"] | {"LABELS": ["RESULTS"]},
        "5": "no row",
        "6": OFFICIAL["101"] | {"CONTEXTS": {"text": "a"}},
        "7": OFFICIAL["102"] | {"pubid": 102},
        "8": OFFICIAL["102"] | {"pubid": 102},
    }
    others = ", ".join(f'"{key}": {json.dumps(row)}' for key, row in rows.items())
    twice = first[:-1] + ', "final_decision": "no"}'
    with refusal("pubmedqa.invalid-items", "'final_decision' is given 2 times") as error:
        read(tmp_path, f'{{{others}, "9": {twice}}}')
    found = dict(line.strip().split(": ", 1) for line in str(error.value).splitlines()[2:])
    expected = {
        "key '2'": ("question", "context", "ground_truth"),
        "key '3'": ("question", "context.1", "ground_truth"),
        "key '4'": ("1 labels for 2 sections",),
        "key '5'": ("dictionary",),
        "key '6'": ("context",),
        "key '8'": ("'102'",),
    }
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert all(value in found[key] for value in values), found[key]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"1": {"QUESTION":\n]', "line 2"),
        ("[]", "no questions"),
        ("5", "neither an object nor a list"),
        ("[" * 100_000, "nested too deeply"),
        ('[{"q": 1, "a": 2}]', "question"),
    ],
    ids=range(5),
)
def test_a_file_that_holds_no_set(tmp_path, content, said):
    with refusal("pubmedqa.invalid-items", said):
        read(tmp_path, content)


def test_a_file_that_cannot_be_read(tmp_path):
    with refusal("source.unreadable-file", "No such file"):
        read_items(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    with refusal("source.other-encoding", "5"):
        read_items(tmp_path / "latin.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {"question": json_values, "context": json_values, "ground_truth": json_values}
)


@given(st.lists(rows, min_size=1, max_size=4))
def test_whatever_the_rows_hold_only_an_item_error_is_raised(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("rows")
    try:
        items = read(folder, found)
    except DataError:
        return
    assert all(item.question and item.sections and item.gold for item in items)


@pytest.fixture
def hub(tmp_path, monkeypatch):
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


def test_the_hub(hub):
    assert load_hub(str(hub), "pqa_labeled") == ITEMS


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*none: hub_name is a data set"):
        load_hub(str(tmp_path / "none"), "pqa_labeled")


@pytest.mark.parametrize("kind", [ConnectionError, ValueError, RuntimeError])
def test_whatever_the_hub_s_client_raises(kind, monkeypatch):
    """Without a network some versions end with that their client has been closed."""

    def fail(*_, **__):
        raise kind("no answer")

    monkeypatch.setattr("datasets.load_dataset", fail)
    monkeypatch.setattr("data_prep.pubmedqa.sources.offline_reason", lambda: None)
    with pytest.raises(ValueError, match=r"no answer\. Without a network take source: file"):
        load_hub("qiaojin/PubMedQA", "pqa_labeled")


@pytest.mark.parametrize(
    "question", ["Does it work?", "does it work", " DOES  IT—work ?", "Does_it work…"]
)
def test_questions_with_the_same_words_are_the_same(question):
    assert normal_question(question) == "does it work"
