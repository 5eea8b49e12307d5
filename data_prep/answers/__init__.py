"""Answers that others have published: what models, and people, said to questions in variants.

sheets.py       the one form that every source is read into
sources.py      the sources, by name
amqa.py, medperturb.py    one source each: its files, its words, what its figures are no sign of
"""
