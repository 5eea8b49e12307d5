"""Sampling in parts: a process that is killed costs the part in the making, and no bit."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_prep.tiny_model import Example, warm_start
from data_prep.warm_start import WarmStart
from environments.base import PromptRecord, Rollout
from equipoise.models.causal import LoadedModel, load_model
from equipoise.run.directory import RunDirectory
from equipoise.run.usage import Meter
from equipoise.train.local import generation
from equipoise.train.local.generation import Sampling, sample
from equipoise.train.stages.parts import KeptParts

ROOT = Path(__file__).resolve().parents[4]
RECORDS = [
    PromptRecord(f"p{i}", "toy", ({"role": "user", "content": f"Q{i}"},), f"s{i}", "test")
    for i in range(10)
]
SAMPLING = Sampling(3, 12, 1.0, 1.0, None, 6, 7)  # five batches of two prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    shown = [Example(({"role": "user", "content": f"Q{i}"},), f"A{i}") for i in range(10)]
    size = WarmStart(vocab_size=300, hidden_size=16, layers=1, steps=1, batch_size=4)
    return str(warm_start(shown, size, tmp_path_factory.mktemp("cache")))


def opened(model: str) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(model, model, dtype=torch.float32, device=torch.device("cpu"))


def drawn(
    loaded: LoadedModel, root: Path | None = None, decided_by: str = "this"
) -> tuple[list[Rollout], Meter, list[int]]:
    """All rollouts, what was counted, and how many there were whenever progress was told."""
    meter, told = Meter(), list[int]()
    job = SimpleNamespace(run=RunDirectory(root), meter=meter) if root else None
    kept = KeptParts(job, "baseline", RECORDS, decided_by) if job else None  # type: ignore[arg-type]
    rollouts = sample(loaded, RECORDS, SAMPLING, told.append, meter.add_tokens, kept)
    return rollouts, meter, told


def kill_within(part: int) -> None:
    """This process dies while it generates the part."""
    left, batch = [part], generation._sample_batch

    def dying(*arguments: object) -> object:
        if left[0] == 0:
            sys.stdout.flush()
            signal.raise_signal(signal.SIGKILL)
        left[0] -= 1
        return batch(*arguments)  # type: ignore[arg-type]

    generation._sample_batch = dying  # type: ignore[assignment]


def kill_before_seal(part: int) -> None:
    """This process dies between the writing of the part and its seal."""
    from equipoise.train.stages import parts

    seal = parts.seal_file

    def dying(path: Path) -> None:
        if path.name == f"part-{part:05}.jsonl":
            signal.raise_signal(signal.SIGKILL)
        seal(path)

    parts.seal_file = dying


def killed(model: str, root: Path, kill: Callable[[int], None], part: int) -> None:
    """Draw in a process of its own that dies there."""
    code = (
        f"from pathlib import Path; from tests.equipoise.train.local.test_generation import *; "
        f"{kill.__name__}({part}); drawn(opened({model!r}), Path({str(root)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.deep
def test_a_draw_that_is_killed_between_and_within_parts_is_that_of_an_uninterrupted_one(
    model: str, tmp_path: Path
) -> None:
    killed(model, tmp_path, kill_within, 2)
    folder = tmp_path / "parts" / "baseline"
    parts = sorted(path.name for path in folder.glob("*.jsonl"))
    assert parts == ["part-00000.jsonl", "part-00001.jsonl"]
    before = [(folder / name).stat().st_mtime_ns for name in parts]
    killed(model, tmp_path, kill_before_seal, 3)
    loaded = opened(model)
    whole, whole_meter, _ = drawn(loaded)
    rollouts, meter, told = drawn(loaded, tmp_path)
    assert rollouts == whole
    assert len({rollout.completion for rollout in whole}) > 5
    assert told == [6, 12, 18, 24, 30]
    assert [(folder / name).stat().st_mtime_ns for name in parts] == before  # not drawn again
    # The stage's account has all tokens, the run's what this process has added.
    assert meter.tokens == whole_meter.tokens
    assert 0 < meter.usage()["completion_tokens"] < whole_meter.usage()["completion_tokens"]


def test_the_callers_random_state_is_left_as_it_was(model: str, tmp_path: Path) -> None:
    loaded = opened(model)
    states = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn(loaded, tmp_path)
        states.append(torch.get_rng_state())
    torch.manual_seed(1)
    assert all(torch.equal(state, torch.get_rng_state()) for state in states)


@pytest.mark.parametrize("damaged", ["", "the part", "the list"])
def test_parts_of_something_else_and_damaged_ones_are_drawn_again(
    model: str, tmp_path: Path, damaged: str
) -> None:
    loaded = opened(model)
    whole, *_ = drawn(loaded, tmp_path)
    folder = tmp_path / "parts" / "baseline"
    part = folder / "part-00001.jsonl"
    if damaged == "the part":
        part.write_text(part.read_text().replace('"completion": "', '"completion": "forged '))
    elif damaged == "the list":
        (folder / "part-00001.jsonl.complete").write_text("[]")
    rollouts, meter, _ = drawn(loaded, tmp_path, "this" if damaged else "another model")
    assert rollouts == whole
    assert "forged" not in part.read_text()
    fresh, all_of_it = meter.usage()["completion_tokens"], meter.tokens["completion_tokens"]
    assert 0 < fresh < all_of_it if damaged else fresh == all_of_it
