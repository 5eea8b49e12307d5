"""`equipoise compare` on rows that an endpoint answered."""

import json
import shutil

import pytest

from equipoise.files.disk import read_json
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from tests.equipoise.report.test_report import Page
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import SMOKE, Model, started

pytestmark = pytest.mark.deep

FEW = ("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=50")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Audits a-1 to a-3, of as many seeds, each with the rows one and one--careful."""
    folder = tmp_path_factory.mktemp("results")
    model = Model()
    for seed in (1, 2, 3):
        words = (f"--output-dir={folder}", f"--run-name=a-{seed}", f"--seed={seed}", *FEW)
        ways = ("pubmedqa", f"--model=one={model.name}", "--system=careful=Be careful.")
        cache = f"equipoise.cache_dir={folder / 'cache'}"
        started("evaluate", SMOKE, *ways, *words, "--limit=12", cache)
    yield folder
    model.server.end()


def row(results, seed, name="one"):
    return results / "audits" / f"a-{seed}" / "pubmedqa" / name


def test_two_runs_are_compared_in_pairs(results, tmp_path):
    entries = (f"plain={row(results, 1)}", f"careful={row(results, 1, 'one--careful')}/baseline")
    said = started("compare", *entries, f"--output-dir={tmp_path}")
    content = read_json(tmp_path / "compare.json")
    assert [entry["name"] for entry in content["entries"]] == ["plain", "careful"]
    (pair,) = content["comparisons"]
    stages = (row(results, 1, name) / "baseline" for name in ("one", "one--careful"))
    plain, careful = (
        read_json(stage / "evaluation.json")["metrics"]["accuracy"]["value"] for stage in stages
    )
    told = pair["metrics"]["accuracy"]
    assert told["difference"] == pytest.approx(careful - plain)
    assert told["low"] < told["difference"] < told["high"]
    assert told["p_holm"] >= told["p"]
    assert pair["metrics"]["grounded_rate"]["guard"] in (
        "preserved",
        "not preserved",
        "inconclusive",
    )
    page = (tmp_path / "compare.html").read_text()
    assert "careful against plain" in page
    assert "Every entry" in said


def test_the_page_is_whole_and_nothing_in_it_can_act(results, tmp_path):
    entries = f"<img src>={row(results, 1)}", f"b={row(results, 1, 'one--careful')}"
    started("compare", *entries, f"--output-dir={tmp_path}")
    page = Page((tmp_path / "compare.html").read_text())
    assert "script" not in page.tags and "img" not in page.tags
    named = [pair for pair in page.attributes if not pair[0].startswith("xmlns")]
    assert not [value for name, value in named if name == "src" or "://" in value]
    assert "b against <img src>" in page.headings


def test_seeds_of_one_configuration_are_one_entry(results, tmp_path):
    entries = [
        f"{label}=" + ",".join(str(row(results, seed, name)) for seed in (3, 1, 2))
        for label, name in (("plain", "one"), ("careful", "one--careful"))
    ]
    started("compare", *entries, f"--output-dir={tmp_path}")
    content = read_json(tmp_path / "compare.json")
    assert [entry["seeds"] for entry in content["entries"]] == [[1, 2, 3]] * 2
    each = [
        read_json(results / "audits" / f"a-{n}" / "pubmedqa" / "compare.json")["comparisons"][0]
        for n in (1, 2, 3)
    ]
    differences = [pair["metrics"]["accuracy"]["difference"] for pair in each]
    told = content["comparisons"][0]["metrics"]["accuracy"]
    assert told["difference"] == pytest.approx(sum(differences) / 3)
    assert told["test"] == "Student's t over seeds"
    assert told["low"] <= told["difference"] <= told["high"]
    assert content["comparisons"][0]["items"] == [12, 12, 12]


def test_what_cannot_be_compared_is_refused(results, tmp_path):
    one, other = row(results, 1), row(results, 2)
    end = f"--output-dir={tmp_path}"
    assert "compare.other-prompts" in started("compare", f"{one}", f"{other}", end, code=2)
    words = (f"{one}", f"{other}", "--different-items", end)
    assert "compare.no-common-item" in started("compare", *words, code=2)
    mixed = f"x={one},{row(results, 2, 'one--careful')}"
    assert "entry.other-configuration" in started("compare", mixed, f"{one}", end, code=2)
    twice = f"x={one},{one}"
    assert "entry.repeated-seed" in started("compare", twice, f"{one}", end, code=2)
    assert "compare.repeated-name" in started("compare", f"{one}", f"{one}", end, code=2)
    same = (f"a={one}", f"b={one}/baseline")
    assert "compare.same-evaluation" in started("compare", *same, end, code=2)
    assert "run.no-run" in started("compare", f"{one}", str(tmp_path), end, code=2)
    assert "compare.too-few-entries" in started("compare", str(one), end, code=2)
    assert not (tmp_path / "compare.json").exists()


def test_the_shared_items_alone_where_that_is_asked_for(results, tmp_path):
    fewer = tmp_path / "fewer"
    shutil.copytree(row(results, 1), fewer)
    rollouts, scores = read_scored_rollouts(fewer / "baseline" / "rollouts.jsonl")
    write_rollouts(fewer / "baseline" / "rollouts.jsonl", rollouts[:16], scores[:16])
    evaluation = fewer / "baseline" / "evaluation.json"
    evaluation.write_text(json.dumps(read_json(evaluation) | {"n_rollouts": 16}))
    seal_run(fewer)
    entries = (f"all={row(results, 1)}", f"fewer={fewer}", f"--output-dir={tmp_path}")
    assert "compare.other-prompts" in started("compare", *entries, code=2)
    started("compare", *entries, "--different-items")
    content = read_json(tmp_path / "compare.json")
    assert content["comparisons"][0]["items"] == [8]
    assert content["allowed"] == ["different_items"]
    assert "although it is not alike" in (tmp_path / "compare.html").read_text()
