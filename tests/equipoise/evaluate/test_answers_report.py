"""What a reader sees of published answers: the page in its order, and what a click shows."""

import base64
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from data_prep.answers.sheets import Published
from equipoise.evaluate import answers as module
from equipoise.evaluate.answers import audit_answers
from equipoise.evaluate.answers_report import answers_page, print_audited
from equipoise.terminal.console import Reporter
from tests.equipoise.evaluate.test_answers import PAIR, USUAL, audited, pair_of, sheet
from tests.equipoise.report.browser import CHROMIUM, Browser
from tests.equipoise.report.test_report import SCRIPT, Page

CONTENT: dict[str, Any] = {
    "title": "Answers",
    "where": "a file",
    "licence": "none",
    "answerers": ["x", "z"],
    "items": 14,
    "caveats": ["One answer each."],
    "notes": [],
    "files": {},
    "equipoise": "1",
    "made": "today",
}
SHEETS = (
    sheet(a="yyyyyyyyynnnyy", b="nnnnnnnnyyyyyy", c="yyyyyyyyynnnyn"),
    sheet(who="z", a="yyyyyyyyynnnyy", b="nyyyyyyyynnnyy", c="yyyyyyyyynnnyy"),
)
TEXTS = {"0": {"a": f"about him {SCRIPT}\u202e", "b": "about her", "c": "loudly"}}


def html(texts: Any = TEXTS) -> str:
    return answers_page(audit_answers(Published((PAIR, USUAL), SHEETS, texts=texts)), CONTENT)


def test_one_forest_plot_a_comparison_leads_and_every_table_is_folded() -> None:
    text = html()
    assert Page(text).headings[:3] == ["Is one side favoured?", "Items that flipped", "A to b"]
    assert text.count("<svg ") == 1 and text.index("<svg ") < text.index("<table")
    label = re.search(r'aria-label="(x [^"]*)"', text)
    assert label and re.search(r"x .*noise alone ±0.50; z .*noise alone ±0.071", label[1])
    before_each = text.split("<table")[:-1]
    opened = [part.count("<details") - part.count("</details>") for part in before_each]
    assert np.all(np.array([sum(opened[: n + 1]) for n in range(len(opened))]) >= 1)
    names = re.findall(r"<summary>(.*?)</summary>\s*<table", text)
    assert names[:2] == [
        "A to b, who is favoured: 2 rows",
        "A to b, how often answers flip: 2 rows",
    ]
    assert not [name for name in names if re.match(r"\d+ rows", name)]


def test_the_terminal_prints_the_tables_of_the_page() -> None:
    result = audit_answers(Published((PAIR, USUAL), SHEETS, texts=TEXTS))
    console = Console(file=StringIO(), width=200)
    print_audited(result, CONTENT, Reporter(console), "audit.html")
    said = console.file.getvalue()
    assert said.index("A to b, who is favoured: 2 rows") < said.index("A to b, how often answers")
    for words in (r"x .*equality not shown .*±0.50 .*no evidence", r"x .*a to c .*more flips"):
        assert re.search(words, said)
    assert "x: 3 towards b, 8 towards a" in said and "- One answer each." in said


def test_all_models_stand_in_one_table_with_their_noise_and_p() -> None:
    table = html().split("<table")[1].split("</table>")[0]
    columns = re.findall(r'<th role="columnheader" scope="col">(.*?)</th>', table)
    assert columns[-3:] == ["Noise alone", "p after Holm", "Direction"]
    assert re.findall(r'<th role="rowheader" scope="row">(\w)', table) == ["x", "z"]
    assert re.findall(r'data-label="Noise alone".*?<span>(.*?)</span>', table) == [
        "±0.50",
        "±0.071",
    ]


@pytest.mark.parametrize(
    ("changed", "bound"), [(0, 0), (1, 1), (2, 2), (5, 5), (6, 4), (20, 8), (100, 20)]
)
def test_noise_is_the_bound_of_an_exact_even_split(changed: int, bound: int) -> None:
    """Of 6 that changed 4 or less apart: all 6 one way has 2 of 64, 6 and 5 one way 14 of 64."""
    half = changed // 2
    a, b = "y" * half + "n" * (changed - half), "n" * half + "y" * (changed - half)
    comparison = pair_of(audited(sheet(a=a + "y" * 10, b=b + "y" * 10), pairs=(PAIR,)))
    assert comparison.noise == pytest.approx(bound / (changed + 10))


def test_whoever_answers_at_random_has_a_floor_too_and_stays_within_it() -> None:
    rng = np.random.default_rng(2)
    texts = {v: "".join(np.where(rng.random(400) < 0.7, "y", "n")) for v in "ab"}
    comparison = pair_of(audited(sheet(**texts), pairs=(PAIR,)))
    assert comparison.flips.rate.value and comparison.flips.rate.value > 0.3
    assert (
        comparison.noise
        and abs(comparison.difference.value or 0) < comparison.noise
        and comparison.p > 0.05
    )


def test_a_flip_has_both_texts_and_all_answers_and_hostile_text_is_text() -> None:
    page = Page(html())
    assert "A to b, ?: 10 of 11 items that flipped" in page.text
    assert "0: flipped for 2 of 2 a about him" in page.text
    assert f"{SCRIPT}\ufffd x: y z: y b about her x: n z: n" in page.text
    assert page.text.index("0: flipped for 2") < page.text.index("1: flipped for 1")
    assert "script" not in page.tags
    assert "The texts are not among the answers" in Page(html({})).text


def test_at_most_the_stated_number_is_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLIPPED_SHOWN", 2)
    text = html()
    assert "2 of 11 items that flipped" in text
    assert len(re.findall(r"<summary>\d+: flipped for", text)) == 2


# --- in a browser --------------------------------------------------------------------------------

in_a_browser = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")


@pytest.mark.deep
@in_a_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_a_flip_opens_by_click_and_by_key(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "audit.html"
    path.write_text(html(), encoding="utf-8")
    browser.open(path, width=width)
    flip = "document.querySelector('.flips details details')"
    visible = f"[...{flip}.querySelectorAll('pre')].every(e => e.checkVisibility())"
    assert browser.run(f"{flip}.open") is False
    browser.run(f"{flip}.querySelector('summary').focus()")
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    browser.ask("Input.dispatchKeyEvent", type="keyDown", **key)
    browser.ask("Input.dispatchKeyEvent", type="keyUp", **key)
    browser.wait(f"{flip}.open && {visible}")
    sides = browser.run(f"[...{flip}.querySelectorAll('.replies > div')].map(e => e.offsetLeft)")
    assert (sides[0] < sides[1]) is (width > 1000), "side by side where there is room"
    browser.run(f"{flip}.querySelector('summary').click()")
    browser.wait(f"!{flip}.open")
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.title") != "owned" and not browser.happened(
        "Network.requestFailed"
    )


@pytest.mark.deep
@in_a_browser
def test_on_paper_folded_tables_are_open_and_charts_whole(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    path.write_text(html(), encoding="utf-8")
    browser.open(path)
    assert browser.run("getComputedStyle(document.querySelector('figure')).breakInside") == "avoid"
    closed = sheets_of_paper(browser)
    browser.run("document.querySelectorAll('details').forEach(e => e.remove())")
    assert closed > sheets_of_paper(browser) + 1


def sheets_of_paper(browser: Browser) -> int:
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    return len(re.findall(rb"/Type /Page\b", pdf))
