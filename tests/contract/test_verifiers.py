"""verifiers' own command asks a model, and its traces have the rewards of one call of `score`."""

import json
import os
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

import pytest
from aiohttp import web

from data_prep.fairness import PromptSettings, build_prompts
from environments.base import Message, PromptRecord
from environments.fairness import FairnessEnvironment
from environments.pubmedqa import PubMedQAEnvironment
from equipoise.commands.export.task import export_verifiers as export
from equipoise.run.rollouts import rollout_of
from tests.command import ROOT, finished, with_our_code
from tests.contract.gym.served import decision, made_run, rollout
from tests.contract.packages import VERIFIERS, missing
from tests.environments.chat.conftest import Server

pytestmark = pytest.mark.skipif(bool(missing("verifiers")), reason=missing("verifiers"))
GENERATIONS = 3
EVALUATE = """
import sys
from verifiers.v1.cli.eval.main import main
own, *others = " ".join(sys.argv[1:]).split(" -- ")
for words in others:
    main([*words.split(), *own.split()])
"""
VIGNETTES = build_prompts(PromptSettings(num_samples=96))
SETS = list(dict.fromkeys(r.set_id for r in VIGNETTES if r.split == "train"))[:4]
ASKED = [record for record in VIGNETTES if record.set_id in SETS]
REFERENCE = [rollout(r, decision(random.Random(n))) for n, r in enumerate(VIGNETTES)]
LOST = ASKED[0]
QUESTION = {"gold": "yes", "context": "RESULTS: Pain fell.", "question": "Does pain fall?"}


def question(number, metadata):
    asked = Message(role="user", content=f"{number}. Does pain fall?")
    return PromptRecord(f"q{number}", "pubmedqa", (asked,), f"q{number}", "train", metadata)


QUESTIONS = [question(1, QUESTION), question(2, QUESTION | {"gold": "no"}), question(3, {})]


@dataclass
class Model:
    """Decides by chance; of one prompt it says nothing."""

    rng: random.Random

    async def reply(self, _, question):
        asked = Server.asked(question)
        if asked == LOST.messages[-1]["content"]:
            return web.Response(status=400, text="too long")
        answer = self.rng.choice(("yes", "no", "maybe"))
        text = f'<reasoning>"Pain fell."</reasoning>\n<answer>{answer}</answer>'
        text = text if "Does pain fall?" in asked else decision(self.rng)
        return web.json_response(
            Server.completion(text) | {"model": "tested", "id": "1", "created": 0}
        )


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Task -> the episodes that verifiers' command leaves; all are of one process."""
    place, server = tmp_path_factory.mktemp("verifiers"), Server()
    server.behaviour = Model(random.Random(0)).reply
    less = [f"grpo.num_generations_per_prompt={GENERATIONS}"]
    fairness = [*ASKED, *(r for r in VIGNETTES if r.set_id not in SETS and r.split != "train")]
    runs = {
        "fairness": made_run(place / "fairness", "fairness", fairness, REFERENCE, less),
        "pubmedqa": made_run(place / "pubmedqa", "pubmedqa", QUESTIONS, words=less),
    }
    own = f"--client.base-url {server.url} --model tested --no-push --no-rich --output-dir {place}"
    words = [own]
    for task, run in runs.items():
        export(run, place / f"exported-{task}")
        words.append(f"-- equipoise-{task} --run.name out-{task}")
    words[-1] += f" -r {GENERATIONS}"
    words.append("-- equipoise-fairness --run.name out-centered --env.centered true")
    paths = [VERIFIERS.folder, ROOT, *(place / f"exported-{task}" for task in runs)]
    variables = with_our_code(PYTHONPATH=os.pathsep.join(map(str, paths)), PRIME_API_KEY="none")
    command = [sys.executable, "-W", "ignore", "-c", EVALUATE, *words]
    finished(command, cwd=place, env=variables)
    server.end()
    yield {name: lines(place / f"out-{name}" / "traces.jsonl") for name in (*runs, "centered")}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def prompt_of(trace):
    return trace["task"]["data"]["id"]


def replied(record, trace):
    (said,) = [n["message"]["content"] for n in trace["nodes"] if n.get("sampled")]
    return rollout_of(record, said)


def reward_of(trace):
    given = trace["rewards"].get("reward")
    return given and given["score"]


def test_the_rewards_of_a_set_are_those_of_one_call(episodes):
    environment = FairnessEnvironment(FairnessEnvironment.Settings())
    environment.set_reference(REFERENCE)
    of = {record.id: record for record in ASKED}
    whole = [episode for episode in episodes["fairness"] if episode["ok"]]
    assert len(whole) == len(SETS) - 1
    for episode in whole:
        traces = episode["traces"]
        assert len(traces) == 4 * GENERATIONS
        rollouts = [replied(of[prompt_of(trace)], trace) for trace in traces]
        expected = [score.value for score in environment.score(rollouts)]
        assert [reward_of(trace) for trace in traces] == pytest.approx(expected, abs=1e-12)
        assert len(set(expected)) > 1


def test_an_agents_replies_are_those_of_one_prompt(episodes):
    """So that a baseline by agent is that of the prompt, and not of the set."""
    for episode in episodes["fairness"]:
        prompts = defaultdict(set)
        for trace in episode["traces"]:
            prompts[trace["agent"]["name"]].add(prompt_of(trace))
        assert sorted(prompts) == [f"variant_{n}" for n in range(1, 5)]
        assert all(len(names) == 1 for names in prompts.values())
        assert len({name for names in prompts.values() for name in names}) == 4


def test_centered_rewards_have_their_prompt_s_baseline_under_the_mean_of_an_episode(episodes):
    """prime-rl's `grpo` subtracts that mean, and its `hierarchical_grpo` refuses our episodes."""
    environment = FairnessEnvironment(FairnessEnvironment.Settings())
    environment.set_reference(REFERENCE)
    of = {record.id: record for record in ASKED}
    of_sets = [episode["traces"] for episode in episodes["centered"]]
    asked = [traces for traces in of_sets if LOST.id not in map(prompt_of, traces)]
    assert len(asked) == len(SETS) - 1
    for traces in asked:
        scores = environment.score([replied(of[prompt_of(trace)], trace) for trace in traces])
        assert [score.value is not None for score in scores] == [trace["ok"] for trace in traces]
        valid = [trace for trace in traces if trace["ok"]]  # what prime-rl uses
        values = [trace["metrics"]["reward_of_environment"] for trace in valid]
        assert values == pytest.approx([s.value for s in scores if s.value is not None])
        of_prompt = defaultdict(list)
        for trace, value in zip(valid, values, strict=True):
            of_prompt[prompt_of(trace)].append(value)
        rewards = [reward_of(trace) for trace in valid]
        advantages = [reward - fmean(rewards) for reward in rewards]
        assert advantages == pytest.approx(
            [v - fmean(of_prompt[prompt_of(t)]) for t, v in zip(valid, values, strict=True)]
        )
        assert len({fmean(of_one) for of_one in of_prompt.values()}) > 1


def test_a_lost_reply_costs_its_set_alone(episodes):
    (lost,) = [episode for episode in episodes["fairness"] if not episode["ok"]]
    assert {prompt_of(trace).rpartition("/")[0] for trace in lost["traces"]} == {LOST.set_id}
    for trace in lost["traces"]:
        assert (trace["ok"], reward_of(trace)) == (False, None)
        told = trace["errors"][-1]["message"]
        assert ("too long" in told) if prompt_of(trace) == LOST.id else ("was lost" in told)


def test_single_replies_have_their_rewards_and_a_failure_has_none(episodes):
    environment = PubMedQAEnvironment(PubMedQAEnvironment.Settings())
    of = {record.id: record for record in QUESTIONS}
    traces = [trace for episode in episodes["pubmedqa"] for trace in episode["traces"]]
    assert len(traces) == len(QUESTIONS) * GENERATIONS
    for trace in traces:
        if prompt_of(trace) == QUESTIONS[-1].id:  # which has no answer to compare with
            assert (trace["ok"], reward_of(trace)) == (False, None)
            assert "verifier_error" in trace["errors"][-1]["message"]
            continue
        (score,) = environment.score([replied(of[prompt_of(trace)], trace)])
        assert (trace["ok"], reward_of(trace)) == (True, score.value)
        assert trace["metrics"] == pytest.approx(dict(score.components))


def test_what_decides_a_reward_is_in_no_task(episodes):
    for episode in episodes["pubmedqa"]:
        assert set(episode["task"]["data"]) >= {"id", "prompt_ids"}
        assert "gold" not in json.dumps(episode["task"]) + json.dumps(
            [trace["task"] for trace in episode["traces"]]
        )
