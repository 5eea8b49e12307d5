"""A report begins with its alerts, and trifles do not raise one."""

import math
from dataclasses import replace

from environments.base import Rollout, Score
from equipoise.report.head import alerts
from equipoise.report.run_files import Reply, RunFiles


def reply(prompt, value, unparseable=None):
    evidence = {} if unparseable is None else {"unparseable": unparseable}
    return Reply(Rollout(prompt, "s", "test", "", ""), Score(value, evidence=evidence))


def compared(verdict, guard=None):
    return {"verdict": verdict, "guard": guard, "before": 0.5, "after": 0.25}


def run(evaluations=None, replies=None, history=None, **verdicts):
    rows = {name: compared(*verdict.split(", ")) for name, verdict in verdicts.items()}
    return RunFiles(
        evaluations=evaluations or {"before": {}},
        comparison=rows,
        history=history or {},
        replies={"before": tuple(replies or ()), "after": ()},
    )


def told(found):
    return [alert.text for alert in alerts(found)]


def test_lost_guards_come_before_what_became_worse_and_good_news_is_none():
    guards = {
        "parse_rate": "no evidence, not preserved",
        "b": "worse, preserved",
        "d": "no evidence, inconclusive",
        "f": "no evidence, inconclusive",
        "g": "not measured, inconclusive",
    }
    found = told(run(**guards, accuracy="worse", a="better", c="no evidence", e="changed"))
    first = "Guard not preserved: parse rate"
    names = (first, "Worse: accuracy", "Worse, but within its margin: b")
    together = ["Guard inconclusive: d, f.", "Guard not measured: g."]
    figures = "0.500 before training and 0.250 after training."
    assert found == [*(f"{name}, {figures}" for name in names), *together]
    (once,) = told(run(b="worse, inconclusive"))
    assert once == f"Worse, perhaps by more than its margin: b, {figures}"


def test_policies_that_read_no_prompt_and_earn_more_are_told():
    (text,) = told(replace(run(), probe={"ahead": ["always_refuse", "copy_prompt_end"]}))
    assert "ignore the prompt" in text and "always refuse, copy prompt end" in text
    assert told(replace(run(), probe={"ahead": []})) == []


def test_a_judge_that_is_another_one_is_told_and_one_that_stays_is_not():
    counts = {"calls": 4.0, "answering_model/a": 3.0, "system_fingerprint/fp_1": 4.0}
    usage = {"calls": {"judge": counts}}
    assert told(replace(run(), provenance={"usage": usage})) == []
    usage = {"calls": {"judge": counts | {"answering_model/b": 1.0}}}
    (alert,) = alerts(replace(run(), provenance={"usage": usage}))
    assert alert.text.startswith("judge: the answering model changed within the run (a, b),")
    assert alert.section == "provenance"


def test_many_replies_that_failed_or_could_not_be_read_are_told_and_few_are_not():
    stages = {"before": {"n_failed": 1, "n_rollouts": 100}, "after": {"n_failed": 2}}
    assert told(run(stages)) == []
    stages["after"] |= {"n_rollouts": 100}
    (alert,) = alerts(run(stages))
    assert alert.text == "After training 2 of 100 generations (2%) could not be scored."
    assert alert.section == "replies"
    good = [reply(f"p{i}", float(i)) for i in range(8)]
    bad = [reply(name, -5.0, "no JSON") for name in "xy"]
    (text,) = told(run(replies=good + bad))
    assert (
        text == "Before training 2 of 10 generations (20%) could not be read, most often: no JSON. "
        "Fine-tune the model on examples of good replies first (docs/own-data.md)."
    )
    assert told(run(replies=good + bad[:1])) == []


def test_no_signal_where_the_generations_of_nearly_all_prompts_tie():
    tied = [reply(f"p{i}", 1.0) for i in range(9) for _ in range(2)]
    one = [reply("q", 0.0), reply("q", 1.0)]
    (text,) = told(run(replies=tied + one))
    assert text.startswith("No signal: before training all generations had one reward for 9 of 10")
    assert told(run(replies=tied + one + [reply("r", v) for v in (0.0, 1.0)])) == []
    assert told(run(replies=tied[::2])) == [], "single generations say nothing of it"


def test_generations_that_are_cut_off_at_the_end_are_told():
    nan = float("nan")
    (text,) = told(run(history={"truncated": (*(1.0,) * 50, *(0.0,) * 7, nan, 1.0, 1.0, 0.0)}))
    assert "last 10 steps 20%" in text and "policy.generation.max_new_tokens" in text
    assert told(run(history={"truncated": (1.0, *(0.0,) * 10)})) == []


def test_steps_in_which_training_and_generation_were_two_policies_are_told():
    name = "token_mult_prob_error"
    spike = (1.01,) * 59 + (3.0,)  # a single one is not a fault
    assert told(run(history={name: spike})) == told(run(history={"loss": (1.0,)})) == []
    (text,) = told(run(history={name: (1.01, 1.2, 1.4)}))
    assert text.startswith("In 2 of 3 steps") and "by a factor of 1.4 at most" in text
    (text,) = told(run(history={name: (math.nan, 1.01)}))
    assert text.startswith("In 1 of 2 steps")


def test_a_reward_that_rises_alone_is_told():
    steps = tuple(map(float, range(1, 13)))
    history = {"step": steps, "reward": steps, "env/gap": steps}
    stages = {"before": {"watched": {"metric": "gap", "better": "lower"}}}
    (alert,) = alerts(run(stages, history=history))
    assert alert.text.startswith("Step 8: over 8 steps the reward rose and gap did not improve.")
    assert alert.section == "training"
    stages["before"]["watched"]["better"] = "higher"
    assert told(run(stages, history=history)) == []
