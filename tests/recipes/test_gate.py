"""`equipoise gate` on rows that an endpoint answered."""

import json
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from environments.base import Failure, Score
from equipoise.__main__ import main
from equipoise.commands.compare import GateOptions
from equipoise.config.words import read_options
from equipoise.files.records import read_unsealed, write_prompts
from equipoise.run.ledger import AuditRow, Ledger, Provenance, Subject
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from tests.command import ROOT
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import SMOKE, Model, started

pytestmark = pytest.mark.deep

KINDS = ("grounded", "false_quote", "false_number", "decisive_quote")
ROLLOUTS = Path("baseline", "rollouts.jsonl")
QUESTIONS = "equipoise.data.num_samples=256"
#: So wide that 48 questions with two replies each show that nothing changed.
WIDE = [f"--margin={name}=0.4" for name in ("reward", *(f"{n}_rate" for n in KINDS))]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Audits a-1 and a-2, of as many seeds, each with the rows one and one--careful."""
    folder = tmp_path_factory.mktemp("results")
    model = Model()
    for seed in (1, 2):
        words = (f"--output-dir={folder}", f"--run-name=a-{seed}", f"--seed={seed}")
        ways = ("pubmedqa", f"--model=one={model.name}", "--system=careful=Be careful.")
        cache = f"equipoise.cache_dir={folder / 'cache'}"
        started("evaluate", SMOKE, *words, *ways, "--limit=48", cache, QUESTIONS)
    yield folder / "audits"
    model.server.end()


@pytest.fixture
def row(results, tmp_path):
    """A copy of the plain row that a test may change."""
    return Path(shutil.copytree(results / "a-1" / "pubmedqa" / "one", tmp_path / "row"))


@pytest.fixture
def gate(tmp_path):
    def run(*words, code):
        said = StringIO()
        with pytest.raises(SystemExit) as ended, redirect_stdout(said), redirect_stderr(said):
            main(["gate", *map(str, words), f"--output-dir={tmp_path / 'gate'}"])
        assert int(ended.value.code or 0) == code, said.getvalue()
        assert "Traceback" not in said.getvalue()
        return " ".join(said.getvalue().split())

    return run


def content(folder):
    return json.loads((folder / "gate" / "gate.json").read_text())


def change(row, scored):
    """Write the replies of a row anew, each as it is told, and seal it as if it had done so."""
    path = row / ROLLOUTS
    pairs = zip(*read_scored_rollouts(path), strict=True)
    told = [pair for n, (r, s) in enumerate(pairs) if (pair := scored(n, r, s)) is not None]
    write_rollouts(path, [r for r, _ in told], [s for _, s in told])
    evaluation = row / "baseline" / "evaluation.json"
    counted = json.loads(evaluation.read_text()) | {"n_rollouts": len(told)}
    evaluation.write_text(json.dumps(counted))
    seal_run(row)


def test_a_model_against_itself(gate, results, row, tmp_path):
    """It passes by wide margins; by the task's own so few questions show nothing."""
    audit = f"{results}/a-1:one"
    assert "passed: the new model is within its margin in all 5 metrics" in gate(
        audit, row, *WIDE, code=0
    )
    assert content(tmp_path)["verdict"] == "passed"
    said = gate(audit, row, code=4)
    assert "not enough data" in said
    told = content(tmp_path)["tasks"]["pubmedqa"]
    assert (told["prompts"], told["objective"], told["left_out"]) == (48, "reward", 0)
    reward = told["metrics"]["reward"]
    assert reward["status"] == "inconclusive" and reward["change"] == 0
    assert reward["low"] < 0 < reward["high"]
    needed = max(metric["prompts_needed"] or 0 for metric in told["metrics"].values())
    assert needed >= reward["prompts_needed"] > 48
    assert f"about {needed:,} prompts in place of 48" in said


def test_a_side_that_a_stand_in_judged_says_so_below_what_was_found(gate, results, row, tmp_path):
    Ledger(row / "provenance.json").update(Provenance(stand_in="no model judges"))
    seal_run(row)
    said = gate(f"{results}/a-1:one", row, *WIDE, code=0)
    page = " ".join((tmp_path / "gate" / "gate.html").read_text().split())
    for text in (said, page):
        assert "the new model: no model judges." in text
        assert "were answered correctly with the old model" in text


def test_undecided_may_pass_and_is_skipped_in_junit(gate, results, row, tmp_path):
    junit = tmp_path / "gate.xml"
    said = gate(f"{results}/a-1:one", row, "--undecided=pass", f"--junit={junit}", code=0)
    assert "not enough data" in said
    suites = ET.fromstring(junit.read_text())
    assert not list(suites.iter("error"))
    assert len(list(suites.iter("skipped"))) == int(suites[0].get("skipped") or 0) > 0


def test_a_plan_says_the_replies_of_each_task(gate, results, tmp_path):
    said = gate(f"{results}/a-1:one", "--plan", code=0)
    assert "equipoise evaluate pubmedqa --plan" in said
    plan = json.loads((tmp_path / "gate" / "plan.json").read_text())
    (planned,) = plan["tasks"].values()
    assert planned["prompts"] == 48 and planned["replies"] > 2
    wide = gate(f"{results}/a-1:one", "--plan", *WIDE, code=0)
    narrow = planned["total"]
    plan = json.loads((tmp_path / "gate" / "plan.json").read_text())
    assert plan["tasks"]["pubmedqa"]["total"] < narrow and wide


def test_what_is_worse_fails_and_says_so_to_machines(gate, results, tmp_path):
    sides = (f"{results}/a-1:one", f"{results}/a-1:one--careful")
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    said = gate(*sides, f"--junit={junit}", f"--markdown={markdown}", code=3)
    assert "failed: " in said
    root = ET.fromstring(junit.read_text())
    (suite,) = root
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    told = "replies were not drawn alike: system prompt none and Be careful."
    assert told in (suite.findtext("system-out") or "") and told in " ".join(said.split())
    metrics = content(tmp_path)["tasks"]["pubmedqa"]["metrics"]
    assert len(cases) == len(metrics) == int(suite.get("tests") or 0)
    assert cases["reward (objective)"] == ["failure"]
    assert metrics["reward"]["status"] == "not preserved" and metrics["reward"]["p_holm"] < 0.05
    statuses = [metric["status"] for metric in metrics.values()]
    assert int(suite.get("failures") or 0) == statuses.count("not preserved")
    assert int(suite.get("errors") or 0) == statuses.count("inconclusive")
    page = markdown.read_text()
    assert page.startswith("## Gate: failed\n")
    assert "| pubmedqa | reward (objective) |" in page and told in page
    (differs,) = content(tmp_path)["tasks"]["pubmedqa"]["drawn_differently"]
    assert (differs["name"], differs["second"]) == ("system prompt", "Be careful.")
    assert "failed" not in gate(*reversed(sides), code=4)


def test_missing_scores_and_answers_are_no_pass(gate, results, row):
    before = f"{results}/a-1:one"
    failed = Score(None, error=Failure("transport_timeout", "no answer in time"))
    change(row, lambda n, r, s: (r, failed if n == 0 else s))
    said = gate(before, row, *WIDE, code=4)
    assert "1 replies after have no score" in said and "--resume of the evaluation" in said
    first = read_scored_rollouts(row / "baseline" / "rollouts.jsonl")[0][0].prompt_id
    change(row, lambda n, r, s: None if r.prompt_id == first else (r, s))
    said = gate(before, row, *WIDE, code=2)
    assert "compare.other-prompts" in said and "47 prompts" in said
    assert "equipoise evaluate all" in said


def test_as_many_replies_to_each_prompt(gate, results, row):
    """Else a model might leave out the replies to what is hard."""
    change(row, lambda n, r, s: None if n == 0 else (r, s))
    assert "1 prompts: 2 and 1 to" in gate(f"{results}/a-1:one", row, code=2)


def test_other_items_are_refused(gate, results):
    said = gate(f"{results}/a-1:one", f"{results}/a-2:one", code=2)
    assert "compare.other-prompts" in said and "--different-items" not in said


@pytest.mark.parametrize("number", [48, 8])
def test_items_that_it_was_trained_on_are_left_out_and_refused_where_these_are_all(
    gate, results, row, tmp_path, number
):
    """As where the seed of a run and that of the audit deal out other splits."""
    trained = Path(shutil.copytree(row, tmp_path / "trained"))
    prompts, asked = trained / "prompts.jsonl", read_scored_rollouts(row / ROLLOUTS)[0]
    names = list(dict.fromkeys(rollout.prompt_id for rollout in asked))[:number]
    records = [
        replace(record, split="train" if record.id in names else "test")
        for record in read_unsealed(prompts)
    ]
    write_prompts(prompts, records, {})
    audit = AuditRow(subject=Subject("one", str(trained / "final_checkpoint")))
    Ledger(row / "provenance.json").update(Provenance(audit=audit))
    seal_run(row)
    if number == 48:
        said = gate(f"{results}/a-1:one", row, code=2)
        assert "was trained on 48 of the 48 prompts" in said and "config.yaml" in said
        return
    said = gate(f"{results}/a-1:one", row, *WIDE, code=0)
    assert "pubmedqa: 8 prompts are left out, for the model was trained on them" in said
    told = content(tmp_path)["tasks"]["pubmedqa"]
    assert (told["prompts"], told["replies"], told["left_out"]) == (40, 80, 8)


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("nowhere", "a-1:one"), "gate.no-evaluation"),
        (("my/model@http://127.0.0.1:1/v1", "a-1:one"), "gate.no-evaluation"),
        (("a-1", "a-1:one"), "gate.several-rows"),
        (("a-1:two", "a-1:one"), "gate.unknown-row"),
    ],
)
def test_what_is_no_evaluation_is_refused(gate, results, sides, said):
    named = [f"{results}/{side}" if side.startswith("a-") else side for side in sides]
    assert said in gate(*named, code=2)


@pytest.mark.parametrize("margin", ["reward", "reward=0", "reward=nan", "=1", "no_metric=0.1"])
def test_what_is_no_margin_is_refused(gate, results, row, margin):
    gate(f"{results}/a-1:one", row, f"--margin={margin}", code=2)


def test_replies_that_were_changed_are_refused_by_their_file(gate, results, row):
    path = row / ROLLOUTS
    path.write_text(path.read_text().replace("So it is.", "So it isn't."))
    said = gate(f"{results}/a-1:one", row, code=1)
    assert str(ROLLOUTS) in said and "from a copy" in said


def test_a_task_of_one_side_alone_is_no_pass(gate, results, tmp_path):
    audit = Path(shutil.copytree(results / "a-1", tmp_path / "audit"))
    told = json.loads((audit / "audit.json").read_text())
    (audit / "audit.json").write_text(json.dumps(told | {"tasks": ["pubmedqa", "dharma"]}))
    shutil.copytree(audit / "pubmedqa" / "one", audit / "dharma" / "one")
    words = (f"{audit}:one", f"{results}/a-1:one", *WIDE)
    said = gate(*words, f"--junit={tmp_path / 'gate.xml'}", code=4)
    assert "dharma" in said and "was not evaluated on it" in said
    assert content(tmp_path)["missing"] == {"dharma": f"{results}/a-1:one"}
    assert 'name="dharma" tests="1" failures="0" errors="1"' in (tmp_path / "gate.xml").read_text()


def test_what_the_page_of_the_gate_runs_is_accepted():
    page = (ROOT / "docs" / "gate.md").read_text("utf-8")
    wrapped = re.findall(r'--wrap "([^"]+)"', page)
    lines = [line.partition("#")[0] for line in (*wrapped, *page.splitlines())]
    commands = [line for line in lines if line.startswith("equipoise gate")]
    options = [read_options(GateOptions, shlex.split(command)[2:]) for command in commands]
    run = ("results/TASK/RUN/baseline", "results/TASK/RUN/final")
    audit = tuple(f"results/audits/ship:{side}" for side in ("before", "after"))
    plan = (None, None)
    assert {(o.before, o.after) for o in options} == {run, audit, plan} and len(commands) == 4
    assert [o.plan for o in options].count(True) == 1
