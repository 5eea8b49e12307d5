"""Tables of others: whatever is wrong is told with its line."""

import pytest

from data_prep.text_files import DataError, read_table
from tests.refusals import refusal


def read(path, content, columns=("a", "b")):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, "table", columns)


def test_cells_by_column_in_any_order(tmp_path):
    content = '\ufeffb,extra,a\n"one, ""two""\nthree",x,1\n\n4,y,5\n'
    assert read(tmp_path / "t.csv", content) == [
        (3, {"b": 'one, "two"\nthree', "extra": "x", "a": "1"}),
        (5, {"b": "4", "extra": "y", "a": "5"}),
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "line 1: there is no column a, b"),
        ("a,c\n1,2\n", "line 1: there is no column b"),
        ("a,b,a\n1,2,3\n", "line 1: there are two columns a"),
        ("a,b\n", "there is no row"),
        ("a,b\n1,2\n1\n1,2,3\n", "line 3: 1 cells for 2 columns\n  line 4: 3 cells"),
        ('a,b\n1,"2\n', "unexpected end of data"),
        ('a,b\n1,"2"x\n', "line 2: "),
        (b"a,b\n1,\xff\n", "is not UTF-8 at byte 6"),
        ("a,b\n1," + "x" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path, content, fault):
    with pytest.raises(DataError) as error:
        read(tmp_path / "t.csv", content)
    assert fault in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with refusal("source.unreadable-file", "No such file"):
        read_table(tmp_path / "none.csv", "table", ("a",))
