"""The report in a browser: every reply is there and filtered, nothing acts, nothing is cut off."""

import json
import re
from collections import Counter

import pytest

from equipoise.report import replies as module
from equipoise.report.replies import viewer
from equipoise.report.report import write_report
from equipoise.report.run_files import read_run
from tests.equipoise.report.browser import CHROMIUM
from tests.equipoise.report.conftest import write_finished, write_json, write_jsonl

pytestmark = pytest.mark.deep

in_a_browser = pytest.mark.skipif(
    not CHROMIUM, reason="needs a Chromium: install one, or name it in EQUIPOISE_CHROMIUM"
)
STAGES = ("baseline", "final")
OWNED = "document.title='owned'"
HOSTILE = (
    f'</script></pre><script>{OWNED}</script><img src=x onerror="{OWNED}"><svg onload="{OWNED}">'
)
READY = "document.querySelector('#viewer .count') !== null"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which two replies could not be scored, and one is unlike all others."""
    run = write_finished(tmp_path_factory.mktemp("viewer") / "run")
    (run / "training_history.jsonl").unlink()
    rows = rows_of(run, "final")
    for row in rows[:2]:
        row |= {"value": None, "error": {"kind": "transport_timeout", "text": "no answer in 60 s"}}
    rows[5]["completion"] = (
        "Zebra \u202eover\u202c \u65e5 \U0001f469\u200d\u2695 \ud800 <b>&amp;</b>"
    )
    write_jsonl(run / "final" / "rollouts.jsonl", rows)
    write_report(run)
    return run


def rows_of(run, stage):
    text = (run / stage / "rollouts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def opened(browser, run, fragment="", **size):
    browser.open(run / "report.html", fragment, **size)
    browser.wait(READY)


def choose(browser, label, value):
    """Set the filter of this label to the option that begins so; how many replies are left."""
    browser.run(
        f"""(() => {{
          const label = [...document.querySelectorAll('#viewer label')].find(
            (label) => label.firstChild.textContent === {json.dumps(label)});
          const control = label.lastChild;
          control.value = control.tagName === 'INPUT' ? {json.dumps(value)} : [...control.options]
            .find((option) => option.textContent.startsWith({json.dumps(value)})).value;
          document.querySelector('#viewer .count').textContent = '';
          control.dispatchEvent(new Event('input', {{bubbles: true}}));
        }})()"""
    )
    browser.wait("document.querySelector('#viewer .count').textContent !== ''")
    told: str = browser.run("document.querySelector('#viewer .count').textContent")
    return int(told.split(" of ")[0].replace(",", ""))


def verdict(row):
    if row["error"]:
        return "could not be scored: transport timeout"
    return "could not be read" if "unparseable" in row["evidence"] else "scored"


@in_a_browser
def test_every_reply_is_there_and_filters_agree_with_the_files(browser, run):
    opened(browser, run)
    rows = [(stage, row) for stage in STAGES for row in rows_of(run, stage)]
    told = browser.run("document.querySelector('#viewer .count').textContent")
    assert told.startswith(f"{len(rows):,} of {len(rows):,} replies, mean reward ")
    for name, count in Counter(verdict(row) for _, row in rows).items():
        assert choose(browser, "Verdict", name) == count
    black = [(stage, row) for stage, row in rows if row["metadata"]["race"] == "Black"]
    choose(browser, "Verdict", "all")
    assert choose(browser, "Race", "Black") == len(black)
    after = [row for stage, row in black if stage == "final"]
    assert choose(browser, "Stage", "After training") == len(after)
    whiplash = [row for row in after if row["metadata"]["case"] == "whiplash"]
    assert choose(browser, "Injury", "whiplash") == len(whiplash)
    opioid = [
        r for r in whiplash if r["evidence"].get("decision", {}).get("medication") == "opioid"
    ]
    assert choose(browser, "Decision medication", "opioid") == len(opioid)
    browser.run("[...document.querySelectorAll('#viewer button')].at(0).click()")
    assert choose(browser, "Text", "zEBRA") == 1
    assert choose(browser, "Text", "No answer in 60") == 2


@in_a_browser
def test_the_order_is_by_reward_where_that_is_asked_for(browser, run):
    opened(browser, run)
    choose(browser, "Verdict", "scored")
    choose(browser, "Order", "highest reward first")
    listed = browser.run("[...document.querySelectorAll('.reply .number')].map(e => e.textContent)")
    rewards = [float(text.replace("\u2212", "-")) for text in listed]
    best = sorted(
        row["value"] for s in STAGES for row in rows_of(run, s) if verdict(row) == "scored"
    )
    assert rewards == pytest.approx(best[::-1][: len(rewards)], rel=1e-2)
    assert browser.run("[...document.querySelectorAll('#viewer button')].at(1).hidden") is False


@in_a_browser
def test_a_link_shows_one_reply_beside_its_set_and_the_other_stage(browser, run):
    row = rows_of(run, "final")[5]
    opened(browser, run, "#reply/after/lumbar_strain%2F000%2FWhite/6")
    one = browser.run("document.querySelector('.one').innerText")
    assert "After training: lumbar_strain/000/White, reply 6" in one
    shown = row["completion"].replace("\u202e", "\ufffd").replace("\u202c", "\ufffd")
    assert shown.replace("\ud800", "\ufffd") in one
    heads = browser.run("[...document.querySelectorAll('.one thead th')].map(e => e.textContent)")
    assert heads == ["Stage", "White", "Black", "Hispanic or Latino", "Asian"]
    cells = browser.run("[...document.querySelectorAll('.one td pre')].map(e => e.textContent)")
    sixth = [
        [rows_of(run, stage)[6 * place + 5]["completion"] for place in range(4)] for stage in STAGES
    ]
    assert [cells[:4], cells[5:]] == [sixth[0], sixth[1][1:]]
    assert browser.run("document.querySelectorAll('.one .differs').length") > 0
    browser.run("document.querySelector('.one p a:not([href$=\"/6\"])').click()")
    browser.wait("!document.querySelector('.one h3').textContent.endsWith('reply 6')")
    opened(browser, run, "#reply/after/nothing/1")
    assert "is not in this report" in browser.run("document.querySelector('.one').innerText")


def train(run, steps, hostile=""):
    """Give the run kept rollouts: the set 000 at odd steps, the set 001 of its case at even ones.

    One set's two generations of four races at each step, whose decisions are those of the final
    evaluation but for what the step is.
    """
    rows = []
    final = rows_of(run, "final")
    for step in range(1, steps + 1):
        wanted = f"lumbar_strain/00{1 - step % 2}"
        numbers: Counter[str] = Counter()
        for row in (row for row in final if row["set_id"] == wanted):
            numbers[row["prompt_id"]] += 1
            if (number := numbers[row["prompt_id"]]) <= 2:
                own = {"prompt_id": f"train/{row['prompt_id']}", "set_id": f"train/{wanted}"}
                said = {"completion": f"{hostile}step {step}, {row['metadata']['race']} {number}"}
                said |= {"value": step / 10 + number, "error": None, "evidence": {"at": step}}
                rows.append({"step": step, **row, **own, **said})
    write_jsonl(run / "training" / "rollouts.jsonl", rows)
    return rows


@in_a_browser
def test_replies_of_training_are_followed_over_steps(browser, tmp_path):
    run = write_finished(tmp_path / "run")
    (run / "training_history.jsonl").unlink()
    rows = train(run, steps=60)
    with (run / "training" / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 61, "cut off')
    write_report(run)
    opened(browser, run)
    assert choose(browser, "Stage", "During training") == len(rows) == 60 * 8
    assert choose(browser, "Step", "7 ") == 8
    assert choose(browser, "Race", "Black") == 2
    heads = browser.run("[...document.querySelectorAll('.reply .stage')].map(e => e.textContent)")
    assert heads == ["Step 7", "Step 7"]
    links = browser.run(
        "[...document.querySelectorAll('section.viewer > .folded > p a')].map(e => e.textContent)"
    )
    assert [text.split(" at ")[1] for text in links] == ["30 steps", "30 steps"]
    browser.run("document.querySelector('section.viewer > .folded > p a').click()")
    browser.wait("document.querySelector('.one table') !== null")
    shown = browser.run(
        """[...document.querySelectorAll('.one tbody tr')].map(row => [
        row.querySelector('th').textContent,
        ...[...row.querySelectorAll('pre')].map(e => e.textContent)])"""
    )
    steps = [int(row[0].removeprefix("Step ")) for row in shown]
    assert (steps[0], steps[-1], len(steps)) == (1, 59, 12), "some of 30, at even distances"
    races = ["White", "Black", "Hispanic or Latino", "Asian"]
    for step, (_, *cells) in zip(steps, shown, strict=True):
        assert cells == [f"step {step}, {race} 1" for race in races]
    browser.run("document.querySelectorAll('.one details')[0].open = true")
    browser.wait("document.querySelectorAll('.one table').length === 2")
    kind = browser.run(
        """[...document.querySelectorAll('.one table')[1].querySelectorAll('tbody tr')].map(row =>
        [row.querySelector('th').textContent, row.querySelectorAll('pre')[1].textContent])"""
    )
    assert {int(told.removeprefix("Step ")) % 2 for told, _ in kind} == {0, 1}, "both of its sets"
    assert [reply for _, reply in kind] == [f"{told.lower()}, Black 1" for told, _ in kind]
    choose(browser, "Stage", "all")
    choose(browser, "Step", "all")
    choose(browser, "Order", "prompts that rose most first")
    first = browser.run("document.querySelector('.reply').textContent")
    assert "train/lumbar_strain" in first, "5.8 more at the last step than at the first"


@in_a_browser
def test_the_examples_lead_to_all_replies_to_them(browser, tmp_path):
    run = write_finished(tmp_path / "run")
    (run / "training_history.jsonl").unlink()
    for stage in STAGES:
        rows = rows_of(run, stage)
        for row in rows:
            row["prompt_id"] += " \u00e9/ 50% #?'()*~"
        write_jsonl(run / stage / "rollouts.jsonl", rows)
    write_report(run)
    opened(browser, run)
    links = browser.run("document.querySelectorAll('[href^=\"#reply/\"]:not(#viewer *)').length")
    assert links == 1
    for number in range(links):
        link = f"document.querySelectorAll('[href^=\"#reply/\"]:not(#viewer *)')[{number}]"
        browser.run(f"document.querySelector('.one').replaceChildren(); {link}.click()")
        browser.wait("document.querySelector('.one').textContent !== ''")
        assert "50% #?'()*~, reply 1" in browser.run("document.querySelector('.one').innerText")


@in_a_browser
def test_nothing_that_a_model_wrote_acts_or_reaches_out(browser, tmp_path):
    run = write_finished(tmp_path / "run")
    (run / "training_history.jsonl").unlink()
    for stage in STAGES:
        rows = rows_of(run, stage)[:48]
        for row in rows:
            row |= {"completion": HOSTILE, "prompt": HOSTILE, "error": None}
            row["prompt_id"] += f"{HOSTILE}/../?#%"
            row["metadata"] |= {HOSTILE: HOSTILE, "__proto__": HOSTILE, "question": HOSTILE}
            row["evidence"] |= {HOSTILE: {HOSTILE: HOSTILE}, "link": f"javascript:{OWNED}"}
        write_jsonl(run / stage / "rollouts.jsonl", rows)
        path = run / stage / "evaluation.json"
        content = json.loads(path.read_text())
        content["presentation"]["words"]["race"] = {"label": HOSTILE, "note": ""}
        write_json(path, content)
    train(run, 3, hostile=HOSTILE)
    write_report(run)
    opened(browser, run)
    title = browser.run("document.title")
    browser.run("document.querySelectorAll('.reply').forEach(e => { e.open = true; })")
    browser.wait("document.querySelectorAll('.reply .detail').length > 10")
    choose(browser, "Stage", "During training")
    browser.run("document.querySelectorAll('.reply').forEach(e => { e.open = true; })")
    browser.wait("document.querySelectorAll('.reply .detail details').length > 10")
    browser.run("document.querySelectorAll('.reply details').forEach(e => { e.open = true; })")
    browser.wait("document.querySelectorAll('.reply .detail details table').length > 10")
    browser.run("document.querySelector('.reply a').click()")
    browser.wait("document.querySelector('.one .detail') !== null")
    assert HOSTILE in browser.run("document.querySelector('.one').innerText")
    assert browser.run("document.title") == title != "owned"
    made = "#viewer :is(img, script, svg, iframe), a[href^='javascript']"
    assert browser.run(f"document.querySelectorAll({json.dumps(made)}).length") == 0
    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert {url.split(":")[0] for url in asked} == {"file"}
    assert browser.happened("Runtime.exceptionThrown") == []
    assert browser.happened("Log.entryAdded") == []


@in_a_browser
def test_a_script_that_got_into_the_page_would_not_run(browser, run, tmp_path):
    text = (run / "report.html").read_text(encoding="utf-8")
    bad = f'<script>{OWNED}</script><img src=x onerror="{OWNED}">'
    (tmp_path / "report.html").write_text(text.replace("</header>", f"{bad}</header>"))
    opened(browser, tmp_path)
    assert browser.run("document.title") != "owned"
    refused = [event["entry"]["text"] for event in browser.happened("Log.entryAdded")]
    assert any("Content Security Policy" in told for told in refused)
    markup = "try { document.body.innerHTML = '<b>x</b>'; 'made' } catch (error) { error.name }"
    assert browser.run(markup) == "TypeError", "nor could its own script make markup of text"


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_no_section_is_wider_than_the_page_nor_its_text_cut_off(browser, tmp_path, width):
    run = write_finished(tmp_path / "run")
    rows = json.loads((run / "comparison.json").read_text())
    margin = {"by": 0.1, "relative": True, "low": -0.032, "high": 0.0073}
    share = {"value": 0.824, "low": 0.772, "high": 0.875}
    for row in rows["metrics"].values():
        row |= {"guard": "inconclusive", "margin": margin, "removed_share": share}
    write_json(run / "comparison.json", rows)
    train(run, steps=60)
    write_report(run)
    opened(browser, run, width=width)
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    browser.wait("document.querySelectorAll('.reply .detail').length > 10")
    assert "training removed 82.4% (" in browser.run("document.body.innerText")
    wide = browser.run(
        """[...document.querySelectorAll('section')].filter(e => e.scrollWidth > e.clientWidth)
        .map(e => `${e.querySelector('h2').textContent} ${e.scrollWidth} > ${e.clientWidth}`)"""
    )
    assert wide == []
    browser.run("document.querySelector('section.viewer > .folded > p a').click()")
    browser.wait("document.querySelector('.one table') !== null")
    browser.run("document.querySelector('.one details').open = true")
    browser.wait("document.querySelectorAll('.one table').length === 2")
    assert browser.run("document.querySelector('section.viewer').scrollWidth") <= width
    assert browser.run("document.documentElement.scrollWidth") <= width
    past_its_cell = browser.run(
        """[...document.querySelectorAll('td small, td span, th small')].filter((e) => {
          const [text, cell] = [e, e.closest('td, th')].map((part) => part.getBoundingClientRect());
          return text.width > 0 && text.right > cell.right + 1;
        }).map(e => e.textContent)"""
    )
    assert past_its_cell == []


@in_a_browser
def test_it_opens_replies_of_a_task_without_sets_and_of_one_stage(browser, tmp_path):
    replies = []
    for number in range(5):
        names = {"prompt_id": f"p{number}", "set_id": f"p{number}", "prompt": "?"}
        names |= {"split": "test", "components": {}, "error": None, "outcome": None}
        metadata = {"question": f"What is {number}?", "gold": "yes" if number % 2 else "no"}
        reply = {
            "completion": f"answer {number}",
            "value": 1.0,
            "evidence": {"correct": number > 2},
        }
        replies.append({**names, "value": 1.0, "metadata": metadata, **reply})
    write_jsonl(tmp_path / "baseline" / "rollouts.jsonl", replies)
    write_json(tmp_path / "baseline" / "evaluation.json", {"metrics": {"a": {"value": 0.5}}})
    write_report(tmp_path)
    opened(browser, tmp_path)
    assert choose(browser, "Gold", "yes") == 2
    assert choose(browser, "Correct", "yes") == 1
    assert "What is 3?" in browser.run("document.querySelector('.reply').textContent")


def test_beyond_what_a_page_holds_whole_sets_are_left_out(run, monkeypatch):
    files = read_run(run)
    total = sum(len(replies) for replies in files.replies.values())
    assert f"All {total:,} replies" in str(viewer(files) and viewer(files).note)
    monkeypatch.setattr(module, "MOST_REPLIES", total // 3)
    kept = module._whole_sets(list(module._numbered(files)))
    sizes = Counter(each.reply.rollout.set_id for each in kept)
    per_set = total // len({reply.rollout.set_id for reply in files.replies["before"]})
    assert 0 < len(kept) <= total // 3
    assert set(sizes.values()) == {per_set}
    told = re.match(r"([\d,]+) of ([\d,]+) replies, whole sets", viewer(files).note)
    assert told and [int(n.replace(",", "")) for n in told.groups()] == [len(kept), total]


def test_of_training_whole_steps_are_left_out(run, monkeypatch):
    rows = train(run, steps=10)
    try:
        files = read_run(run)
    finally:
        (run / "training" / "rollouts.jsonl").unlink()
    monkeypatch.setattr(module, "MOST_OF_TRAINING", len(rows) // 3)
    kept = Counter(each.reply.step for each in module._whole_steps(files.training))
    assert kept == {1: 8, 5: 8, 9: 8}
    assert "24 of 3 training steps" in str(viewer(files) and viewer(files).note)


def test_without_replies_there_is_no_script(tmp_path):
    assert "<script" not in write_report(tmp_path).read_text()


@in_a_browser
def test_closed_tables_are_there_in_print(browser, run):
    opened(browser, run)
    tables = "[...document.querySelectorAll('details:not([open]) table')]"
    seen = f"{tables}.map(e => e.checkVisibility({{contentVisibilityAuto: true}}))"
    assert not any(browser.run(seen))
    browser.ask("Emulation.setEmulatedMedia", media="print")
    try:
        # What is laid out anew takes a frame.
        browser.wait(f"{tables}.length && {seen}.every(Boolean)")
        parts = "[...document.querySelectorAll('figure, tr')]"
        assert browser.run(f"{parts}.every(e => getComputedStyle(e).breakInside === 'avoid')")
    finally:
        browser.ask("Emulation.setEmulatedMedia", media="")
