"""The report as a file: what stands in it, and that nothing in it can act or reach out."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from environments.presentation import Chart, Presentation
from equipoise.files.errors import EquipoiseError
from equipoise.report.renderers import marked
from equipoise.report.report import describe_provenance, run_document, write_report
from equipoise.report.run_files import RunFiles
from equipoise.run.directory import BaselineResult, Evaluation, Probe
from equipoise.run.ledger import GitState, Provenance
from equipoise.statistics.evaluation import Estimate
from tests.equipoise.report.conftest import PROVENANCE, edit_provenance, write_jsonl
from tests.refusals import refusal

SCRIPT = "<script>alert('\u00e9')</script>"
VOID = {"meta", "br"}
STAGES = ("baseline", "final")
#: What the task of fairness says, and another one need not.
ITS_OWN = ("by_race", "by_field", "by_case", "intersections", "presentation")


class Page(HTMLParser):
    """Tags, attributes and texts of a page; fails on a tag that is not closed where it should."""

    def __init__(self, text):
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

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        within = self.open[-1] if self.open else ""
        (self.scripts if within == "script" else self.texts).append(data)
        if within == "h2":
            self.headings.append(data)

    @property
    def has_no_script_of_others(self):
        """Its replies, packed, and the project's script: the one that may run."""
        if not self.scripts:
            return "script" not in self.tags
        data, script = self.scripts
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = next(v for n, v in self.attributes if n == "content" and "default-src" in v)
        allowed = re.findall(r"script-src ([^;]*)", policy)
        return allowed == [f"'sha256-{digest}'"] and bool(re.fullmatch("[A-Za-z0-9+/=]+", data))

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        """The values of an attribute."""
        return [value for attribute, value in self.attributes if attribute == name]


def page(run):
    return Page(write_report(run).read_text(encoding="utf-8"))


def edit(path, change):
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def edit_stages(run, change):
    for stage in STAGES:
        edit(run / stage / "evaluation.json", change)


def edit_rollouts(run, change):
    for path in run.glob("*/rollouts.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            change(row)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_steps(run, *columns):
    """A history of two steps with a 1 in every column."""
    rows = [{"step": step, **dict.fromkeys(columns, 1)} for step in (1, 2)]
    write_jsonl(run / "training_history.jsonl", rows)


class TestFinished:
    def test_has_every_section_in_order_and_in_its_contents(self, finished_report):
        headings = re.findall(r'<h2 id="([\w-]+)">([^<]+)</h2>', finished_report)
        assert [title for _, title in headings] == [
            *("By race", "One patient, four races", "Training, stage by stage", "Verdicts"),
            *("All metrics", "By subgroup", "All replies", "Provenance"),
        ]
        nav = finished_report.split("<nav", 1)[1].split("</nav>", 1)[0]
        assert re.findall(r'<a href="#([\w-]+)">([^<]+)</a>', nav) == headings

    def test_worst_news_follows_the_outcome_and_leads_to_its_section(self, finished_report):
        text = Page(finished_report).text
        places = [
            "Fairness: local",
            "White patients were sent to surgery 14.1",
            "Worse: case error, 0.210",
        ]
        places = [text.index(words) for words in (*places, "See Verdicts .")]
        assert places == sorted(places)
        assert '<a href="#verdicts">Verdicts</a>' in finished_report
        assert "not finished" not in text

    def test_no_verdict_depends_on_its_colour(self, finished_report):
        for mark in ("\u2713 better", "\u2717 worse", "\u2194 changed", "\u2013 no evidence"):
            assert (f"<span>{mark}</span>" in finished_report) is ("changed" not in mark)
        guard = "guard inconclusive (margin 0.02)"
        assert marked(guard) == f"? {guard}" and marked("one reply") == "one reply"

    def test_ids_are_unique_and_every_reference_has_its_target(self, finished_report):
        found = Page(finished_report)
        ids = found.values("id")
        links = [value[1:] for name in ("xlink:href", "href") for value in found.values(name)]
        used = {link for link in links if not link.startswith("reply/")}  # which the script opens
        used |= set(found.values("aria-labelledby"))
        used |= {match for _, v in found.attributes for match in re.findall(r"url\(#(\w+)\)", v)}
        assert len(ids) == len(set(ids))
        assert used <= set(ids)

    def test_charts_and_tables_speak_to_a_screen_reader(self, finished_report):
        charts = re.findall(r"<svg [^>]*>", finished_report)
        assert len(charts) > 10
        assert all('role="img"' in chart and 'aria-label="' in chart for chart in charts)
        assert not re.search(r"<th(?![^>]*scope=)[ >]", finished_report)
        labels = Page(finished_report).values("aria-label")
        assert any(label.startswith("Reward over training steps") for label in labels)
        assert not any(label.startswith("KL") for label in labels), "a column without numbers"


@pytest.mark.parametrize("report", ["finished_report", "unfinished_report"])
def test_page_is_self_contained(report, request):
    text = request.getfixturevalue(report)
    found = Page(text)
    assert {"link", "img", "iframe", "object", "base"}.isdisjoint(found.tags)
    assert found.has_no_script_of_others
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)|@import", text)
    names = ("src", "href", "xlink:href", "srcset")
    assert all(value.startswith("#") for name in names for value in found.values(name))
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_unfinished_run_says_so_in_the_same_bytes(unfinished_run, unfinished_report):
    found = Page(unfinished_report)
    assert "This run is not finished: training has reached step 57" in found.text
    assert "White patients were sent to surgery 14.1" in found.text
    assert found.headings[:2] == ["By race", "One patient, four races"]
    assert "After training" not in found.text
    before = {path.name for path in unfinished_run.iterdir()}
    path = write_report(unfinished_run)
    assert path.read_bytes() == unfinished_report.encode("utf-8")
    assert {path.name for path in unfinished_run.iterdir()} == before | {path.name}


def test_empty_directory_gets_a_report(tmp_path):
    found = page(tmp_path)
    assert "training has not begun" in found.text
    assert "Not evaluated yet." in found.text
    assert found.headings == ["Provenance"]


def test_an_alert_about_a_section_that_is_not_there_has_no_link(finished_run):
    edit_rollouts(finished_run, lambda row: row.update(value=1.0))
    text = page(finished_run).text
    assert "GRPO learns nothing from such a prompt." in text
    assert "such a prompt. See" not in text  # the run has no training history


def test_notes_and_charts_are_those_of_the_run_and_its_task(finished_run, finished_report):
    text = Page(finished_report).text
    assert PROVENANCE["local_model_notice"] in text
    assert "from race permuted within sets: 95% of" in text
    assert "Steps added" not in text
    grown = {"from_step": 60, "steps": 120, "steps_before": 60}
    edit_provenance(finished_run, local_model_notice=None, grown=[grown])
    edit_stages(
        finished_run, lambda found: found["presentation"].update(charts=[], charts_title="")
    )
    found = page(finished_run)
    assert PROVENANCE["local_model_notice"] not in found.text
    assert "Steps added 120 in place of 60, from step 60" in found.text
    assert "Before and after training" in found.headings


class TestHostile:
    """Whatever others wrote is text on the page."""

    def test_replies_and_metadata(self, finished_run):
        def change(row):
            row["completion"] = f'{SCRIPT}"><img src=x onerror=alert(1)>'
            row["prompt"] = f"</pre>{SCRIPT}"
            row["error"] = {"kind": "verifier_error", "text": f"judge said {SCRIPT}"}
            row["value"] = None
            row["metadata"] |= {"case": f"case {SCRIPT}", "gender": SCRIPT, SCRIPT: "key"}
            if "decision" in row["evidence"]:
                row["evidence"]["decision"] |= {"rationale": f"</q>{SCRIPT}", "medication": SCRIPT}
            else:
                row["evidence"]["unparseable"] = f"not one of: {SCRIPT}"

        edit_rollouts(finished_run, change)
        found = page(finished_run)
        assert found.has_no_script_of_others
        assert "img" not in found.tags
        for shown in (
            f"</q>{SCRIPT}",
            f"</pre>{SCRIPT}",
            f"judge said {SCRIPT}",
            f"gender {SCRIPT}",
        ):
            assert shown in found.text

    def test_replies_of_a_task_without_sets(self, finished_run):
        def change(row):
            row["metadata"] = {"question": f"Why {SCRIPT}?", SCRIPT: SCRIPT}
            row["prompt"], row["completion"] = f"</pre>{SCRIPT}", f"</pre>{SCRIPT}"
            row["components"] = {SCRIPT: 1.0}
            row["error"] = {"kind": "verifier_error", "text": f"judge said {SCRIPT}"}
            row["value"] = None
            row["evidence"] = {SCRIPT: {SCRIPT: [SCRIPT, {SCRIPT: None}]}}

        edit_rollouts(finished_run, change)
        assert page(finished_run).has_no_script_of_others

    @pytest.mark.parametrize("word", [SCRIPT, "a\u202e\x1b[31m\x00\ud800b"])
    def test_names_of_a_run_and_words_of_its_task(self, finished_run, word):
        def rename(found):
            found["by_race"] = {f"{word}$\\frac$": found["by_race"]["White"]}
            found["model"] = word
            said = found["presentation"]
            said |= {"title": word, "charts_title": word}
            said["words"] = {name: {"label": word, "note": word} for name in said["words"]}
            texts = {"axis": word, "caption": word}
            said["charts"] = [chart | texts for chart in said["charts"]]
            columns = [{"title": word, "key": "a"}]
            said["table"] = {"title": word, "note": word, "columns": columns}

        edit_stages(finished_run, rename)
        edit_provenance(finished_run, hashes={word: word}, run_name=word)
        (finished_run / "config.yaml").write_text(f"</pre>{word}", "utf-8", errors="replace")
        found = page(finished_run)
        shown = re.sub("[\u202e\x1b\x00\ud800]", "\ufffd", word)
        assert found.has_no_script_of_others
        assert found.headings[0] == shown
        assert found.text.count(shown) > 25
        text = (finished_run / "report.html").read_text(encoding="utf-8")
        assert not {"\u202e", "\x1b", "\x00"} & set(text) and "\\ud800" not in text

    def test_every_script_is_kept_and_invisible_marks_are_shown(self, finished_run):
        def change(row):
            row["completion"] = "\u0645\u0631\u062d\u0628\u0627 \u65e5\u672c \U0001f9ea"
            row["evidence"] = {"unparseable": "\u202egnorts\u202c \x00 \ud800"}

        edit_rollouts(finished_run, change)
        text = page(finished_run).text
        assert "\u0645\u0631\u062d\u0628\u0627 \u65e5\u672c \U0001f9ea" in text
        assert "\ufffdgnorts\ufffd \ufffd \ufffd" in text


def test_unknown_numbers_are_dashes(finished_run):
    def forget(found):
        found["metrics"]["disparity_ratio"] |= {"low": None, "high": None, "p": None}
        found["metrics"]["clinical_slope"] = {"value": None, "low": None, "high": None}
        found["by_race"]["White"] = {}
        del found["confidence"]

    untested = {"gini": {"verdict": "no evidence", "p_holm": None, "difference": None}}
    edit_stages(finished_run, forget)
    edit(finished_run / "comparison.json", lambda found: found["metrics"].update(untested))
    text = page(finished_run).text
    assert "surgery 14.1 percentage points more often than some" not in text
    assert "None" not in text
    assert not re.search(r"\bnan\b", text)
    assert re.search(r"severe minus mild cases; meant \u2013 \u2013", text)


def _plain(run, metrics, **more):
    """The page of a run that measured only these metrics, of a task that says nothing."""

    def reduce(found):
        for name in ITS_OWN:
            del found[name]
        found |= {"metrics": metrics, **more}

    edit_stages(run, reduce)
    return page(run)


def test_a_task_that_says_nothing_gets_the_generic_parts(finished_run):
    edit_provenance(finished_run, task="pubmedqa")
    (finished_run / "comparison.json").unlink()
    edit_rollouts(finished_run, lambda row: row.update(metadata={}, evidence={}))
    accuracy = {"accuracy": {"value": 0.7, "low": 0.66, "high": 0.74}}
    found = _plain(finished_run, accuracy, task="pubmedqa", by_label={"yes": accuracy})
    assert found.headings == [
        *("Before and after training", "All metrics", "By subgroup", "All replies", "Provenance"),
    ]
    assert "The accuracy is 0.700 (95% CI 0.660\u20130.740) before training and 0.700" in found.text


@pytest.mark.parametrize(
    ("metrics", "shown", "more"),
    [
        (("accuracy", "documents_read", "recall"), ["Accuracy", "Recall"], 1),
        (("documents_read", "accuracy"), ["Documents read"], 1),
        ([f"rate_{n}" for n in range(10)], [f"Rate {n}" for n in range(6)], 4),
    ],
)
def test_metrics_on_the_scale_of_the_first_are_drawn(finished_run, metrics, shown, more):
    values = {name: 7.3 if name == "documents_read" else 0.7 for name in metrics}
    found = _plain(finished_run, {n: {"value": v} for n, v in values.items()})
    (label,) = [v for v in found.values("aria-label") if v.startswith(f"{shown[0]} ")]
    assert [part.rsplit(" ", 4)[0] for part in label.split("; ")] == shown
    assert f"The table below has {more} more." in found.text


def test_greedy_replies_are_drawn_beside_greedy_ones():
    def accuracy(value):
        return {"accuracy": Estimate(value)}

    run = RunFiles(
        evaluations={
            "before": Evaluation(metrics=accuracy(0.4)),
            "after": Evaluation(metrics=accuracy(0.7)),
        },
        replies={"before": (), "after": ()},
        probe=Probe(
            baselines={"greedy": BaselineResult(metrics=accuracy(0.5))},
            trained_greedy=accuracy(0.9),
        ),
    )
    (chart,) = run_document(run).sections[0].charts
    assert "Accuracy, greedy 0.500 before, 0.900 after" in chart.svg


def test_metrics_without_a_value_are_not_drawn(finished_run):
    found = _plain(finished_run, {"accuracy": {"value": None}})
    assert "Before and after training" not in found.headings


def test_reward_and_objective_are_drawn_before_the_fold_and_failures_by_kind(unfinished_run):
    metrics = ("disparity_ratio", "gini")
    write_steps(unfinished_run, "reward", *(f"env/{n}" for n in metrics), "failures/rate_limit")
    first, more = page(unfinished_run).text.split("More curves")
    assert "the mean reward of its first and last 1 went from 1.000 to 1.000" in first
    assert (
        "Disparity ratio" in first and "Gini coefficient" not in first.split("stage by stage")[-1]
    )
    assert "Gini coefficient" in more and "Failures: rate limit" in more


def test_history_that_is_cut_off_still_gives_curves(unfinished_run):
    with (unfinished_run / "training_history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 58, "rew')
    found = page(unfinished_run)
    assert "training has reached step 57" in found.text
    assert "Clinical slope" in found.text


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("baseline/rollouts.jsonl", ('{"cut', "5", "[" * 100_000)),
        ("provenance.json", ('{"cut', "[" * 100_000)),
        ("comparison.json", ('{"cut',)),
        ("final/evaluation.json", ('{"cut', '{"presentation": {"words": "x"}}')),
    ],
)
def test_damaged_file_is_named(finished_run, name, texts):
    for text in texts:
        (finished_run / name).write_text(text, encoding="utf-8")
        with pytest.raises(EquipoiseError, match="words" if "words" in text else Path(name).name):
            write_report(finished_run)


def test_directory_that_is_not_there_is_named(tmp_path):
    with refusal("report.no-folder", "nowhere"):
        write_report(tmp_path / "nowhere")


def test_provenance_is_described_as_far_as_it_is_known():
    record = Provenance(command=("python", "a b.py"), git=GitState(dirty=False), seed=7)
    assert describe_provenance(record) == (
        *(("Command", "python 'a b.py'"), ("Git", (("dirty", "no"),))),
        ("Seed", "7"),
    )


def test_a_chart_without_a_figure_is_left_out():
    chart = Chart("gap", "points", "The gap.")
    by_race = Chart("surgery", "percent", "By race.", breakdown="by_race")
    section = {"by_race": {"White": {"surgery": {"value": None}}}}
    evaluation = {"metrics": {"gap": {"value": None}}, **section}
    run = RunFiles(
        evaluations={"before": Evaluation.model_validate(evaluation)},
        replies={"before": ()},
        presentation=Presentation(charts=(chart, by_race)),
    )
    assert "charts" not in [section.kind for section in run_document(run).sections]
