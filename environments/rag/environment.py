"""The environment of the rewriter: what a frozen generator answers from what its queries find."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from environments.base import UNPARSEABLE, PromptRecord, Rollout, Score, outcomes_of
from environments.chat import ChatModel, EndpointModel, ModelSettings
from environments.contract import Encoder, EncoderSettings, Environment, EnvironmentSettings
from environments.measurement import Measurement, Modes
from environments.rag.metrics import PRESENTATION, Observation, measure
from environments.rag.queries import (
    CONSTANT_REPLIES,
    NUMBER_OF_QUERIES,
    Defect,
    Queries,
    copied_replies,
    name_an_option,
    names_any,
    parse_queries,
    planned_reply,
    query_defects,
    without_first_sentence,
)
from environments.rag.reader import Answer, ChatGenerator, Exam, ExtractiveReader, Reader
from environments.rag.retrieval import (
    Corpus,
    Documents,
    DocumentSettings,
    RetrieverName,
    Search,
    open_retriever,
)
from environments.replies import Unparseable
from environments.yaml_file import AbsolutePath

OPTIONS_NOTE = (
    "The rewriter saw the answer options, so these figures do not follow Question-Only Retrieval "
    "and cannot be compared with results that do."
)

#: Without documents; with the question, more documents of it, a part of it as the only query.
_OTHER_MODES = 4
#: So many times the documents are more documents: 60 in place of 15.
_MORE = 4


# --- the reward: pure functions of what became of the queries -------------------------------------


RewardName = Literal["accuracy", "gain"]
Payment = Literal["paid", "unpaid"]

#: Format reward of a reply with other text beside its three queries.
FORMAT_OF_SURPLUS = 0.5

#: The least that each reward can be.
_LOWEST = {"accuracy": 0.0, "gain": -1.0}


class RewardSettings(BaseModel, extra="forbid", frozen=True):
    """Reward terms and weights; a right answer counts 1."""

    outcome: RewardName = "gain"  #: a right answer, or less that of the plain question
    format_weight: float = Field(default=0.2, ge=0.01, le=10, description="exactly three queries")
    defect_penalty: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="for three empty, repeated or copied queries, in parts",
    )
    recall_weight: float = Field(
        default=0.0, ge=0, le=10, description="share of the relevant documents"
    )
    answer_in_query: Payment = Field(
        default="paid",
        description="unpaid: a reply whose queries name an option counts as one that found nothing",
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reply with three queries.

    `with_question` is whether the same generator was right with the question as the only query,
    None if it was not asked. `recall` is None where no document is known to be relevant. `paid` is
    whether the answer and what was found count.
    """

    correct: bool
    with_question: bool | None
    recall: float | None
    defects: Sequence[Defect | None]
    surplus: bool
    paid: bool = True


def reward_components(outcome: Outcome, name: RewardName) -> dict[str, float]:
    """The terms of a reward before their weights.

    `accuracy` is 1 or 0. `gain` is accuracy minus that of the plain question: -1, 0 or 1. GRPO
    subtracts the mean of a prompt's generations, which share their question, so both have the same
    advantages; the gain is what a reader wants to see and what a critic would need.
    """
    accuracy = float(outcome.correct and outcome.paid)
    terms = {
        "format": FORMAT_OF_SURPLUS if outcome.surplus else 1.0,
        name: accuracy if name == "accuracy" else accuracy - float(bool(outcome.with_question)),
        "defects": sum(defect is not None for defect in outcome.defects) / NUMBER_OF_QUERIES,
    }
    return terms if outcome.recall is None else terms | {"recall": outcome.recall * outcome.paid}


def reward_value(terms: dict[str, float], settings: RewardSettings) -> float:
    """The weighted sum of `reward_components`."""
    return (
        terms[settings.outcome]
        + settings.format_weight * terms["format"]
        + settings.recall_weight * terms.get("recall", 0.0)
        - settings.defect_penalty * terms["defects"]
    )


def broken_value(settings: RewardSettings) -> float:
    """The reward of a reply that is not three queries.

    It is that of the worst one that is, without its format reward: strictly below every other.
    """
    return _LOWEST[settings.outcome] - settings.defect_penalty


# --- the environment ------------------------------------------------------------------------------


class RagSettings(EnvironmentSettings, extra="forbid", frozen=True):
    """The keys of `env.rag` in the configuration."""

    index: AbsolutePath = Field(default=Path(), description="the folder; what is missing is built")
    retriever: RetrieverName = "bm25"  #: words, vectors, or the ranks of both
    encoder: EncoderSettings = EncoderSettings()
    documents: DocumentSettings = DocumentSettings()
    generator: ModelSettings = Field(
        default=ModelSettings(), description="who answers; an extractive reader if none is named"
    )
    reward: RewardSettings = RewardSettings()

    @property
    def stand_in(self) -> str | None:
        """The reason why the generator is a stand-in; None where a model is named."""
        if not self.generator.is_stand_in:
            return None
        return (
            "the extractive reader knows invented stones alone: name a generator, see docs/rag.md"
        )

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """Count one for each reply, and one for each prompt in each of the other modes."""
        return 0 if self.generator.is_stand_in else generations + _OTHER_MODES * len(records)


@dataclass(frozen=True, slots=True)
class _Question:
    """A question from a prompt's metadata."""

    text: str
    options: Mapping[str, str]
    gold: str
    relevant: frozenset[str]
    topic_words: tuple[str, ...]  # words of which a query to the point has one; () where unknown
    stratum: str

    @classmethod
    def of(cls, rollout: Rollout) -> "_Question":
        metadata = rollout.metadata
        return cls(
            metadata["question"],
            metadata["options"],
            metadata["gold"],
            frozenset(metadata.get("relevant", ())),
            tuple(metadata.get("asked", ())),
            str(metadata.get("stratum", "")),
        )

    def exam(self, documents: Documents) -> Exam:
        return Exam.of(self.text, self.options, documents.texts)

    def recall(self, documents: Documents) -> float | None:
        """The share of the relevant documents that was found; None where none are known."""
        if not self.relevant:
            return None
        return len(self.relevant.intersection(documents.ids)) / len(self.relevant)


class RagEnvironment(Environment):
    """Searches for all queries of a step in one batch and lets the generator answer."""

    name = "rag"
    Settings = RagSettings
    presentation = PRESENTATION

    settings: RagSettings

    def __init__(self, settings: RagSettings) -> None:
        self.settings = settings
        self._encoder: Encoder | None = None
        self._opened: Search | None = None
        self._reader: Reader | None = None  # where it is handed in later
        if settings.generator.endpoint:
            self._reader = ChatGenerator(EndpointModel(settings.generator.endpoint))
        elif not settings.generator.model_name:
            self._reader = ExtractiveReader()
        self._with_question: dict[bytes, Answer] = {}  # by a hash: the documents are long
        self._seconds: dict[str, list[float]] = {"search": [0, 0], "answer": [0, 0]}

    def wanted_chat_model(self) -> str | None:
        return self.settings.generator.model_name

    def set_chat_model(self, model: ChatModel) -> None:
        self._reader = ChatGenerator(model)

    def wanted_encoder(self) -> EncoderSettings | None:
        return None if self.settings.retriever == "bm25" else self.settings.encoder

    def set_encoder(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def reward_range(self) -> tuple[float, float]:
        """From a malformed reply to a right answer with every relevant document found."""
        reward = self.settings.reward
        return broken_value(reward), 1.0 + reward.format_weight + reward.recall_weight

    def sources(self) -> dict[str, str]:
        generator = self._reader.identity if self._reader else ""
        return {"index": self.open().identity, "generator": generator}

    def check(self) -> str | None:
        return self._reader.check() if isinstance(self._reader, ChatGenerator) else None

    def open(self) -> Search:
        """The index, opened once. Raises `UnusableIndexError`."""
        if self._opened is None:
            folder = self.settings.index
            retriever = open_retriever(self.settings.retriever, folder, self._encoder)
            self._opened = Search(retriever, Corpus(folder), self.settings.documents)
        return self._opened

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """See `Environment`. Raises `UnusableIndexError` without an index to search."""
        parsed = [parse_queries(rollout.completion) for rollout in rollouts]
        readable = {n: q for n, q in enumerate(parsed) if isinstance(q, Queries)}
        questions = [_Question.of(rollouts[n]) for n in readable]
        documents = self._find([queries.texts for queries in readable.values()])
        answers = self._answer([q.exam(d) for q, d in zip(questions, documents, strict=True)])
        compared = self._compared_with(questions)
        results = zip(questions, documents, answers, compared, strict=True)
        reward = self.settings.reward
        return [
            _broken(queries, rollout, reward)
            if isinstance(queries, Unparseable)
            else _score(queries, *next(results), reward)
            for queries, rollout in zip(parsed, rollouts, strict=True)
        ]

    def _compared_with(self, questions: Sequence[_Question]) -> Sequence[Answer | None]:
        """The answers with the question as the only query, where the reward compares with them."""
        if self.settings.reward.outcome != "gain":
            return [None] * len(questions)
        documents = self._find([(question.text,) for question in questions])
        exams = [q.exam(d) for q, d in zip(questions, documents, strict=True)]
        keys = [hashlib.sha256(repr(exam).encode()).digest() for exam in exams]
        missing = {k: e for k, e in zip(keys, exams, strict=True) if k not in self._with_question}
        answers = dict(zip(missing, self._answer([*missing.values()]), strict=True))
        self._with_question |= {k: a for k, a in answers.items() if a.letter is not None}
        return [self._with_question.get(key) or answers[key] for key in keys]

    def _find(self, queries: Sequence[Sequence[str]]) -> list[Documents]:
        search = self.open()
        with self._timed("search", len(queries)):
            return search.find(queries)

    def _answer(self, exams: Sequence[Exam]) -> list[Answer]:
        if self._reader is None:
            raise ValueError("the generator runs in this process and was not handed in")
        with self._timed("answer", len(exams)):
            return self._reader.answer(exams)

    @contextmanager
    def _timed(self, stage: str, number: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[stage][0] += time.perf_counter() - started
        self._seconds[stage][1] += number

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The metrics of `metrics.py`. What failed before anything was found shows nothing."""
        observed = [outcome or Observation() for outcome in outcomes_of(scores, Observation)]
        strata = [str(rollout.metadata.get("stratum", "")) for rollout in rollouts]
        return measure([rollout.prompt_id for rollout in rollouts], strata, observed)

    def constant_replies(self) -> Sequence[str]:
        return CONSTANT_REPLIES

    def trivial_replies(
        self,
        rollouts: Sequence[Rollout],
        seed: int,  # noqa: ARG002  nothing is drawn
    ) -> Mapping[str, Sequence[str]]:
        return copied_replies(rollouts)

    def example_reply(self, record: PromptRecord) -> str | None:
        return planned_reply(record.metadata)

    def modes(self, rollouts: Sequence[Rollout]) -> Modes:
        """Measure the questions without retrieval, and with the question as the only query."""
        questions = {rollout.prompt_id: _Question.of(rollout) for rollout in rollouts}
        texts = [(question.text,) for question in questions.values()]
        parts = [(without_first_sentence(text),) for (text,) in texts]
        with_options = any(rollout.metadata.get("options_shown") for rollout in rollouts)
        return Modes(
            measured={
                "no_retrieval": self._measured(questions, [Documents()] * len(questions)),
                "question": self._measured(questions, self._find(texts)),
                "question_more_documents": self._measured(
                    questions, self.open().deeper(_MORE).find(texts)
                ),
                "question_without_its_first_sentence": self._measured(questions, self._find(parts)),
            },
            stages={"baseline": "planning", "final": "planning_grpo"},
            seconds={stage: total / n for stage, (total, n) in self._seconds.items() if n},
            sources=self.sources(),
            notes=(OPTIONS_NOTE,) if with_options else (),
        )

    def _measured(
        self, question_by_id: Mapping[str, _Question], documents: Sequence[Documents]
    ) -> Measurement:
        """The metrics of questions by their ids, answered from these documents."""
        questions = list(question_by_id.values())
        answers = self._answer([q.exam(d) for q, d in zip(questions, documents, strict=True)])
        return measure(
            list(question_by_id),
            [question.stratum for question in questions],
            [
                Observation(
                    accuracy=None if a.letter is None else float(a.letter == q.gold),
                    retrieval_recall=q.recall(d) if d.ids else None,
                    documents_read=float(len(d.ids)),
                )
                for q, a, d in zip(questions, answers, documents, strict=True)
            ],
        )


def _broken(parsed: Unparseable, rollout: Rollout, settings: RewardSettings) -> Score:
    """A reply without three queries finds nothing, and its answer is wrong."""
    recall_term = {"recall": 0.0} if rollout.metadata.get("relevant") else {}
    observation = Observation(
        accuracy=0.0,
        answer_in_query=0.0,
        retrieval_recall=recall_term.get("recall"),
        on_question_rate=0.0 if rollout.metadata.get("asked") else None,
        format_rate=0.0,
    )
    terms, evidence = {"format": 0.0, **recall_term}, {UNPARSEABLE: parsed.reason}
    return Score(broken_value(settings), terms, None, evidence, observation.model_dump())


def _score(
    queries: Queries,
    question: _Question,
    documents: Documents,
    answer: Answer,
    compared: Answer | None,
    settings: RewardSettings,
) -> Score:
    """Score a reply with three queries; `compared` is None where the reward does not ask for it."""
    texts, topic_words = queries.texts, question.topic_words
    defects = query_defects(texts, question.text)
    recall = question.recall(documents)
    correct = answer.letter == question.gold
    names_answer = name_an_option(texts, question.text, list(question.options.values()))
    evidence: dict[str, Any] = {
        "queries": list(texts),
        "defects": list(defects),
        "surplus": queries.surplus,
        "answer_in_query": names_answer,
        "documents": list(documents.ids),
        "answer": answer.letter,
    }
    if answer.letter is not None:
        evidence["correct"] = correct
    observation = Observation(
        accuracy=None if answer.letter is None else float(correct),
        answer_in_query=float(names_answer),
        retrieval_recall=recall,
        on_question_rate=float(names_any(texts, topic_words)) if topic_words else None,
        format_rate=float(not queries.surplus),
        defect_rate=sum(defect is not None for defect in defects) / len(defects),
        documents_read=float(len(documents.ids)),
    ).model_dump()
    if error := answer.error or (compared.error if compared else None):
        recall_term = {} if recall is None else {"recall": recall}
        return Score(None, recall_term, error, evidence, observation)
    outcome = Outcome(
        correct=correct,
        with_question=None if compared is None else compared.letter == question.gold,
        recall=recall,
        defects=defects,
        surplus=queries.surplus,
        paid=settings.answer_in_query == "paid" or not names_answer,
    )
    terms = reward_components(outcome, settings.outcome)
    return Score(reward_value(terms, settings), terms, None, evidence, observation)
