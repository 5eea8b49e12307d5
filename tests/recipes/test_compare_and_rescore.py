"""`equipoise compare` and `equipoise rescore` on rows that an endpoint answered."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.files import read_json
from environments.base import Failure, Score
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from tests.equipoise.report.test_report import Page
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import SMOKE, Model, started

pytestmark = pytest.mark.deep

FEW = ("equipoise.evaluation.bootstrap_draws=200", "equipoise.evaluation.permutations=50")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
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


def row(results: Path, seed: int, name: str = "one") -> Path:
    return results / "audits" / f"a-{seed}" / "pubmedqa" / name


def test_two_runs_are_compared_in_pairs(results: Path, tmp_path: Path) -> None:
    entries = (f"plain={row(results, 1)}", f"careful={row(results, 1, 'one--careful')}/baseline")
    said = started("compare", *entries, f"--output={tmp_path}")
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
    assert pair["metrics"]["grounded_rate"]["guard"] in ("kept", "lost", "not shown")
    page = (tmp_path / "compare.html").read_text()
    assert "careful against plain" in page
    assert "Every entry" in said


def test_the_page_is_whole_and_nothing_in_it_can_act(results: Path, tmp_path: Path) -> None:
    entries = f"<img src>={row(results, 1)}", f"b={row(results, 1, 'one--careful')}"
    started("compare", *entries, f"--output={tmp_path}")
    page = Page((tmp_path / "compare.html").read_text())
    assert "script" not in page.tags and "img" not in page.tags
    named = [pair for pair in page.attributes if not pair[0].startswith("xmlns")]
    assert not [value for name, value in named if name == "src" or "://" in value]
    assert "b against <img src>" in page.headings


def test_seeds_of_one_configuration_are_one_entry(results: Path, tmp_path: Path) -> None:
    entries = [
        f"{label}=" + ",".join(str(row(results, seed, name)) for seed in (3, 1, 2))
        for label, name in (("plain", "one"), ("careful", "one--careful"))
    ]
    started("compare", *entries, f"--output={tmp_path}")
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


def test_a_dry_run_shows_the_comparison_and_writes_nothing(results: Path, tmp_path: Path) -> None:
    runs = [str(row(results, 1)), str(row(results, 1, "one--careful"))]
    told = started("compare", *runs, f"--output-dir={tmp_path / 'c'}", "--dry-run")
    assert "Every entry" in told
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_compared_is_refused(results: Path, tmp_path: Path) -> None:
    one, other = row(results, 1), row(results, 2)
    end = f"--output={tmp_path}"
    assert "compare.other-prompts" in started("compare", f"{one}", f"{other}", end, code=2)
    words = (f"{one}", f"{other}", "--different-items", end)
    assert "compare.no-common-item" in started("compare", *words, code=2)
    mixed = f"x={one},{row(results, 2, 'one--careful')}"
    assert "entry.other-configuration" in started("compare", mixed, f"{one}", end, code=2)
    twice = f"x={one},{one}"
    assert "entry.repeated-seed" in started("compare", twice, f"{one}", end, code=2)
    assert "compare.repeated-name" in started("compare", f"{one}", f"{one}", end, code=2)
    assert "run.no-run" in started("compare", f"{one}", str(tmp_path), end, code=2)
    assert "compare.too-few-entries" in started("compare", str(one), end, code=2)
    assert not (tmp_path / "compare.json").exists()


def test_the_shared_items_alone_where_that_is_asked_for(results: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(row(results, 1), fewer)
    rollouts, scores = read_scored_rollouts(fewer / "baseline" / "rollouts.jsonl")
    write_rollouts(fewer / "baseline" / "rollouts.jsonl", rollouts[:16], scores[:16])
    evaluation = fewer / "baseline" / "evaluation.json"
    evaluation.write_text(json.dumps(read_json(evaluation) | {"n_rollouts": 16}))
    seal_run(fewer)
    entries = (f"all={row(results, 1)}", f"fewer={fewer}", f"--output={tmp_path}")
    assert "compare.other-prompts" in started("compare", *entries, code=2)
    started("compare", *entries, "--different-items")
    content = read_json(tmp_path / "compare.json")
    assert content["comparisons"][0]["items"] == [8]
    assert content["allowed"] == ["different_items"]
    assert "although it is not alike" in (tmp_path / "compare.html").read_text()


def test_other_settings_change_scores_and_keep_the_old_ones(results: Path, tmp_path: Path) -> None:
    run = row(results, 1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    words = (str(run), "env.pubmedqa.tag_weight=0.5", f"--output={tmp_path / 'new'}")
    assert "24" in started("rescore", *words, "--dry-run")
    assert not (tmp_path / "new").exists()
    said = started("rescore", *words)
    assert "changed: env.pubmedqa.tag_weight: 0.2 -> 0.5" in said
    assert {path: path.read_bytes() for path in before} == before
    new = tmp_path / "new"
    _, old_scores = read_scored_rollouts(run / "baseline" / "rollouts.jsonl")
    _, new_scores = read_scored_rollouts(new / "baseline" / "rollouts.jsonl")
    more = [b.value - a.value for a, b in zip(old_scores, new_scores, strict=True)]
    assert more == pytest.approx([0.3 * 4] * 24)  # four tags in place
    kept = [json.loads(line) for line in (new / "baseline" / "scores_before.jsonl").open()]
    assert [each["value"] for each in kept] == [score.value for score in old_scores]
    told = read_json(new / "rescored.json")["stages"]["baseline"]
    assert (told["values_changed"], told["failed_now"], told["scored_now"]) == (24, 0, 0)
    assert told["reward_after"] - told["reward_before"] == pytest.approx(1.2)
    assert told["metrics"]["accuracy"]["difference"] == 0
    assert "were scored again" in (new / "report.html").read_text()
    provenance = read_json(new / "provenance.json")
    assert provenance["rescored"]["changes"] == {
        "env.pubmedqa.tag_weight": {"before": 0.2, "after": 0.5}
    }
    assert "rescore.existing-folder" in started("rescore", *words, code=2)
    compared = (f"old={run}", f"new={new}", f"--output={tmp_path / 'c'}")
    assert "not scored alike: env.pubmedqa.tag_weight" in started("compare", *compared, code=2)
    started("compare", *compared, "--different-environments")
    again = started("rescore", str(new), f"--output={tmp_path / 'n2'}")  # a run like any other
    assert read_json(tmp_path / "n2" / "rescored.json")["stages"]["baseline"]["values_changed"] == 0
    assert "What changed" in again


def test_only_what_failed_is_scored_again(results: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(row(results, 1), run)
    path = run / "baseline" / "rollouts.jsonl"
    rollouts, scores = read_scored_rollouts(path)
    failure = Failure("server_error", "the judge was away")
    scores[3] = Score(None, error=failure)
    scores[5] = Score(None, error=failure, evidence={"no_reply": True})
    write_rollouts(path, rollouts, scores)
    seal_run(run)
    words = (str(run), "--failed", "env.pubmedqa.tag_weight=0.5", f"--output={tmp_path / 'new'}")
    assert "│                2 │" in started("rescore", *words, "--dry-run")
    started("rescore", *words)
    _, after = read_scored_rollouts(tmp_path / "new" / "baseline" / "rollouts.jsonl")
    known = [n for n in range(len(scores)) if n not in (3, 5)]
    assert [after[n] for n in known] == [scores[n] for n in known]
    assert after[3].value is not None and after[3].value >= 2  # four tags of the new weight
    assert after[5].error == failure  # there is no reply that could be scored
    said = started("rescore", str(row(results, 1)), "--failed", f"--output={tmp_path / 'n'}")
    assert "no failed scores: nothing to rescore" in said
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("grpo.seed=9",), "and not grpo.seed"),
        (("equipoise.evaluation.generations=9",), "generations"),
        (("env.pubmedqa.tag_wait=1",), "tag_weight"),
    ],
)
def test_mistakes(words: tuple[str, ...], told: str, results: Path, tmp_path: Path) -> None:
    assert told in started("rescore", str(row(results, 1)), *words, code=2)


def test_a_dry_run_tells_how_often_a_generator_is_asked(tmp_path: Path) -> None:
    """Once for each reply, and for each prompt in the four other ways to answer it."""
    model = Model()
    audit = (f"--output-dir={tmp_path}", "--run-name=a", "rag", f"--model=one={model.name}")
    cache = f"equipoise.cache_dir={tmp_path / 'cache'}"
    started("evaluate", SMOKE, *audit, *FEW, cache, "--limit=12")
    model.server.end()
    run = tmp_path / "audits" / "a" / "rag" / "one"
    generator = "env.rag.generator.model_name=a/model"
    said = started("rescore", str(run), generator, cache, "--dry-run")
    rows = [line.replace("│", " ").split() for line in said.splitlines() if "<=" in line]
    rollouts, _ = read_scored_rollouts(run / "baseline" / "rollouts.jsonl")
    replies, prompts = len(rollouts), len({rollout.prompt_id for rollout in rollouts})
    assert rows == [
        ["baseline", str(replies), "<=", str(replies)],
        ["once", "for", "each", "prompt", "-", "<=", str(4 * prompts)],
    ]
