"""Texts as vectors: what an encoder is."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

Vectors = NDArray[np.float32]


class EncoderSettings(BaseModel, extra="forbid", frozen=True):
    """Hugging Face models that make vectors; MedCPT has one for each side."""

    query_model: str = "ncbi/MedCPT-Query-Encoder"  #: of the questions
    passage_model: str = "ncbi/MedCPT-Article-Encoder"  #: of what is searched


class Encoder(Protocol):
    """Turns texts into vectors; the inner product of two is their similarity."""

    @property
    def identity(self) -> str:
        """Models by content, and pooling; vectors that another encoder made cannot be compared."""

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Vectors of queries, [Q, D]."""

    def encode_passages(self, passages: Sequence[tuple[str, str]]) -> Vectors:
        """Vectors of passages given as title and text, [P, D]."""
