"""Score quotes that are cut out of the prompt by rule: the attacks of docs/pubmedqa.md.

    uv run docs/experiments/pubmedqa_quotes.py --questions ori_pqal.json
    uv run docs/experiments/pubmedqa_quotes.py --runs results/pubmedqa/first results/pubmedqa/second

A template reads no verb: it takes words by their place, or a sentence by the words that it shares
with the question. Each is scored with the answer yes, which is right most often, and with the right
one, which no template knows. Beside them stand a reader who knows the finding that decides and the
replies of runs. Of PubMedQA that reader quotes the sentence which is nearest to the conclusion by
another measure than the reward's, the cosine of letter 3- to 5-grams weighed by tf-idf.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from data_prep.pubmedqa import PromptSettings, build_prompts
from environments.base import TEST_SPLIT, PromptRecord, Rollout
from environments.pubmedqa import PubMedQAEnvironment, PubMedQASettings
from environments.pubmedqa.environment import GROUNDED, gold_reply, quoted
from environments.pubmedqa.reply import (
    Abstract,
    closeness,
    deciding_findings,
    reply_text,
    sentences_of_findings,
)
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts

ENVIRONMENT = PubMedQAEnvironment(PubMedQASettings())
COMMONEST = "yes"
DEVELOPMENT = "PubMedQA, development half"
DRAWS, CONFIDENCE = 10_000, 0.95
_WINDOW = 4

#: The sentences of the findings and the question -> the texts that are quoted.
Template = Callable[[Sequence[str], str], Sequence[str]]
Values = NDArray[np.float64]


def _first(words: float) -> Template:
    """So many first words of every sentence; below 1: such a part of it."""
    return lambda sentences, _: [_cut(s, 0, words) for s in sentences]


def _last(words: int) -> Template:
    return lambda sentences, _: [" ".join(s.split()[-words:]) for s in sentences]


def _whole(index: int) -> Template:
    return lambda sentences, _: [sentences[index]]


def _cut(sentence: str, start: float, end: float) -> str:
    words = sentence.split()
    first, last = (round(at * len(words)) if at < 1 else int(at) for at in (start, end))
    return " ".join(words[first:last])


def _closest(sentences: Sequence[str], question: str) -> str:
    return max(sentences, key=lambda sentence: closeness(sentence, question))


def _window(sentences: Sequence[str], question: str) -> Sequence[str]:
    """The first words in a row that share a stem with the question."""
    for sentence in sentences:
        words = sentence.split()
        for start in range(max(1, len(words) - _WINDOW + 1)):
            if closeness(window := " ".join(words[start : start + _WINDOW]), question):
                return [window]
    return [sentences[0]]


def _numbers(sentence: str) -> int:
    return sum(character.isdigit() for character in sentence)


#: Those that the earlier reward paid in full, then others.
TEMPLATES: Mapping[str, Template] = {
    "first 4 words of the first two findings": lambda s, _: [_cut(x, 0, 4) for x in s[:2]],
    "first 6 words of every finding": _first(6),
    "first 10 words of every finding": _first(10),
    "4 words in a row that share a stem with the question": _window,
    "first 15 words of every finding": _first(15),
    "first half of every finding": _first(0.5),
    "first three quarters of every finding": _first(0.75),
    "last 10 words of every finding": _last(10),
    "every finding, each in quotes": lambda sentences, _: sentences,
    "the closest finding, its first 10 words": lambda s, q: [_cut(_closest(s, q), 0, 10)],
    "the closest finding, its first and last third": lambda s, q: [
        _cut(_closest(s, q), 0, 1 / 3),
        _cut(_closest(s, q), 2 / 3, 999),
    ],
    "the closest finding and the last": lambda s, q: list(dict.fromkeys((_closest(s, q), s[-1]))),
    "the first finding, whole": _whole(0),
    "the last finding, whole": _whole(-1),
    "the longest finding, whole": lambda sentences, _: [max(sentences, key=len)],
    "the finding with most digits, whole": lambda sentences, _: [max(sentences, key=_numbers)],
    "the finding closest to the question, whole": lambda s, q: [_closest(s, q)],
}
#: The findings that decide of 40 questions of the development half with two or more, drawn by
#: chance, as they were read by eye without the conclusion: pmid, then indexes of sentences.
READ_BY_EYE = """
    20530150:3 25156467:3,7 15222284:4 17276801:4,5 24237112:0 9381529:0
    26044262:0,1 16151770:0 22564465:0,1 16319544:2,3 19401574:1,3 14612308:0
    22521460:1,2 18575014:1 17601244:1,2 18269157:2 14978612:1 20353735:4
    27896825:5 26449554:1,2 22867778:2 23999452:6 19643525:0 23389866:3,4
    19822586:2 11034241:0,2 24793469:2 19299238:0,2 24434052:4,5 21558951:1
    12095973:2 22186742:5 25255719:2 25228241:4,8 25501465:0 21402341:4,5
    9602458:0 19504993:0 22302658:0,1 25636371:0
"""
#: What a template writes after its quotes; it changes nothing.
SUFFIX = " so the opposite is true"


@dataclass(frozen=True, slots=True)
class Row:
    """The pay of replies for their quotes: of each question, with either answer."""

    name: str
    guessed: Values
    right: Values


def template_rows(records: Sequence[PromptRecord]) -> Iterator[Row]:
    """Every template on these prompts."""
    for name, template in TEMPLATES.items():
        reasons = [quoted(template(*_findings(record))) + SUFFIX for record in records]
        yield Row(name, paid(records, reasons, COMMONEST), paid(records, reasons, None))


def expert_row(records: Sequence[PromptRecord]) -> Row:
    """A reader who answers right from the finding that decides."""
    if all("finding" in record.metadata for record in records):
        replies = [str(gold_reply(record.metadata)) for record in records]
    else:
        reasons = [quoted([finding]) for finding in _nearest(records)]
        replies = _replies(records, reasons, None)
    values = grounding(_rollouts(records, replies))
    return Row("an expert's quote", values, values)


def _nearest(records: Sequence[PromptRecord]) -> Iterator[str]:
    """The sentence of the findings nearest to the conclusion, by letter n-grams."""
    texts = [_findings(record)[0] for record in records]
    conclusions = [str(record.metadata["conclusion"]) for record in records]
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    vectors.fit([*conclusions, *(sentence for sentences in texts for sentence in sentences)])
    for sentences, conclusion in zip(texts, conclusions, strict=True):
        cosines = vectors.transform(sentences) @ vectors.transform([conclusion]).T
        yield sentences[int(cosines.toarray().argmax())]


def agreement(records: Sequence[PromptRecord]) -> str:
    """How often the finding that is paid for is one that was read as deciding."""
    by_id = {record.id: record for record in records}
    rows = [line.split(":") for line in READ_BY_EYE.split()]
    paid, asked, chance = zip(
        *(_agreements(by_id[name], set(map(int, read.split(",")))) for name, read in rows),
        strict=True,
    )
    return (
        f"Of {len(rows)} findings read by eye the reward has {sum(paid):.1f}, the words of the "
        f"question {sum(asked):.1f}, chance {sum(chance):.1f}.\n"
    )


def _agreements(record: PromptRecord, read: set[int]) -> tuple[float, float, float]:
    """By the conclusion, by the question alone, and by chance."""
    sentences, _ = _findings(record)
    known = Abstract.of(record.metadata)
    by_conclusion, by_question = (
        [sentences.index(finding) in read for finding in deciding_findings(abstract)]
        for abstract in (known, replace(known, conclusion=""))
    )
    return fmean(by_conclusion), fmean(by_question), len(read) / len(sentences)


def run_rows(folders: Sequence[Path]) -> Iterator[Row]:
    """The replies of runs before and after training, scored as they are."""
    for stage, name in (("baseline", "untrained"), ("final", "trained")):
        rollouts = [r for f in folders for r in read_rollouts(RunDirectory(f).rollouts(stage))]
        values = grounding(rollouts)
        yield Row(f"the {name} model", values, values)


def paid(records: Sequence[PromptRecord], reasons: Sequence[str], answer: str | None) -> Values:
    """The grounding of these reasons with one answer to all, for None the right one."""
    return grounding(_rollouts(records, _replies(records, reasons, answer)))


def grounding(rollouts: Sequence[Rollout]) -> Values:
    """The reward's term for quotes."""
    return np.array([score.components["grounding"] for score in ENVIRONMENT.score(rollouts)])


def _replies(
    records: Sequence[PromptRecord], reasons: Sequence[str], answer: str | None
) -> list[str]:
    return [
        reply_text(reason, answer or str(record.metadata["gold"]))
        for record, reason in zip(records, reasons, strict=True)
    ]


def _rollouts(records: Sequence[PromptRecord], replies: Sequence[str]) -> list[Rollout]:
    return [
        Rollout(record.id, record.set_id, record.split, "", reply, record.metadata)
        for record, reply in zip(records, replies, strict=True)
    ]


def _findings(record: PromptRecord) -> tuple[list[str], str]:
    context = str(record.metadata["context"])
    return sentences_of_findings(context) or [context], str(record.metadata["question"])


def table(title: str, rows: Sequence[Row]) -> str:
    """The rows as Markdown, each figure with its interval."""
    head = f"| {title} | grounded | earns | grounded, answer right | earns, answer right |"
    lines = [
        f"| {row.name} | " + " | ".join(_cells(row.guessed) + _cells(row.right)) + " |"
        for row in rows
    ]
    return "\n".join([head, "|---|---|---|---|---|", *lines, ""])


def _cells(values: Values) -> list[str]:
    return [_percent(values >= GROUNDED), _figure(values)]


def _percent(values: NDArray[np.bool_]) -> str:
    return f"{values.mean():.1%}"


def _figure(values: Values) -> str:
    low, high = interval(values)
    return f"{values.mean():.2f} ({low:.2f} to {high:.2f})"


def interval(values: Values) -> tuple[float, float]:
    """The bootstrap's interval of the mean over questions."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_weights(len(values)) @ values, [tail, 1 - tail])
    return float(low), float(high)


@lru_cache(maxsize=1)  # the rows of a table have the same questions
def _weights(size: int) -> Values:
    return np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), DRAWS) / size


def local_records(seed: int) -> list[PromptRecord]:
    """The test questions of the local run of a seed."""
    records = build_prompts(PromptSettings(source="synthetic", num_samples=2400, seed=seed))
    return [record for record in records if record.split == TEST_SPLIT]


def real_records(path: Path) -> dict[str, list[PromptRecord]]:
    """Name of a half -> PubMedQA's questions: those to train and validate on, the official test."""
    records = build_prompts(PromptSettings(source="file", path=str(path), split="published"))
    held_out = [record for record in records if record.split == TEST_SPLIT]
    others = [record for record in records if record.split != TEST_SPLIT]
    return {DEVELOPMENT: others, "PubMedQA, official test": held_out}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of each set of questions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--questions", type=Path, help="ori_pqal.json, for tables of PubMedQA")
    parser.add_argument("--seed", type=int, default=0, help="of the invented abstracts")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="DIR")
    options = parser.parse_args(arguments)
    invented = local_records(options.seed)
    runs = run_rows(options.runs) if options.runs else ()
    rows = [*template_rows(invented), *runs, expert_row(invented)]
    print(table("invented abstracts", rows))
    if options.questions:
        halves = real_records(options.questions)
        for name, records in halves.items():
            print(table(name, [*template_rows(records), expert_row(records)]))
        print(agreement(halves[DEVELOPMENT]))


if __name__ == "__main__":
    main()
