"""The report as a file: what stands in it, and that nothing in it can act or reach out."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from equipoise.report.head import LOCAL_MODEL_NOTE
from equipoise.report.renderers import marked
from equipoise.report.report import describe_provenance, write_report
from tests.refusals import refusal

SCRIPT = "<script>alert('\u00e9')</script>"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags, attributes and texts of a page; fails on a tag that is not closed where it should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
            return
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    @property
    def has_no_script_of_others(self) -> bool:
        """Its replies, packed, and the project's script: the one that may run."""
        if not self.scripts:
            return "script" not in self.tags
        data, script = self.scripts
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = next(v for n, v in self.attributes if n == "content" and "default-src" in v)
        allowed = re.findall(r"script-src ([^;]*)", policy)
        return allowed == [f"'sha256-{digest}'"] and bool(re.fullmatch("[A-Za-z0-9+/=]+", data))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def edit_rollouts(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in run.glob("*/rollouts.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            change(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_finished_run_has_every_section_in_order(finished_report: str) -> None:
    assert Page(finished_report).headings == [
        "One counterfactual set",
        "Disparity",
        "Metrics and verdicts",
        "Training",
        "By race",
        "By decision field",
        "By injury",
        "Intersections",
        "More counterfactual sets",
        "All replies",
        "Failures",
        "Provenance",
    ]


def test_head_names_the_run_and_its_outcome(finished_report: str) -> None:
    text = Page(finished_report).text
    assert "Fairness: local" in text
    assert (
        "The disparity ratio fell from 1.39 (95% CI 1.34\u20131.44) to 1.03 (1.02\u20131.04); "
        "sampling noise alone gives 1.012." in text
    )
    assert "Better: disparity ratio, Gini coefficient, variance of the race means" in text
    assert "Worse: case error, decision spread." in text
    assert LOCAL_MODEL_NOTE in text
    assert "not finished" not in text


def test_worst_news_follows_the_outcome_and_leads_to_its_section(finished_report: str) -> None:
    text = Page(finished_report).text
    worse = "Worse: case error, 0.210 before and 0.290 after training. See Metrics and verdicts ."
    assert text.index("The disparity ratio fell") < text.index(worse) < text.index("Metrics ")
    assert '<a href="#verdicts">Metrics and verdicts</a>' in finished_report


def test_contents_list_every_section_and_nothing_else(finished_report: str) -> None:
    nav = finished_report.split("<nav", 1)[1].split("</nav>", 1)[0]
    linked = re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', nav)
    headings = re.findall(r'<h2 id="([\w-]+)">([^<]+)</h2>', finished_report)
    assert linked == headings
    assert len(linked) == 12


def test_an_alert_about_a_section_that_is_not_there_has_no_link(finished_run: Path) -> None:
    edit_rollouts(finished_run, lambda row: row.update(value=1.0))
    text = page(finished_run).text
    assert "GRPO learns nothing from such a prompt." in text
    assert "such a prompt. See" not in text  # there is no training history to see


def test_no_verdict_depends_on_its_colour(finished_report: str) -> None:
    for mark in ("\u2713 better", "\u2717 worse", "\u2194 changed", "\u2013 no evidence"):
        assert (f"<span>{mark}</span>" in finished_report) is ("changed" not in mark)
    guard = "guard not shown (a fall of 0.02 is allowed)"
    assert marked(guard) == f"? {guard}" and marked("one reply") == "one reply"


def test_report_is_written_whole_beside_the_run(finished_run: Path) -> None:
    before = {path.name for path in finished_run.iterdir()}
    assert write_report(finished_run) == finished_run / "report.html"
    assert {path.name for path in finished_run.iterdir()} == before | {"report.html"}


def test_note_on_the_local_model_needs_the_local_model(finished_run: Path) -> None:
    edit(finished_run / "provenance.json", lambda found: found.pop("local_model"))
    assert LOCAL_MODEL_NOTE not in page(finished_run).text


def test_unfinished_run_says_so(unfinished_report: str) -> None:
    found = Page(unfinished_report)
    assert "This run is not finished: training has reached step 57" in found.text
    assert "Before training the disparity ratio is 1.39" in found.text
    assert found.headings[:3] == ["One counterfactual set", "Disparity", "Metrics"]
    assert "After training" not in found.text


def test_empty_directory_gets_a_report(tmp_path: Path) -> None:
    found = page(tmp_path)
    assert "training has not begun" in found.text
    assert "There is no evaluation yet." in found.text
    assert found.headings == ["Provenance"]


@pytest.mark.parametrize("report", ["finished_report", "unfinished_report"])
def test_page_is_self_contained(report: str, request: pytest.FixtureRequest) -> None:
    text: str = request.getfixturevalue(report)
    found = Page(text)
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(found.tags)
    assert found.has_no_script_of_others
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)|@import", text)
    references = [v for n, v in found.attributes if n in ("src", "href", "xlink:href", "srcset")]
    assert all(value.startswith("#") for value in references)
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_ids_are_unique_and_every_reference_has_its_target(finished_report: str) -> None:
    found = Page(finished_report)
    ids = [value for name, value in found.attributes if name == "id"]
    used = {v[1:] for n, v in found.attributes if n == "xlink:href"}
    used |= {v for n, v in found.attributes if n == "aria-labelledby"}
    links = {v[1:] for n, v in found.attributes if n == "href"}
    used |= {link for link in links if not link.startswith("reply/")}  # which the script opens
    used |= {match for _, v in found.attributes for match in re.findall(r"url\(#(\w+)\)", v)}
    assert len(ids) == len(set(ids))
    assert used <= set(ids)


def test_charts_and_tables_speak_to_a_screen_reader(finished_report: str) -> None:
    charts = re.findall(r"<svg [^>]*>", finished_report)
    assert len(charts) > 10
    assert all('role="img"' in chart and 'aria-label="' in chart for chart in charts)
    assert not re.search(r"<th(?![^>]*scope=)[ >]", finished_report)


def test_two_renders_are_the_same_bytes(unfinished_run: Path, unfinished_report: str) -> None:
    assert write_report(unfinished_run).read_bytes() == unfinished_report.encode("utf-8")


def _hostile(row: dict[str, Any]) -> None:
    row["completion"] = f'{SCRIPT}"><img src=x onerror=alert(1)>'
    row["prompt"] = f"</pre>{SCRIPT}"
    row["error"] = {"kind": SCRIPT, "text": f"judge said {SCRIPT}"}
    row["metadata"] |= {"case": f"case {SCRIPT}", "gender": SCRIPT, SCRIPT: "key"}
    if "decision" in row["evidence"]:
        row["evidence"]["decision"] |= {"rationale": f"</q>{SCRIPT}", "medication": SCRIPT}
    else:
        row["evidence"]["unparseable"] = f"not one of: {SCRIPT}"


def test_hostile_replies_and_metadata_are_shown_as_text(finished_run: Path) -> None:
    edit_rollouts(finished_run, _hostile)
    found = page(finished_run)
    assert found.has_no_script_of_others
    assert "img" not in found.tags
    for shown in (f"</q>{SCRIPT}", f"</pre>{SCRIPT}", f"judge said {SCRIPT}", f"gender {SCRIPT}"):
        assert shown in found.text


def test_hostile_names_are_shown_as_text(finished_run: Path) -> None:
    def rename_race(found: dict[str, Any]) -> None:
        found["by_race"] = {f"{SCRIPT}$\\frac$": found["by_race"]["White"]}
        found["model"] = SCRIPT

    for stage in ("baseline", "final"):
        edit(finished_run / stage / "evaluation.json", rename_race)
    edit(finished_run / "provenance.json", lambda found: found.update({SCRIPT: {SCRIPT: SCRIPT}}))
    (finished_run / "config.yaml").write_text(f"</pre>{SCRIPT}", encoding="utf-8")
    found = page(finished_run)
    assert found.has_no_script_of_others
    assert found.text.count(SCRIPT) > 5


def test_text_of_every_script_is_kept_and_invisible_marks_are_shown(finished_run: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["completion"] = "\u0645\u0631\u062d\u0628\u0627 \u65e5\u672c \U0001f9ea"
        row["evidence"] = {"unparseable": "\u202egnorts\u202c \x00 \ud800"}

    edit_rollouts(finished_run, change)
    text = page(finished_run).text
    assert "\u0645\u0631\u062d\u0628\u0627 \u65e5\u672c \U0001f9ea" in text
    assert "\ufffdgnorts\ufffd \ufffd \ufffd" in text


def test_unknown_numbers_are_dashes(finished_run: Path) -> None:
    def forget(found: dict[str, Any]) -> None:
        found["metrics"]["disparity_ratio"] |= {"low": None, "high": None, "p": None}
        found["metrics"]["clinical_slope"] = {"value": None, "low": None, "high": None}
        found["by_race"]["White"] = {}
        found["by_race"]["Black"] = {"mean_invasiveness": None}
        del found["confidence"]

    def forget_tests(found: dict[str, Any]) -> None:
        found["metrics"]["gini"] = {"verdict": "no evidence", "p_holm": None, "difference": None}

    for stage in ("baseline", "final"):
        edit(finished_run / stage / "evaluation.json", forget)
    edit(finished_run / "comparison.json", forget_tests)
    text = page(finished_run).text
    assert "The disparity ratio fell from 1.39 to 1.03; sampling noise" in text
    assert "None" not in text
    assert not re.search(r"\bnan\b", text)
    assert re.search(r"severe minus mild cases; meant \u2013 \u2013", text)


def test_no_evidence_is_not_told_as_a_change(finished_run: Path) -> None:
    def unclear(found: dict[str, Any]) -> None:
        found["metrics"]["disparity_ratio"]["verdict"] = "no evidence"

    edit(finished_run / "comparison.json", unclear)
    assert "There is no evidence that the disparity ratio changed" in page(finished_run).text


def test_steps_that_were_added_are_one_line_of_the_head(finished_run: Path) -> None:
    path = finished_run / "provenance.json"
    assert "Steps added" not in page(finished_run).text
    grown = [{"from_step": 60, "steps": 120, "steps_before": 60}]
    edit(path, lambda found: found.update(grown=grown))
    assert "Steps added 120 in place of 60, from step 60" in page(finished_run).text
    edit(path, lambda found: found.update(grown=[3, {"from_step": SCRIPT, "steps": [SCRIPT]}]))
    assert "Steps added 0 in place of 0, from step 0" in page(finished_run).text


def test_charts_are_those_that_the_task_wants(finished_run: Path, finished_report: str) -> None:
    assert (
        "The band is what sampling noise alone gives, from race permuted within sets: 95% of"
        in (Page(finished_report).text)
    )
    for stage in ("baseline", "final"):
        edit(
            finished_run / stage / "evaluation.json",
            lambda found: found["presentation"].update(charts=[], charts_title=""),
        )
    assert "Before and after training" in page(finished_run).headings


def test_what_a_task_says_is_shown_as_text(finished_run: Path) -> None:
    def say(found: dict[str, Any]) -> None:
        said = found["presentation"]
        said |= {"title": SCRIPT, "charts_title": SCRIPT}
        said["words"] = {name: {"label": SCRIPT, "note": SCRIPT} for name in said["words"]}
        said["charts"] = [chart | {"axis": SCRIPT, "caption": SCRIPT} for chart in said["charts"]]
        said["table"] = {
            "title": SCRIPT,
            "note": SCRIPT,
            "columns": [{"title": SCRIPT, "key": "a"}],
        }

    for stage in ("baseline", "final"):
        edit(finished_run / stage / "evaluation.json", say)
    found = page(finished_run)
    assert found.has_no_script_of_others
    assert found.headings[1] == SCRIPT
    assert found.text.count(SCRIPT) > 20


def test_a_damaged_presentation_is_named(finished_run: Path) -> None:
    edit(
        finished_run / "final" / "evaluation.json",
        lambda found: found.update(presentation={"words": SCRIPT}),
    )
    with refusal("report.damaged-file", "words"):
        write_report(finished_run)


def test_a_task_that_says_nothing_gets_the_generic_parts(finished_run: Path) -> None:
    def reduce(found: dict[str, Any]) -> None:
        for name in ("by_race", "by_field", "by_case", "intersections", "presentation"):
            del found[name]
        found["task"] = "pubmedqa"
        found["metrics"] = {"accuracy": {"value": 0.7, "low": 0.66, "high": 0.74}}
        found["by_label"] = {"yes": {"accuracy": {"value": 0.8, "low": 0.7, "high": 0.9}}}

    for stage in ("baseline", "final"):
        edit(finished_run / stage / "evaluation.json", reduce)
    edit(finished_run / "provenance.json", lambda found: found.update(task="pubmedqa"))
    (finished_run / "comparison.json").unlink()
    edit_rollouts(finished_run, lambda row: row.update(metadata={}, evidence={}))
    found = page(finished_run)
    assert found.headings == [
        "Before and after training",
        "Metrics",
        "By label",
        "All replies",
        "Failures",
        "Provenance",
    ]
    assert "The accuracy is 0.700 (95% CI 0.660\u20130.740) before and 0.700" in found.text


def _plain(run: Path, metrics: dict[str, Any]) -> Page:
    """The page of a run that measured only these metrics, of a task that says nothing."""

    def reduce(found: dict[str, Any]) -> None:
        for name in ("by_race", "by_field", "by_case", "intersections", "presentation"):
            del found[name]
        found["metrics"] = metrics

    for stage in ("baseline", "final"):
        edit(run / stage / "evaluation.json", reduce)
    return page(run)


@pytest.mark.parametrize(
    ("metrics", "shown", "more"),
    [
        (("accuracy", "documents_read", "recall"), ["Accuracy", "Recall"], 1),
        (("documents_read", "accuracy"), ["Documents read"], 1),
        ([f"rate_{n}" for n in range(10)], [f"Rate {n}" for n in range(8)], 2),
    ],
)
def test_metrics_on_the_scale_of_the_first_are_drawn(
    finished_run: Path, metrics: list[str], shown: list[str], more: int
) -> None:
    values = {name: 7.3 if name == "documents_read" else 0.7 for name in metrics}
    found = _plain(finished_run, {n: {"value": v} for n, v in values.items()})
    labels = [value for name, value in found.attributes if name == "aria-label"]
    (label,) = [label for label in labels if label.startswith(f"{shown[0]} ")]
    assert [part.rsplit(" ", 4)[0] for part in label.split("; ")] == shown
    assert f"The table below has {more} more." in found.text


def test_metrics_without_a_value_are_not_drawn(finished_run: Path) -> None:
    found = _plain(finished_run, {"accuracy": {"value": None}})
    assert "Before and after training" not in found.headings


def test_replies_of_a_task_without_sets_are_shown_as_text(finished_run: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["metadata"] = {"question": f"Why {SCRIPT}?", SCRIPT: SCRIPT}
        row["prompt"], row["completion"] = f"</pre>{SCRIPT}", f"</pre>{SCRIPT}"
        row["components"] = {SCRIPT: 1.0}
        row["error"] = {"kind": "timeout", "text": f"judge said {SCRIPT}"}
        row["evidence"] = {SCRIPT: {SCRIPT: [SCRIPT, {SCRIPT: None}]}}

    edit_rollouts(finished_run, change)
    found = page(finished_run)
    assert found.has_no_script_of_others
    for shown in (f"</pre>{SCRIPT}", f"judge said {SCRIPT}"):
        assert shown in found.text


def test_only_the_first_metrics_are_drawn_before_the_fold(unfinished_run: Path) -> None:
    history = unfinished_run / "training_history.csv"
    names = [f"env/metric_{n}" for n in range(9)]
    rows = [["step", *names], *([str(step), *("1",) * 9] for step in (1, 2))]
    history.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")
    first, more = page(unfinished_run).text.split("More curves")
    assert "Metric 5" in first
    assert "Metric 6" not in first
    assert "Metric 6" in more


def test_curves_of_failures_are_named_by_kind(unfinished_run: Path) -> None:
    history = unfinished_run / "training_history.csv"
    history.write_text("step,failures,failures/rate_limit\n1,2,2\n2,1,1\n", encoding="utf-8")
    assert "Failures: rate limit" in page(unfinished_run).text


def test_history_that_is_cut_off_still_gives_curves(unfinished_run: Path) -> None:
    with (unfinished_run / "training_history.csv").open("a", encoding="utf-8") as file:
        file.write("58,0.7")
    found = page(unfinished_run)
    assert "training has reached step 58" in found.text
    assert "Clinical slope" in found.text


def test_column_without_numbers_has_no_curve(finished_report: str) -> None:
    labels = [value for name, value in Page(finished_report).attributes if name == "aria-label"]
    assert any(label.startswith("Reward over training steps") for label in labels)
    assert not any(label.startswith("KL") for label in labels)


@pytest.mark.parametrize("text", ['{"cut', "5", "[" * 100_000])
@pytest.mark.parametrize("name", ["baseline/rollouts.jsonl", "final/rollouts.jsonl"])
def test_damaged_rollouts_are_named(finished_run: Path, name: str, text: str) -> None:
    (finished_run / name).write_text(text, encoding="utf-8")
    with refusal("report.damaged-file", "rollouts.jsonl, line 1"):
        write_report(finished_run)


@pytest.mark.parametrize("text", ['{"cut', "[" * 100_000])
@pytest.mark.parametrize("name", ["provenance.json", "comparison.json", "baseline/evaluation.json"])
def test_damaged_file_is_named(finished_run: Path, name: str, text: str) -> None:
    (finished_run / name).write_text(text, encoding="utf-8")
    with refusal("report.damaged-file", Path(name).name):
        write_report(finished_run)


def test_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refusal("report.no-folder", "nowhere"):
        write_report(tmp_path / "nowhere")


def test_provenance_is_described_whatever_its_keys() -> None:
    found = describe_provenance(
        {"command": ["python", "a b.py"], "git": {"dirty": False}, "list": [1, None], "seed": 7}
    )
    assert found == (
        ("Command", "python 'a b.py'"),
        ("Git", (("dirty", "no"),)),
        ("List", "1, \u2013"),
        ("Seed", "7"),
    )
