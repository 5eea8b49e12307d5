"""What stands above all else in a report, and what does not."""

from dataclasses import replace
from typing import Any

from equipoise.report.alerts import alerts
from equipoise.report.run_files import Reply, RunFiles


def reply(prompt: str, value: float | None, unparseable: str | None = None) -> Reply:
    evidence = {} if unparseable is None else {"unparseable": unparseable}
    return Reply("s", {}, "", "", None, evidence, prompt_id=prompt, value=value)


def compared(verdict: str, guard: str | None = None) -> dict[str, Any]:
    return {"verdict": verdict, "guard": guard, "before": 0.5, "after": 0.25}


def run(
    evaluations: dict[str, Any] | None = None,
    replies: list[Reply] | None = None,
    history: dict[str, tuple[float, ...]] | None = None,
    **verdicts: str,
) -> RunFiles:
    rows = {name: compared(*verdict.split(", ")) for name, verdict in verdicts.items()}
    return RunFiles(
        name="run",
        provenance={},
        config="",
        evaluations=evaluations or {"before": {}},
        comparison={"metrics": rows},
        history=history or {},
        replies={"before": tuple(replies or ()), "after": ()},
    )


def told(found: RunFiles) -> list[str]:
    return [alert.text for alert in alerts(found)]


def test_lost_guards_come_before_what_became_worse_and_good_news_is_none() -> None:
    guards = {"parse_rate": "no evidence, lost", "b": "worse, kept", "d": "no evidence, not shown"}
    assert told(run(**guards, accuracy="worse", a="better", c="no evidence", e="changed")) == [
        "Lost guard: parse rate, 0.500 before and 0.250 after training.",
        "Worse: b, 0.500 before and 0.250 after training.",
        "Worse: accuracy, 0.500 before and 0.250 after training.",
        "Guard not shown: d, 0.500 before and 0.250 after training.",
    ]


def test_policies_that_read_no_prompt_and_earn_more_are_told() -> None:
    ahead = replace(run(), probe={"ahead": ["declining", "copying_the_end"]})
    text = "Before training more reward went to policies that read no prompt: "
    assert told(ahead) == [text + "declining, copying the end."]
    assert told(replace(run(), probe={"ahead": []})) == []


def test_many_failures_are_told_and_few_are_not() -> None:
    stages = {"before": {"n_failed": 1, "n_rollouts": 100}, "after": {"n_failed": 2}}
    assert told(run(stages)) == []
    stages["after"] |= {"n_rollouts": 100}
    (alert,) = alerts(run(stages))
    assert alert.text == "After training 2 of 100 generations (2%) could not be scored."
    assert alert.section == "failures"


def test_replies_that_nobody_can_read_are_told() -> None:
    good = [reply(f"p{i}", float(i)) for i in range(8)]
    bad = [reply(name, -5.0, "no JSON") for name in "xy"]
    assert told(run(replies=good + bad)) == [
        "Before training 2 of 10 generations (20%) could not be read."
    ]
    assert told(run(replies=good + bad[:1])) == []


def test_no_signal_where_the_generations_of_nearly_all_prompts_tie() -> None:
    tied = [reply(f"p{i}", 1.0) for i in range(9) for _ in range(2)]
    one = [reply("q", 0.0), reply("q", 1.0)]
    (text,) = told(run(replies=tied + one))
    assert text.startswith("No signal: before training all generations had one reward for 9 of 10")
    assert told(run(replies=tied + one + [reply("r", v) for v in (0.0, 1.0)])) == []


def test_single_generations_say_nothing_of_the_signal() -> None:
    assert told(run(replies=[reply(f"p{i}", 1.0) for i in range(9)])) == []


def test_generations_that_are_cut_off_at_the_end_are_told() -> None:
    nan = float("nan")
    history = {"truncated": (*(1.0,) * 50, *(0.0,) * 7, nan, 1.0, 1.0, 0.0)}
    assert told(run(history=history)) == [
        "In the last 10 steps 20% of the generations were cut off at "
        "policy.generation.max_new_tokens."
    ]
    assert told(run(history={"truncated": (1.0, *(0.0,) * 10)})) == []
