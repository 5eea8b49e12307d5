"""The report shows several models beside each other."""

import re
from dataclasses import replace

from environments.base import Rollout, Score
from environments.presentation import Chart, Column, Finding, Presentation, ReplyTable, Words
from equipoise.report.comparison import OWN_REFERENCE, comparison_page
from equipoise.run.rollouts import write_rollouts
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.evaluation import Estimate
from equipoise.statistics.seeds import ComparedEntry, ComparedPair, EntriesComparison
from tests.equipoise.report.test_report import Page

FLIPS = Words("flip rate", "sets whose usual choice differs")
SAID = Presentation(
    words={"flip_rate": FLIPS}, charts=(Chart("flip_rate", "share of sets", "Flips."),)
)


def entry(name, figures, **more):
    told = {"runs": (), "models": (), "seeds": (), "variants": (), "caveats": ()} | more
    told["breakdowns"] = told.get("breakdowns", {})
    metrics = {"flip_rate": Estimate(**figures)}
    return ComparedEntry(name, n_rollouts=1, n_failed=0, metrics=metrics, **told)


def page(
    *entries,
    row=None,
    own_references=(),
    presentation=SAID,
):
    metrics = {"flip_rate": MetricComparison(**row)} if row else {}
    first, *others = (each.name for each in entries)
    pairs = tuple(
        ComparedPair(first, other, (80,), (), (), own_references, metrics) for other in others
    )
    return comparison_page(EntriesComparison("flips", 0.95, (), entries, pairs), presentation)


def test_every_model_is_a_row_with_its_noise_and_p_and_so_is_a_random_policy():
    figures = {"value": 0.9, "low": 0.8, "high": 0.95, "floor": 0.4, "floor_high": 0.5, "p": 0.001}
    at_random = {"value": 0.5, "low": 0.3, "high": 0.7, "floor": 0.48, "floor_high": 0.6, "p": 0.4}
    row = {"difference": -0.4, "low": -0.5, "high": -0.3, "p_holm": 0.0123, "verdict": "better"}
    text = page(entry("one", figures), entry("random", at_random), row=row)
    table = text.split('aria-label="Every entry"')[1].split("</table>")[0]
    assert re.findall(r'scope="row">(\w+)', table) == ["one", "random"]
    alone = re.findall(r"<small>noise alone (\S+) \(up to", table)
    assert alone == ["0.40", "0.48"]
    assert re.findall(r'data-label="p after Holm".*?<span>(.*?)</span>', table)[1] == "0.012"
    assert text.count("<svg ") == 1


def test_the_headline_and_the_plot_come_first_then_the_tables():
    both = entry("one", {"value": 0.9}), entry("two", {"value": 0.5})
    text = page(*both, row={"before": 0.9, "after": 0.5})
    headline = "There is no evidence that the flip rate differs: 0.900 with one, 0.500 with two."
    assert text.index(headline) < text.index("<section")
    headings = ["Estimates and intervals", "two against one", "Every entry"]
    assert Page(text).headings[:4] == [*headings, "two against one, all metrics"]
    folded = re.findall(r'<details class="folded"><summary><h2 id="([\w-]+)"', text)
    assert folded == ["metrics-1", "provenance"]
    both = entry("one", {"value": 0.9}), entry("two", {"value": None})
    text = page(*both, row={"before": 0.9, "after": None})
    assert "The flip rate could not be measured with two" in text


def test_the_headline_names_who_has_most_and_the_breakdown_is_drawn_for_each_pair():
    finding = Finding("flip_rate", "{most} is {value} above {least}", 100, "by_race", "surgery")
    chart = Chart("surgery", "percent", "By race.", breakdown="by_race")
    rates = ({"White": 30.0, "Black": 20.0}, {"White": 24.0, "Black": 25.0})
    entries = [
        entry(
            name,
            {"value": value, "floor_high": 0.01},
            breakdowns={"by_race": {k: {"surgery": Estimate(v)} for k, v in by_race.items()}},
        )
        for name, value, by_race in zip(("one", "two"), (0.1, 0.015), rates, strict=True)
    ]
    row = {"before": 0.1, "after": 0.015, "verdict": "better"}
    said = replace(SAID, findings=(finding,), charts=(*SAID.charts, chart))
    text = page(*entries, row=row, presentation=said)
    headline = "White is 10.0 above Black with one and 1.5 with two (Black above White; noise"
    assert headline in text and f"{headline} alone gives up to 1.000)." in text
    assert text.count("<svg ") == 2 and "By race." in text
    unknown = [replace(each, breakdowns={}) for each in entries]
    assert "Some is 10.0 above other with one" in page(*unknown, row=row, presentation=said)


def test_figures_of_other_prompts_than_were_compared_have_no_interval():
    figures = {"value": 0.5, "low": 0.4, "high": 0.6}
    text = page(entry("one", figures), entry("two", figures), row={"before": 0.5, "after": 0.25})
    assert "0.500 (95% CI 0.400\u20130.600) with one, 0.250 with two." in text


def test_two_runs_show_one_question_of_both(tmp_path):
    entries = []
    for name, reply in (("one", "One reply."), ("two", "Another reply.")):
        rollout = Rollout("q", "q", "test", "Is it?", reply)
        write_rollouts(tmp_path / name / "rollouts.jsonl", [rollout], [Score(1.0)])
        entries.append(entry(name, {"value": 0.5}, runs=(str(tmp_path / name),)))
    table = ReplyTable("Questions", "Each", (Column("Reply", "reply"),))
    text = page(*entries, presentation=replace(SAID, table=table))
    assert Page(text).headings[1] == "Questions"
    assert "One reply." in text and "Another reply." in text and 'href="#reply/' not in text


def test_a_metric_that_the_task_does_not_draw_is_drawn_without_a_band():
    figures = {"value": 0.9, "low": 0.8, "high": 0.95}
    both = entry("one", figures), entry("two", figures)
    text = page(*both, presentation=replace(SAID, charts=()))
    assert text.count("<svg ") == 1 and "Band: what noise" not in text
    assert Page(text).headings[0] == "Estimates and intervals"
    assert "two against one" in text.split("</title>")[0]


def test_a_distance_from_two_references_says_so_in_its_rows():
    both = entry("one", {"value": 0.9}), entry("two", {"value": 0.5})
    row = {"before": 0.9, "after": 0.5, "verdict": "better", "p_holm": 0.01}
    text = page(*both, row=row, own_references=("flip_rate",))
    table = text.split('aria-label="Every entry"')[1].split("</table>")[0]
    assert table.count(OWN_REFERENCE) == 1
    assert f"Flip rate of one and two: {OWN_REFERENCE}." in text.replace("flip rate", "Flip rate")
    assert OWN_REFERENCE not in page(*both, row=row)


def test_what_stood_in_for_a_model_is_told_with_the_entries_that_it_did():
    figures = {"value": 0.5, "low": 0.4, "high": 0.6}
    text = page(
        entry("a", figures, caveats=("It is tiny.",)),
        entry("b", figures, caveats=("no model judges", "It is tiny.")),
    )
    assert "b: no model judges." in text and text.count("a, b: It is tiny.") == 1


def test_an_alert_leads_to_its_own_comparison():
    figures = {"value": 0.9}
    text = page(entry("one", figures), entry("two", figures), row={"verdict": "worse"})
    assert 'See <a href="#verdicts-1">two against one</a>' in text
