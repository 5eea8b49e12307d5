"""The reader of replies: every case of cases.jsonl, and what holds of any text."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import TAGS, Abstract, deciding_findings, grounds, parse_reply

CASES = [
    json.loads(line)
    for line in (files("environments.pubmedqa") / "cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases(case):
    reply = parse_reply(case["reply"] * case.get("times", 1))
    assert (reply.answer, reply.tags_in_place) == (case["answer"], case["tags_in_place"])
    assert bool(reply.problem) == (reply.answer is None)


@pytest.mark.parametrize("dropped", range(4))
def test_each_tag_counts_by_itself(dropped):
    """Without one tag the others stay in place, unless what stands before them no longer fits."""
    parts = ["<reasoning>", "Fell.", "</reasoning>", "", "<answer>", "yes", "</answer>"]
    text = "".join(part for i, part in enumerate(parts) if i != 2 * dropped)
    # Without </reasoning> there is text before <answer>; without <answer>, before nothing at all.
    assert parse_reply(text).tags_in_place == {0: 3, 1: 2, 2: 3, 3: 3}[dropped]


pieces = st.lists(
    st.sampled_from([*TAGS, *LABELS, " ", "\n", "eyes", "Yes.", "text"]), max_size=12
).map("".join)


@given(pieces)
def test_all_tags_in_place_is_exactly_the_form(text):
    reply = parse_reply(text)
    assert 0 <= reply.tags_in_place <= 4
    if reply.keeps_format:
        assert reply.answer in LABELS
        assert [text.count(tag) for tag in TAGS] == [1, 1, 1, 1]
        assert text.strip().startswith("<reasoning>")
        assert text.strip().endswith("</answer>")


@given(pieces, st.sampled_from(LABELS))
def test_the_last_answer_decides(before, label):
    assert parse_reply(f"{before}<answer>{label}</answer>").answer == label


@given(st.text())
def test_text_without_an_answer_element_has_no_answer(text):
    if "<answer>" not in text:
        assert parse_reply(text).answer is None


QUESTION = "Does Belorin reduce pain within 14 days?"
CONTEXT = (
    "BACKGROUND: Pain is common in older patients, and Belorin is often given for pain.\n"
    "METHODS: We followed 1,200 adults for 12.50 weeks.\n"
    "RESULTS: Pain fell by 12.5% in the treated group (P < 0.05), fever by -3%. Nausea stayed as "
    "it had been."
)
DECIDES = "Pain fell by 12.5% in the treated group (P < 0.05), fever by -3%."
_SINGLE_MARKS = ("''", "``", "\u2018\u2019", "\u2039\u203a", "\u300c\u300d", "\u301d\u301e")


def read(reasoning):
    return grounds(reasoning, Abstract(CONTEXT, QUESTION))


@pytest.mark.parametrize(
    ("reasoning", "evidence"),
    [
        (f'"{DECIDES}": so it does.', 1.0),
        ("So it does: “pain  FELL by 12.5% in\nthe treated group (P < .050), fever by -3%”.", 1.0),
        # 12 of its 17 words, numbers and signs: 2 * 12 / 17 - 1. Two parts of it are all of it.
        ("«Pain fell by 12.5%, in the treated group (P < .050)»", 7 / 17),
        ('"Pain fell by 12.5% in the" "treated group (P < 0.05), fever by -3%"', 1.0),
        # A half of it, with the verb or without.
        ('"Pain fell by 12.5% in the"', 0.0),
        ('"(P < 0.05), fever by -3%"', 0.0),
        # Something beside it costs as what is missing of it.
        (f'"{DECIDES}" "Nausea stayed as it had been."', 2 * 17 / 23 - 1),
        (f'"{DECIDES}" "{DECIDES}"', 1.0),
        # Nothing shown.
        ("Pain fell.", 0.0),
        ('"Pain" fell.', 0.0),
        (f"'{DECIDES}'", 1.0),
        (f"\"{DECIDES}\" It is the patients' and the doctors' own.", 1.0),
        ('"Pain" "fell" "by" "12.5%"', 0.0),
        ('"Nausea stayed as it had been."', 0.0),  # another finding
        ('"Belorin is often given for pain"', 0.0),  # no finding
        ('"Does Belorin reduce pain within 14 days?"', 0.0),  # the question
        (f'"{CONTEXT}"', 0.0),
    ],
)
def test_evidence(reasoning, evidence):
    found = read(reasoning)
    assert found.evidence == pytest.approx(evidence)
    assert not found.made_up
    assert found.value(is_correct=True) == found.evidence
    assert found.value(is_correct=False) == -found.evidence


@pytest.mark.parametrize(
    "reasoning",
    [
        '"Pain fell by 12.5% in the treated group (P > 0.05)"',
        '"Pain fell by 15% in the treated group"',
        '"Pain did not fall in the treated group"',
        '"Pain fell ... (P < 0.05), fever by -3%"',  # stitched
        '"Pain fell by 12.5% in the treated group (P < 0.05), fever by 3%"',  # no minus
        f'"{DECIDES}" and "nausea fell in all of them"',
        *(
            f'"{DECIDES}" {mark}nausea fell in all of them{close}'
            for mark, close in (*_SINGLE_MARKS, ("''", "''"))
        ),
        f'"{DECIDES}" (P = .001)',
        "Pain fell by half (P = .001).",
    ],
)
def test_whatever_is_made_up_costs_what_the_finding_earns(reasoning):
    assert read(reasoning).made_up
    assert {read(reasoning).value(is_correct=right) for right in (True, False)} == {-1.0}


@pytest.mark.parametrize(
    "numbers",
    [
        "1200 adults",
        "12.5 weeks",
        "P < .05",
        "14 days",
        "1. Pain fell.\n2) It was 12.5%.",
        "\uff10.\uff10\uff15",
    ],
)
def test_a_number_may_be_written_otherwise(numbers):
    assert read(numbers).false_numbers == ()


def test_an_open_mark_quotes_the_rest():
    assert read('"Nausea stayed as it had been').false_quotes == ()
    assert read('"Nausea stayed as it had been, and I think so too').false_quotes != ()


def test_no_quote_reaches_over_two_sections():
    text = '"We followed 1,200 adults for 12.50 weeks. RESULTS: Pain fell by 12.5%"'
    assert read(text).false_quotes == ()
    assert read(text).evidence == 0.0


def test_the_finding_that_is_known_decides():
    nausea = "Nausea stayed as it had been."
    known = Abstract(CONTEXT, QUESTION, finding=nausea, conclusion="Belorin reduces pain.")
    assert deciding_findings(known) == [nausea]
    assert grounds(f'"{nausea}"', known).evidence == 1.0
    assert grounds(f'"{DECIDES}"', known).evidence == 0.0


def test_else_the_sentence_nearest_to_the_conclusion_decides():
    nausea = "Nausea stayed as it had been."
    assert deciding_findings(Abstract(CONTEXT, QUESTION)) == [DECIDES]
    for conclusion, expected in {
        "Belorin does nothing about nausea.": [nausea],
        "Fever fell as well.": [DECIDES],
        "More trials are wanted.": [DECIDES],  # it shares nothing: the question decides
    }.items():
        assert deciding_findings(Abstract(CONTEXT, QUESTION, "", conclusion)) == expected
    assert deciding_findings(Abstract(CONTEXT, "Is it so?")) == [DECIDES, nausea]


@given(st.text(['"', "“", "1", ".", "-", "a", " ", "\0", "\ud800", "ﷺ"]) | st.text())
def test_any_text_can_be_read(text):
    assert 0.0 <= read(text).evidence <= 1.0
    assert grounds("pain 1", Abstract(text, text, "", text)).false_quotes == ()
