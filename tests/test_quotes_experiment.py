"""No quote that is cut out of the prompt by rule earns a third of an expert's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from environments.base import PromptRecord

pytestmark = pytest.mark.deep

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT.parent / "shared/data/pubmedqa/ori_pqal.json"


@pytest.fixture(scope="module")
def quotes() -> ModuleType:
    path = ROOT / "docs" / "experiments" / "pubmedqa_quotes.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def over_a_third(quotes: ModuleType, records: list[PromptRecord]) -> tuple[set[str], set[str]]:
    """The templates above a third of the expert: with one answer to all, and with the right one."""
    expert = quotes.expert_row(records).right.mean()
    rows = list(quotes.template_rows(records))
    assert len(rows) >= 14
    return (
        {row.name for row in rows if row.guessed.mean() > expert / 3},
        {row.name for row in rows if row.right.mean() > expert / 3},
    )


#: With the right answer, which no template knows, a whole sentence is now and then the one.
WHOLE = {
    *(f"the {which} finding, whole" for which in ("first", "last", "longest")),
    "the finding with most digits, whole",
    "the finding closest to the question, whole",
    "the closest finding and the last",
}


@pytest.mark.parametrize("seed", [0, 301])
def test_on_invented_abstracts(quotes: ModuleType, seed: int) -> None:
    guessed, right = over_a_third(quotes, quotes.local_records(seed))
    assert guessed == set()
    # Ten words and more of an invented finding are nearly all of it.
    assert right <= {*WHOLE, "the closest finding, its first 10 words"}


def test_on_pubmedqa(quotes: ModuleType) -> None:
    if not QUESTIONS.exists():
        pytest.skip(f"no {QUESTIONS}")
    for records in quotes.real_records(QUESTIONS).values():
        assert len(records) == 500
        guessed, right = over_a_third(quotes, records)
        assert guessed == set()
        assert right <= WHOLE


def test_the_conclusion_is_never_shown(quotes: ModuleType) -> None:
    if not QUESTIONS.exists():
        pytest.skip(f"no {QUESTIONS}")
    for records in quotes.real_records(QUESTIONS).values():
        for record in records:
            conclusion = record.metadata["conclusion"]
            assert all(conclusion not in message["content"] for message in record.messages)


def test_the_table(
    quotes: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotes, "DRAWS", 100)
    quotes.main(["--seed", "301"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2 + len(quotes.TEMPLATES) + 1
    assert lines[-1].startswith("| an expert's quote | 100.0% | 1.00 (1.00 to 1.00) |")
