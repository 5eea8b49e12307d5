"""prime-rl's own configuration code loads what an export prints for it and what the page shows.

`PRIME_RL_PATH` names a checkout of prime-rl: its package prime-rl-configs is pure Python, and
needs what verifiers brings.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from equipoise.commands.export.task import export_verifiers as export
from tests.command import ROOT, finished, with_our_code
from tests.contract.gym.served import made_run
from tests.contract.packages import VERIFIERS, missing
from tests.contract.test_elsewhere import block
from tests.contract.test_verifiers import ASKED, QUESTIONS, REFERENCE, VIGNETTES

CONFIGS = Path(os.environ.get("PRIME_RL_PATH", "")) / "packages" / "prime-rl-configs" / "src"
HERE = "" if CONFIGS.is_dir() else "PRIME_RL_PATH names no checkout of prime-rl"
pytestmark = pytest.mark.skipif(
    bool(HERE or missing("verifiers")), reason=HERE or missing("verifiers")
)
GENERATIONS = 4
LOAD = """
import json, sys, tomllib
from prime_rl.configs.rl import RLConfig
for text in json.load(sys.stdin):
    try:
        orchestrator = RLConfig.model_validate(tomllib.loads(text)).orchestrator
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
        continue
    (source,), evaluated = orchestrator.train.source, orchestrator.eval
    print(json.dumps({
        "module": type(source.env).__module__,
        "algo": source.algo.type,
        "group_size": source.group_size,
        "centered": source.env.centered,
        "generations": source.env.generations,
        "validation": [one.env.taskset.validation for one in evaluated.source] if evaluated else [],
    }))
"""
#: What else a configuration needs.
WHOLE = 'model.name = "Qwen/Qwen3-0.6B"\n{}\n[trainer]\n'
SOURCE = '[[orchestrator.train.source]]\nenv.taskset.id = "equipoise-{}"\n'
HIERARCHICAL = """
[orchestrator.algo]
type = "hierarchical_grpo"
episode_agents = ["variant_1", "variant_2", "variant_3", "variant_4"]
"""


def said_by_export(lines, task):
    """A source of the task with the keys that the export prints."""
    (said,) = [line.removeprefix("prime-rl: ") for line in lines if line.startswith("prime-rl: ")]
    return SOURCE.format(task) + said.partition(";")[0].replace(", ", "\n")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    place = tmp_path_factory.mktemp("prime_rl")
    words = [f"grpo.num_generations_per_prompt={GENERATIONS}"]
    fairness = [*ASKED, *(r for r in VIGNETTES if r.split != "train")]
    runs = {
        "fairness": made_run(place / "fairness", "fairness", fairness, REFERENCE, words),
        "pubmedqa": made_run(place / "pubmedqa", "pubmedqa", QUESTIONS, words=words),
    }
    said = {task: export(run, place / f"exported-{task}") for task, run in runs.items()}
    texts = {task: said_by_export(lines, task) for task, lines in said.items()}
    texts |= {
        "page": block("verifiers", "toml"),
        "hierarchical": SOURCE.format("fairness") + HIERARCHICAL,
        "no such key": SOURCE.format("fairness") + "env.centred = true\n",
    }
    paths = [VERIFIERS.folder, CONFIGS, ROOT, *(place / f"exported-{task}" for task in runs)]
    printed = finished(
        [sys.executable, "-W", "ignore", "-c", LOAD],
        input=json.dumps([WHOLE.format(text) for text in texts.values()]),
        cwd=place,
        env=with_our_code(PYTHONPATH=os.pathsep.join(map(str, paths))),
    )
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return dict(zip(texts, answers, strict=True))


def test_the_keys_that_an_export_prints_are_taken(loaded):
    assert loaded["fairness"] == {
        "module": "equipoise_fairness",
        "algo": "grpo",
        "group_size": 1,
        "centered": True,
        "generations": GENERATIONS,
        "validation": [],
    }
    single = {"module": "equipoise_pubmedqa", "group_size": GENERATIONS, "centered": False}
    assert loaded["pubmedqa"] == loaded["fairness"] | single | {"generations": 1}


def test_the_page_s_part_of_a_configuration_is_taken(loaded):
    assert loaded["page"] == loaded["fairness"] | {"validation": [True]}


def test_what_the_page_says_is_refused_is(loaded):
    """Also an unknown key: so the keys above are read."""
    reason = "'hierarchical_grpo' requires a proposer-solver env|needs a proposer-solver env"
    assert re.search(reason, loaded["hierarchical"]["refused"])
    assert "centred" in loaded["no such key"]["refused"]
