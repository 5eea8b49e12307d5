"""docs/tutorial.md: its files work, its attack prints what it shows, its commands run in order."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
import yaml

from environments.base import TEST_SPLIT, PromptRecord, Rollout

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(
    r"```(\w*)\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL
)
MENDED = next(text for kind, text in BLOCKS if text.startswith("def reward"))
COMMANDS = [text for kind, text in BLOCKS if kind == "bash"]
ATTACK = next(text for text in COMMANDS if "from handover import reward" in text)
RUN = "uv run "


def files() -> dict[str, str]:
    """Path -> content of the files that the page has a reader write."""
    named = [re.match(r"# (\S+\.(?:py|yaml))\n", text) for _, text in BLOCKS]
    return {
        name[1]: text for name, (_, text) in zip(named, BLOCKS, strict=True) if name is not None
    }


def mended(code: str) -> str:
    """The file with the second reward in the place of the first."""
    replaced, times = re.subn(r"def reward.*?\n\n\n", f"{MENDED}\n\n", code, flags=re.DOTALL)
    assert times == 1
    return replaced


def module(code: str) -> ModuleType:
    made = ModuleType("handover")
    exec(code, vars(made))
    return made


def mean_reward(task: ModuleType, reply_to: Callable[[PromptRecord], str]) -> float:
    """What a policy earns on the test notes."""
    environment = task.Handover(task.Handover.Settings())
    notes = [r for r in task.build_prompts(task.PromptSettings()) if r.split == TEST_SPLIT]
    rollouts = [
        Rollout(r.id, r.set_id, r.split, r.messages[0]["content"], reply_to(r), r.metadata)
        for r in notes
    ]
    return fmean(score.value for score in environment.score(rollouts))


def copied(note: PromptRecord) -> str:
    return note.messages[0]["content"]


def test_cheap_replies_exploit_the_first_reward_and_not_the_mended_one() -> None:
    code = files()["handover.py"]
    first, second = module(code), module(mended(code))
    constants = [*(f"codeine {dose}" for dose in first.DOSES), "500 mg", first.ASK]
    assert max(mean_reward(first, lambda _, reply=reply: reply) for reply in constants) == 1
    assert mean_reward(first, copied) > 0.7
    assert max(mean_reward(second, lambda _, reply=reply: reply) for reply in constants) < 0.35
    assert mean_reward(second, copied) == 0
    assert mean_reward(second, lambda note: str(note.metadata["right"])) == 1


def test_a_guard_falls_where_a_dose_is_made_up() -> None:
    task = module(files()["handover.py"])
    environment = task.Handover(task.Handover.Settings())

    def measured(reply: str) -> dict[str, float]:
        told = {"right": task.ASK}
        rollout = Rollout("a", "a", TEST_SPLIT, "Gave codeine as charted.", reply, told)
        return environment.measure([rollout], environment.score([rollout])).point_estimates()

    assert measured("see chart") == {"right_rate": 1, "invented_rate": 0, "asking_rate": 1}
    assert measured("codeine 25 mg") == {"right_rate": 0, "invented_rate": 1, "asking_rate": 0}


def test_the_attack_prints_what_the_page_shows(tmp_path: Path) -> None:
    code = files()["handover.py"]
    shown = next(text for _, text in BLOCKS if text.startswith("0.0 500 mg"))
    replies = [line.split(" ", 1)[1] for line in shown.splitlines()]
    assert attack(code, tmp_path) == "".join(f"1.0 {reply}\n" for reply in replies)
    assert attack(mended(code), tmp_path) == shown


def attack(code: str, folder: Path) -> str:
    (folder / "handover.py").write_text(code)
    return run(ATTACK, folder)


def run(command: str, folder: Path) -> str:
    """A block of the page in this Python's environment, without `uv`."""
    shell = f'PATH="{Path(sys.executable).parent}:$PATH"\n{command.replace(RUN, "")}'
    done = subprocess.run(["bash", "-ec", shell], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
def test_its_commands_run_in_their_order(tmp_path: Path) -> None:
    """With few prompts and steps, of which nothing is learnt."""
    for name, text in files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(smallest(text) if path.suffix == ".yaml" else text)
    probe, train, again, compare = (text for text in COMMANDS if f"{RUN}equipoise" in text)
    assert "Best constant reply of" in run(probe, tmp_path)
    assert "Asking rate" in run(train, tmp_path)
    (tmp_path / "handover.py").write_text(mended(files()["handover.py"]))
    assert "finished: every stage ran, with 2 steps" in run(again, tmp_path)
    assert "mended against first" in run(compare, tmp_path)
    with pytest.raises(AssertionError, match="--different-environments"):
        run(compare.replace("--different-environments", ""), tmp_path)


def smallest(task: str) -> str:
    settings: dict[str, Any] = yaml.safe_load(task)
    settings["grpo"] |= {"max_num_steps": 2, "num_prompts_per_step": 8}
    settings["equipoise"]["data"]["num_samples"] = 60
    settings["equipoise"]["evaluation"] = {"generations": 2, "bootstrap_draws": 200}
    settings["equipoise"] |= {
        "stop_without_signal": False,
        "cache_dir": "cache",
        "local_model": {"steps": 20},
        "probe": {"prompts": 8, "constants": 4, "rounds": 1},
    }
    return yaml.safe_dump(settings)
