"""The published split and the guard around the official test items."""

import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.pubmedqa import PromptSettings, build_prompts, prompt_problems, sources
from data_prep.pubmedqa.prompts import prompt_record
from data_prep.pubmedqa.sources import (
    Fingerprints,
    Item,
    Section,
    fingerprint,
    is_official_test,
    normal_question,
    published_split,
    refuse_leaked,
)

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "pubmedqa"
COUNTS = {"yes": 552, "no": 338, "maybe": 110}


def invented_gold() -> dict[str, str]:
    """As many items of each label as the published file has, in some order."""
    labels = [label for label, count in COUNTS.items() for _ in range(count)]
    random.Random(1).shuffle(labels)
    return {str(number): label for number, label in enumerate(labels)}


@pytest.fixture
def invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file like the published one whose test items are taken for the official ones."""
    gold = invented_gold()
    rows = {
        name: {
            "QUESTION": f"Is {name} so?",
            "CONTEXTS": [f"It is {name}."],
            "final_decision": label,
        }
        for name, label in gold.items()
    }
    rng = random.Random(sources.SEED)
    test = sources._parts(list(gold), gold, 2, rng)[1]
    known = Fingerprints(
        frozenset(fingerprint(name) for name in test),
        frozenset(fingerprint(normal_question(f"Is {name} so?")) for name in test),
    )
    monkeypatch.setattr(sources, "official_fingerprints", lambda: known)
    path = tmp_path / "set.json"
    path.write_text(json.dumps(rows))
    return path


def prompts(path: Path, **settings: Any) -> dict[str, list[Any]]:
    records = build_prompts(PromptSettings(source="file", path=str(path), **settings))
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record.split, []).append(record)
    return found


def test_the_procedure_gives_the_official_test_set_and_the_published_folds() -> None:
    """On the published file of the 1,000 labelled items, where it lies beside the repository."""
    path = DATA / "ori_pqal.json"
    if not path.exists():
        pytest.skip(f"needs PubMedQA's ori_pqal.json and test_ground_truth.json in {DATA}")
    rows, truth = (json.loads((DATA / n).read_text()) for n in (path, "test_ground_truth.json"))
    found = prompts(path)
    assert {record.id: record.metadata["gold"] for record in found["test"]} == truth
    assert [len(found[split]) for split in ("train", "validation", "test")] == [450, 50, 500]
    folds = published_split({name: row["final_decision"] for name, row in rows.items()}).folds
    digest = hashlib.sha256(json.dumps(folds).encode()).hexdigest()
    assert digest.startswith("a997b714062aee46")
    official = {name for name, row in rows.items() if is_official_test("", row["QUESTION"])}
    assert official == truth.keys()


def test_splits_and_folds(invented: Path) -> None:
    found = prompts(invented)
    assert {split: len(records) for split, records in found.items()} == {
        "train": 450,
        "validation": 50,
        "test": 500,
    }
    by_gold = Counter(record.metadata["gold"] for record in found["test"])
    assert by_gold == {label: count // 2 for label, count in COUNTS.items()}
    other = prompts(invented, fold=1)
    assert other["test"] == found["test"]
    ids = [{record.id for record in group["validation"]} for group in (found, other)]
    assert not ids[0] & ids[1]
    assert ids[0] <= {record.id for record in other["train"]}


def test_fewer_samples_take_away_training_items_alone(invented: Path) -> None:
    whole, few, fewer = (prompts(invented, num_samples=n) for n in (None, 600, 551))
    assert few["test"] == fewer["test"] == whole["test"]
    assert few["validation"] == fewer["validation"] == whole["validation"]
    assert len(few["train"]) == 50
    [only] = fewer["train"]
    assert only in few["train"]


def test_a_number_that_would_cut_the_test_set_is_refused(invented: Path) -> None:
    with pytest.raises(ValueError, match="must be more than 550: the questions"):
        prompts(invented, num_samples=550)


def test_two_classes_train_without_maybe_and_test_with_it(invented: Path) -> None:
    found = prompts(invented, classes=2)
    assert {record.metadata["gold"] for record in found["train"]} == {"yes", "no"}
    assert sum(record.metadata["gold"] == "maybe" for record in found["test"]) == 55
    assert "maybe" not in found["test"][0].messages[0]["content"]


def test_parts_are_of_equal_size_where_labels_do_not_divide() -> None:
    gold = {str(n): label for n, label in enumerate(["yes"] * 13 + ["no"] * 14 + ["maybe"] * 3)}
    parts = sources._parts(list(gold), gold, 3, random.Random(0))
    assert sorted(name for part in parts for name in part) == sorted(gold)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_no_official_item_is_ever_trained_on(invented: Path) -> None:
    rows = json.loads(invented.read_text())
    found = prompts(invented)
    refuse_leaked([Item(r.id, rows[r.id]["QUESTION"], (), "yes") for r in found["train"]])
    leaked = [Item("new", rows[found["test"][0].id]["QUESTION"], (), "yes")]
    with pytest.raises(ValueError, match=r"1 of 1 questions are of the official .* \(new\)"):
        refuse_leaked(leaked)


def test_prompts_from_a_file_are_looked_at_too(invented: Path) -> None:
    found = prompts(invented)
    assert prompt_problems([r for records in found.values() for r in records]) == []
    test_id = found["test"][0].id
    by_id = Item(test_id, "Another?", (Section("", "a"),), "yes")
    by_question = Item("new", f"Is {test_id}, so?", (Section("", "a"),), "yes")
    records = [prompt_record(item, "train", 3, 960) for item in (by_id, by_question)]
    [problem] = prompt_problems(records)
    assert problem.startswith("2 training prompts are of the official PubMedQA test set")
