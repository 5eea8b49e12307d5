"""The share of the reasoning that stands in the abstract."""

import pytest

from environments.pubmedqa.grounding import grounding

CONTEXT = "RESULTS: Pain fell by 12.5% in the treated group (P = 0.03)."


@pytest.mark.parametrize(
    ("reasoning", "share"),
    [
        ("Pain fell in the treated group.", 1.0),
        ("PAIN FELL", 1.0),
        ("Pain fell by 12.5%, P = 0.03.", 1.0),
        ("Pain fell by 12%.", 2 / 3),
        ("Pain fell, P = 0.3", 2 / 3),
        ("Mortality rose.", 0.0),
        ("Pain, pain, pain: mortality.", 1 / 2),
        ("It is so, for this was from that.", 0.0),
        ("", 0.0),
    ],
)
def test_share(reasoning: str, share: float) -> None:
    assert grounding(reasoning, CONTEXT) == pytest.approx(share)


def test_a_part_of_a_word_or_number_is_not_found() -> None:
    assert grounding("treat", CONTEXT) == 0.0
    assert grounding("12", CONTEXT) == 0.0
    assert grounding("0.0", CONTEXT) == 0.0
