"""Answers that others have published: what models, and people, said to questions in variants.

sheets.py       the one form that every source is read into
amqa.py, medperturb.py    one source each: its files, its words, what its figures are no sign of
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.answers import amqa, medperturb
from data_prep.answers.sheets import About, Published

#: Reads the files of each answerer by its name. Raises `DataError`.
Read = Callable[[Mapping[str, Sequence[Path]]], Published]


@dataclass(frozen=True, slots=True)
class Source:
    """A source: its description and its reader.

    `own_name` is the part of a file's name that does not name the answerer.
    """

    about: About
    read: Read
    own_name: str = ""


SOURCES: Mapping[str, Source] = {
    "amqa": Source(amqa.ABOUT, amqa.read, "AMQA_Benchmark_Answer_"),
    "medperturb": Source(medperturb.ABOUT, medperturb.read),
}
