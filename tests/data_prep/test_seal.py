import json
import re
from pathlib import Path

import pytest

from data_prep.faults import DataError
from data_prep.records import read_prompts
from data_prep.seal import main

LINE = {
    "id": "a",
    "task": "dharma",
    "messages": [{"role": "user", "content": "My knee hurts."}],
    "set_id": "a",
    "split": "train",
    "metadata": {},
}


def lines(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_that_was_edited_is_read_again_once_it_is_sealed(tmp_path, capsys) -> None:
    path = lines(tmp_path / "prompts.jsonl", LINE)
    main([str(path)])
    lines(path, LINE, LINE | {"id": "b", "split": "test"})
    with pytest.raises(DataError, match="its hash is not the one"):
        read_prompts(path)
    main([str(path)])
    assert [record.id for record in read_prompts(path)] == ["a", "b"]
    assert capsys.readouterr().out.endswith(": 1 train, 1 test\n")


@pytest.mark.parametrize("row", [{}, LINE | {"split": ""}, LINE | {"id": 3}, [], None])
def test_a_line_that_is_no_record_is_named_and_nothing_is_sealed(tmp_path, row, capsys) -> None:
    path = lines(tmp_path / "prompts.jsonl", LINE, row)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "line 2: " in capsys.readouterr().err
    assert not (tmp_path / "prompts.manifest.json").exists()


def test_the_line_that_the_documentation_shows_is_one(tmp_path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "prompts.md").read_text("utf-8")
    shown = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "mine.jsonl"
    path.write_text(shown[1])
    main([str(path)])
    assert [record.id for record in read_prompts(path)] == ["knee-1"]
