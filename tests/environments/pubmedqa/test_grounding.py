"""What a reasoning takes from the abstract: quotes, numbers, and to what point."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.pubmedqa.grounding import Grounds, closeness, findings_of, grounds, quotes_whole

QUESTION = "Does Belorin reduce pain within 14 days?"
CONTEXT = (
    "BACKGROUND: Pain is common in older patients, and Belorin is often given for pain.\n"
    "METHODS: We followed 1,200 adults for 12.50 weeks.\n"
    "RESULTS: Pain fell by 12.5% in the treated group (P < 0.05), fever by -3%. Nausea stayed as "
    "it had been."
)


def read(reasoning: str) -> Grounds:
    return grounds(reasoning, CONTEXT, QUESTION)


@pytest.mark.parametrize(
    ("reasoning", "value"),
    [
        ('"Pain fell by 12.5% in the treated group (P < 0.05)": so it does.', 1.0),
        ("So it does: “pain  FELL by 12.5% in\nthe treated group”.", 1.0),
        ("«Pain fell by 12.5%, in the treated group (P < .050)»", 1.0),
        # Nothing false, and nothing shown.
        ("Pain fell.", 0.5),
        ('"Pain" fell.', 0.5),
        ('"Pain" "fell" "by" "12.5%"', 0.5),
        ('"Nausea stayed as it had been."', 0.5),  # another finding
        ('"Belorin is often given for pain"', 0.5),  # no finding
        ('"Does Belorin reduce pain within 14 days?"', 0.5),  # the question
        (f'"{CONTEXT[-60:]}" "{CONTEXT[:80]}" "{CONTEXT[150:]}"', 0.0),
        # Made up.
        ('"Pain fell by 12.5% in the treated group (P > 0.05)"', 0.0),
        ('"Pain fell by 15% in the treated group"', 0.0),
        ('"Pain did not fall in the treated group"', 0.0),
        ('"Pain fell ... (P < 0.05), fever by -3%"', 0.0),  # stitched
        ('"Pain fell by 12.5% in the treated group (P < 0.05), fever by 3%"', 0.0),  # no minus
        ('"Pain fell by 12.5% in the treated group" and "nausea fell in all of them"', 0.0),
        ('"Pain fell by 12.5% in the treated group" (P = .001)', 0.0),
        ("Pain fell by half (P = .001).", 0.0),
    ],
)
def test_value(reasoning: str, value: float) -> None:
    assert read(reasoning).value == value


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
def test_a_number_may_be_written_otherwise(numbers: str) -> None:
    assert read(numbers).false_numbers == ()


@pytest.mark.parametrize("number", ["12", "2.5", "1", "200", "P = .5", "٤٢", "in 1.3 weeks"])
def test_a_part_of_a_number_is_another_number(number: str) -> None:
    assert read(number).false_numbers != ()


def test_it_is_said_what_is_not_in_the_abstract() -> None:
    found = read('"Pain rose in all of them (P = .30)" and "Nausea stayed as it had been."')
    assert found.quotes == ("pain rose in all of them p = .3", "nausea stayed as it had been")
    assert found.false_quotes == found.quotes[:1]
    assert found.false_numbers == (".3",)


def test_an_open_mark_quotes_the_rest() -> None:
    assert read('"Nausea stayed as it had been').false_quotes == ()
    assert read('"Nausea stayed as it had been, and I think so too').false_quotes != ()


def test_no_quote_reaches_over_two_sections() -> None:
    text = '"We followed 1,200 adults for 12.50 weeks. RESULTS: Pain fell by 12.5%"'
    assert read(text).false_quotes == ()
    assert read(text).value == 0.5


def test_whoever_quotes_everything_shows_nothing() -> None:
    results = CONTEXT.rpartition(": ")[2]
    assert grounds(f'"{results}"', CONTEXT, QUESTION).value == 1.0
    assert grounds(f'"{results}"', results, QUESTION).value == 0.5


def test_the_findings_are_where_the_labels_say_so() -> None:
    assert findings_of(CONTEXT) == [CONTEXT.rpartition(": ")[2]]
    assert findings_of("AIM: a\nPRINCIPAL FINDINGS: b\nMAIN RESULTS: c") == ["b\n", "c"]
    assert findings_of("Pain: it fell.") == ["Pain: it fell."]


def test_the_finding_that_decides() -> None:
    finding = "Nausea stayed as it had been."
    assert quotes_whole(read('"Nausea stayed as it had been."'), finding)
    assert not quotes_whole(read('"Nausea stayed as it had"'), finding)
    assert not quotes_whole(read("Nausea stayed as it had been."), finding)


def test_closeness_counts_stems() -> None:
    assert closeness("Belorin reduced the pain, the pain.", QUESTION) == 3
    assert closeness("It was not so.", QUESTION) == 0


@given(st.text(['"', "“", "1", ".", "-", "a", " ", "\0", "\ud800", "ﷺ"]) | st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert read(text).value in (0.0, 0.5, 1.0)
    assert grounds("pain 1", text, text).false_quotes == ()
