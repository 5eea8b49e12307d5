"""Every command that reads a run, on runs whose files are not as they were written."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Rollout
from equipoise.config import Options, load_config
from equipoise.models.task_environment import make_environment
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import write_rollouts
from equipoise.run.seals import record_files
from equipoise.statistics.compare import compare, comparison_dict
from equipoise.terminal.console import Reporter
from equipoise.train.pipeline import start_run
from equipoise.train.stages.around_training import write_evaluation
from tests.command import ROOT
from tests.contract.gym.served import decision, rollout
from tests.equipoise.checkpoints.samples import SIZES, random_weights, save_adapter
from tests.equipoise.report.conftest import write_json
from tests.equipoise.sealing import seal_run
from tests.recipes.audits import started

pytestmark = pytest.mark.deep

FEW = ("equipoise.evaluation.bootstrap_draws=50", "equipoise.evaluation.permutations=20")
GENERATIONS = 4


def replies(records: list[Any], seed: int) -> list[Rollout]:
    rng = random.Random(seed)
    return [rollout(r, decision(rng)) for r in records for _ in range(GENERATIONS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fairness run, as its stages leave it, but for what a model has to be there for."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    run.root.mkdir()
    words = (*FEW, f"equipoise.cache_dir={run.root.parent / 'cache'}")
    loaded = load_config(
        "fairness", Options((ROOT / "nemo_configs/smoke.yaml",), assignments=words)
    )
    records = build_prompts(PromptSettings(num_samples=96))
    start_run(loaded, records, Reporter(), run, "run")
    environment: Any = make_environment(loaded.environment_class, loaded.env_settings)
    reference = replies(records, seed=0)
    write_rollouts(run.reference, reference)
    environment.set_reference(reference)
    tested, measured = [r for r in records if r.split == "test"], []
    settings = loaded.config.equipoise.evaluation
    for seed, stage in enumerate(("baseline", "final"), start=1):
        drawn = replies(tested, seed)
        scores = environment.score(drawn)
        write_evaluation(run, stage, environment, drawn, scores, settings, "tiny", {})
        measured.append(environment.measure(drawn, scores))
    write_json(run.comparison, comparison_dict(compare(*measured, settings.statistics)))
    final = run.final_checkpoint
    write_json(final / "adapter_config.json", {"base_model_name_or_path": "org/base", "r": 1})
    save_file({"a": np.zeros(8, np.float32)}, final / "adapter_model.safetensors")
    stages = (run.evaluation(stage).parent for stage in ("baseline", "final"))
    record_files(run, run.reference, *stages, run.comparison, final)
    return run.root


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def edited(change: Callable[[list[str]], list[str]]) -> Callable[[Path], str]:
    def edit(run: Path) -> str:
        path = run / "final" / "rollouts.jsonl"
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
        return "final/rollouts.jsonl"

    return edit


def a_third_changed(lines: list[str]) -> list[str]:
    """Other replies with the scores of the old ones, in as many bytes."""
    rows = [json.loads(line) for line in lines]
    for row in rows[::3]:
        row["completion"] = "x" * len(row["completion"])
    return [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]


def without(*keys: str) -> Callable[[Path], str]:
    def remove(run: Path) -> str:
        path = run / "provenance.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in content.items() if k not in keys}))
        return "run.no-seals"

    return remove


def deleted(name: str) -> Callable[[Path], str]:
    def delete(run: Path) -> str:
        (run / name).unlink()
        return name

    return delete


DAMAGES = {
    "replies are gone": deleted("final/rollouts.jsonl"),
    "the evaluation is gone": deleted("final/evaluation.json"),
    "prompts are gone": deleted("prompts.jsonl"),
    "the reference is gone": deleted("reference.jsonl"),
    "the configuration is gone": deleted("config.yaml"),
    "the provenance is gone": deleted("provenance.json"),
    "the last line is lost": edited(lambda lines: lines[:-1]),
    "the last line is doubled": edited(lambda lines: [*lines, lines[-1]]),
    "half of the replies are gone": edited(lambda lines: lines[::2]),
    "a third of the replies is changed": edited(a_third_changed),
    "the provenance has no seal": without("sha256"),
    "there are no seals": without("sha256", "files"),
}
COMMANDS: dict[str, Callable[[Path, Path], tuple[str, ...]]] = {
    "compare": lambda run, out: (f"{run}/baseline", f"{run}/final", f"--output={out}"),
    "export gym": lambda run, out: (str(run), f"--output={out}"),
    "export verifiers": lambda run, out: (str(run), f"--output={out}"),
}


@pytest.mark.parametrize(
    ("command", "damage"),
    [*(("compare", damage) for damage in DAMAGES), *((c, "there are no seals") for c in COMMANDS)],
)
def test_what_is_not_as_it_was_written_is_refused_by_its_name(
    command: str, damage: str, run: Path, tmp_path: Path
) -> None:
    told = DAMAGES[damage](run)
    code = 2 if "seal" in damage else 1
    said = started(command, *COMMANDS[command](run, tmp_path / "out"), code=code)
    error = said[said.index("error [") :]
    assert told in error and "from a copy" in error
    assert len(error.splitlines()) == 2, error
    assert ("--unsealed" in error) is ("seal" in damage)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("command", ["compare", "export gym", "export verifiers"])
def test_a_run_without_seals_is_read_where_that_is_said_and_what_is_made_says_so(
    command: str, run: Path, tmp_path: Path
) -> None:
    without("sha256", "files")(run)
    said = started(command, *COMMANDS[command](run, tmp_path / "out"), "--unsealed")
    assert "no seals" in " ".join(said.split())
    made = [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".html", ".json")]
    pages = [path.read_text() for path in made]
    assert any("no seals: " in page or '"unsealed": [\n' in page for page in pages)
    if command == "compare":
        (page,) = (path.read_text() for path in made if path.suffix == ".html")
        assert "They were accepted with --unsealed" in page


@pytest.mark.parametrize("damage", ["a third of the replies is changed", "prompts are gone"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_flag_accepts_nothing_that_its_seal_shows_to_be_another(
    command: str, damage: str, run: Path, tmp_path: Path
) -> None:
    told = DAMAGES[damage](run)
    words = (*COMMANDS[command](run, tmp_path / "out"), "--unsealed")
    assert told in started(command, *words, code=1)


@pytest.mark.parametrize("damage", ["the last line is lost", "the last line is doubled"])
def test_lines_that_are_missing_are_found_without_seals_too(
    damage: str, run: Path, tmp_path: Path
) -> None:
    without("sha256", "files")(run)
    DAMAGES[damage](run)
    words = COMMANDS["compare"](run, tmp_path / "out")
    said = started("compare", *words, "--unsealed", code=1)
    assert "rollouts.other-count" in said


def test_a_torn_set_without_seals_is_one_clear_line(run: Path, tmp_path: Path) -> None:
    without("sha256", "files")(run)
    path = run / "final" / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["set_id"] = "another"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = COMMANDS["compare"](run, tmp_path / "out")
    assert "from a copy" in started("compare", *words, "--unsealed", code=1)


def test_stages_of_another_size_are_compared_with_a_warning(run: Path, tmp_path: Path) -> None:
    """Two runs may ask the same prompts a different number of times."""
    fewer = tmp_path / "fewer"
    shutil.copytree(run, fewer)
    without("sha256", "files")(fewer)
    path = fewer / "final" / "rollouts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for n, line in enumerate(lines) if n % GENERATIONS < 2))
    evaluation = json.loads((fewer / "final" / "evaluation.json").read_text())
    write_json(fewer / "final" / "evaluation.json", evaluation | {"n_rollouts": len(lines) // 2})
    words = (f"a={run}", f"b={fewer}", "--unsealed", f"--output={tmp_path / 'out'}")
    said = " ".join(started("compare", *words).split())
    told = f"do not have the same number of replies to these prompts: {len(lines)} against"
    assert told in said
    assert told in (tmp_path / "out" / "compare.html").read_text()


def weights_cut(run: Path) -> str:
    path = run / "final_checkpoint" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return "adapter_model.safetensors has"


def weights_changed(run: Path) -> str:
    path = run / "final_checkpoint" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    return "adapter_model.safetensors was changed"


def model_gone(run: Path) -> str:
    shutil.rmtree(run / "final_checkpoint")
    return "final_checkpoint is missing"


@pytest.mark.parametrize(
    "damage",
    [weights_cut, weights_changed, model_gone, without("sha256"), without("sha256", "files")],
)
@pytest.mark.parametrize("command", ["convert", "merge-lora", "evaluate"])
def test_a_model_that_is_not_the_one_that_was_trained_is_refused(
    command: str, damage: Callable[[Path], str], run: Path, tmp_path: Path
) -> None:
    told = damage(run)
    words: tuple[str, ...] = (str(run), str(tmp_path / "out"))
    if command == "evaluate":
        places = (f"--output-dir={tmp_path}", f"equipoise.cache_dir={tmp_path / 'cache'}")
        words = ("fairness", f"--model={run}", "--limit=4", *places)
    said = started(command, *words, code=2 if told == "run.no-seals" else 1)
    assert told in said and "from a copy" in said
    assert ("--unsealed" in said) is (told == "run.no-seals")


@pytest.mark.parametrize("command", ["convert", "merge-lora"])
def test_a_model_without_seals_is_converted_where_that_is_said_and_its_record_says_so(
    command: str, run: Path, tmp_path: Path
) -> None:
    base, final, out = tmp_path / "base", run / "final_checkpoint", tmp_path / "out"
    shape = LlamaConfig(**SIZES, tie_word_embeddings=False)
    random_weights(LlamaForCausalLM(shape)).save_pretrained(base)
    shutil.rmtree(final)
    save_adapter(base, final)
    for changed in (weights_cut, weights_changed):
        seal_run(run)
        kept = (final / "adapter_model.safetensors").read_bytes()
        told = changed(run)
        assert told in started(command, str(run), str(out), "--unsealed", code=1)
        (final / "adapter_model.safetensors").write_bytes(kept)
    without("sha256", "files")(run)
    said = started(command, str(run), str(out), "--unsealed")
    assert "accepted with --unsealed" in " ".join(said.split())
    record = json.loads((out / "conversion.json").read_text())
    assert record["source"]["unsealed"] == ["final_checkpoint"]


@pytest.mark.parametrize("damage", [weights_cut, weights_changed, without("sha256", "files")])
def test_training_goes_on_from_no_model_that_was_changed(
    damage: Callable[[Path], str], run: Path, tmp_path: Path
) -> None:
    told = damage(run)
    cache = f"equipoise.cache_dir={tmp_path / 'cache'}"
    words = (f"--model-name={run / 'final_checkpoint'}", cache, f"--output-dir={tmp_path}")
    said = started(
        "grpo_fairness",
        "--config=nemo_configs/smoke.yaml",
        *words,
        code=2 if told == "run.no-seals" else 1,
    )
    assert told in said
    assert "from a copy" in said
