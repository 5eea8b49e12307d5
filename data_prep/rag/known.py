"""Which questions the frozen generator answers rightly without any document, kept on disk.

Such a question teaches a rewriter little: with any queries the answer is mostly right.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.keyed_file import KeyedFile, content_key
from data_prep.rag.sources import Question
from environments.rag.reader import PROMPT_VERSION, Exam, Reader

_ASKED_AT_ONCE = 256


class KnownAnswers:
    """The file of what one generator answers without retrieval."""

    def __init__(self, path: Path, generator: str) -> None:
        self._file = KeyedFile(path)
        self._generator = generator

    def complete(self, questions: Sequence[Question], reader: Reader) -> None:
        """Ask for what is missing; an answer that fails is asked for again at the next start."""
        with self._file.locked():
            letters = self._file.read()
            missing = [q for q in questions if letters.get(self._key(q)) not in tuple(q.options)]
            for start in range(0, len(missing), _ASKED_AT_ONCE):
                part = missing[start : start + _ASKED_AT_ONCE]
                answers = reader.answer([Exam.of(q.text, q.options) for q in part])
                pairs = zip(part, answers, strict=True)
                self._file.append({self._key(q): a.letter for q, a in pairs if a.letter})

    def correct_ids(self, questions: Sequence[Question]) -> set[str]:
        """The ids of the questions that are answered rightly, as far as that is known."""
        letters = self._file.read()
        return {q.id for q in questions if letters.get(self._key(q)) == q.gold}

    def _key(self, question: Question) -> str:
        options = sorted(question.options.items())
        return content_key(self._generator, PROMPT_VERSION, question.text, options)
