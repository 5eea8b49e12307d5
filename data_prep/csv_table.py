"""CSV tables from elsewhere: every fault is reported with the number of its line."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from data_prep.faults import DataError, first_of
from data_prep.json_lines import read_source

#: The line in which a row ends, and its cells by column.
Row = tuple[int, Mapping[str, str]]


def read_table(path: Path, kind: str, columns: Sequence[str]) -> list[Row]:
    """The rows of a CSV file with a header that has these columns, in any order and among others.

    Raises `DataError` for a file that cannot be read, lacks a column or has a row of another
    length.
    """
    reader = csv.reader(io.StringIO(read_source(path, kind), newline=""), strict=True)
    faults: list[str] = []
    try:
        header = next(reader, [])
        faults += _of_header(header, columns)
        rows = [] if faults else list(_rows(reader, header, faults))
    except csv.Error as error:
        raise DataError(path, kind, [f"line {reader.line_num}: {error}"]) from None
    if not faults and not rows:
        faults.append("there is no row below the header")
    if faults:
        raise DataError(path, kind, faults)
    return rows


def _of_header(header: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    times = Counter(header)
    missing = [name for name in columns if not times[name]]
    duplicates = [name for name in columns if times[name] > 1]
    if missing:
        yield f"line 1: there is no column {first_of(missing)}"
    if duplicates:
        yield f"line 1: there are two columns {first_of(duplicates)}"


def _rows(reader: Iterator[list[str]], header: Sequence[str], faults: list[str]) -> Iterator[Row]:
    for cells in reader:
        line = reader.line_num  # type: ignore[attr-defined]  # typeshed hides csv's own type
        if not cells:
            continue
        if len(cells) == len(header):
            yield line, dict(zip(header, cells, strict=True))
        else:
            faults.append(f"line {line}: {len(cells)} cells for {len(header)} columns")
