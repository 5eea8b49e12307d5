"""Which prompts are shown of any task, and what stands beside their replies."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.presentation import Presentation
from equipoise.report.prompt_examples import (
    FAILED,
    FELL,
    HIGHEST,
    LOWEST,
    MEDIAN,
    MEDIAN_CHANGE,
    ROSE,
    SAME,
    PromptExample,
    prompt_examples,
)
from equipoise.report.run_files import Reply, RunFiles

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


def reply(prompt: str, value: float | None, **found: Any) -> Reply:
    """A reply to a prompt, whose text says its reward."""
    return Reply(
        set_id=prompt,
        metadata=found.pop("metadata", {}),
        prompt=f"<|user|>{prompt}",
        completion=found.pop("completion", f"worth {value}"),
        error="timeout" if value is None else None,
        evidence=found,
        prompt_id=prompt,
        value=value,
        components={"format": 1.0},
    )


def run(before: Sequence[Reply], after: Sequence[Reply] = (), one_of_each: str = "") -> RunFiles:
    stages = {"before": tuple(before)} | ({"after": tuple(after)} if after else {})
    return RunFiles(
        evaluations={stage: {"metrics": {}} for stage in stages},
        replies={"after": ()} | stages,
        presentation=Presentation(one_of_each=one_of_each),
    )


def changed(changes: Mapping[str, float], **found: Any) -> RunFiles:
    """A run in which these prompts changed so much from a reward of 1."""
    before = [reply(name, 1.0, **found) for name in changes]
    return run(before, [reply(name, 1.0 + change, **found) for name, change in changes.items()])


def reasons(found: RunFiles) -> dict[str, str]:
    return {example.title: example.reason for example in prompt_examples(found)[1]}


def only(found: RunFiles) -> PromptExample:
    (example,) = prompt_examples(found)[1]
    return example


def test_the_largest_changes_and_one_unchanged_are_shown() -> None:
    found = changed({"a": 0.1, "b": 0.5, "c": -0.2, "d": 0.0, "e": -0.4})
    assert reasons(found) == {"b": ROSE, "e": FELL, "d": SAME}
    rule, _ = prompt_examples(found)
    assert "rose for 2 of 5 prompts, fell for 2 and stayed the same for 1." in rule


def test_of_the_unchanged_the_one_of_middle_reward_is_shown_and_of_equal_ones_the_first() -> None:
    values = {"right": 2.0, "wrong": 0.0, "half": 1.0}
    replies = [reply(name, value) for name, value in values.items()]
    assert reasons(run(replies, replies)) == {"half": SAME}
    assert reasons(changed({"b": 0.5, "a": 0.5, "c": 0.0})) == {"b": ROSE, "c": SAME}


def test_without_an_unchanged_prompt_the_median_change_is_shown() -> None:
    assert reasons(changed({"a": 0.1, "b": 0.2, "c": 0.9})) == {"c": ROSE, "b": MEDIAN_CHANGE}


def test_where_all_became_worse_nothing_is_told_as_a_rise() -> None:
    assert reasons(changed({"a": -0.1, "b": -0.3, "c": -0.2})) == {"b": FELL, "c": MEDIAN_CHANGE}


def test_what_could_not_be_scored_is_shown_and_counted_apart() -> None:
    before = [reply("a", 1.0), reply("b", 1.0), reply("b", None, completion="cut off")]
    after = [reply("a", 2.0), reply("b", None)]
    rule, examples = prompt_examples(run(before, after))
    assert "; for 1 it is not known." in rule
    failed = examples[-1]
    assert (failed.reason, failed.rewards) == (FAILED, "1 \u2192 \u2013")
    assert [shown.problem for shown in failed.replies] == ["could not be scored: timeout"] * 2
    assert failed.replies[0].reply == "cut off"
    assert failed.replies[0].all_rewards == "1, \u2013"


def test_one_of_each_group_that_the_task_names() -> None:
    values = {"a": ("S1", 0.1), "b": ("S1", 0.2), "c": ("S1", 0.3), "d": ("S0", 0.0)}
    replies = {
        stage: [
            reply(name, 1.0 + at * change, metadata={"scope": scope, "tier": name})
            for name, (scope, change) in values.items()
        ]
        for at, stage in enumerate(("before", "after"))
    }
    found = run(replies["before"], replies["after"], "scope")
    assert reasons(found) == {
        "c": ROSE,
        "d": f"{SAME}; Median of scope S0",
        "b": "Median of scope S1",
    }
    assert "the middle one of each scope" in prompt_examples(found)[0]
    for key in ("", "unknown"):
        ungrouped = run(replies["before"], replies["after"], key)
        assert set(reasons(ungrouped)) == {"c", "d"}


def test_before_training_has_ended_the_rewards_themselves_choose() -> None:
    found = run([reply("a", 0.2), reply("b", 0.9), reply("c", 0.5)])
    assert reasons(found) == {"b": HIGHEST, "a": LOWEST, "c": MEDIAN}
    assert [shown.stage for shown in prompt_examples(found)[1][0].replies] == ["Before training"]


def test_only_prompts_of_both_stages_are_compared() -> None:
    assert set(reasons(run([reply("a", 1.0), reply("b", 1.0)], [reply("b", 1.0)]))) == {"b"}
    assert prompt_examples(run([reply("a", 1.0)], [reply("b", 1.0)])) == ("", ())
    assert prompt_examples(run([])) == ("", ())


def test_of_several_replies_the_one_nearest_to_their_mean_is_shown() -> None:
    before = [reply("a", value) for value in (0.0, 0.6, 1.0)]
    shown = only(run(before, [reply("a", 0.5)])).replies
    assert [one.reward for one in shown] == ["0.6", "0.5"]
    assert [one.all_rewards for one in shown] == ["0, 0.6, 1", ""]


def test_components_and_evidence_are_told_and_what_differs_is_marked() -> None:
    label = {"tier": "C", "violations": {"dharma": True}}
    before = reply("a", 0.5, label=label, documents=[f"d{n}" for n in range(12)], answer=None)
    after = reply("a", 0.5, label=label | {"violations": {"dharma": False}}, documents=[])
    first, second = only(run([before], [after])).replies
    told = {line.name: [(f.name, f.value, f.differs) for f in line.fields] for line in first.lines}
    assert told["components"] == [("format", "1", False)]
    assert told["label"] == [("tier", "C", False), ("violations dharma", "yes", True)]
    assert told["documents"][0][1].endswith("d9; 2 more")
    assert told["answer"] == [("", "\u2013", True)]
    assert second.lines[-1].fields[0].value == "none"


def test_question_and_short_metadata_are_told() -> None:
    metadata = {"question": "Why?", "gold": "yes", "shown": False, "context": "x" * 99, "plan": {}}
    example = only(changed({"a": 0.0}, metadata=metadata))
    assert (example.title, example.facts) == ("Why?", "gold yes, shown no")


def test_why_a_reply_could_not_be_read_is_told_once() -> None:
    shown = only(changed({"a": 0.0}, unparseable="no answer")).replies[0]
    assert shown.problem == "could not be read: no answer"
    assert [line.name for line in shown.lines] == ["components"]


def test_long_texts_are_clipped() -> None:
    found = {f"k{n}": "x" * 10_000 for n in range(99)}
    shown = only(changed({"a": 0.0}, completion="y" * 100_000, **found)).replies[0]
    assert len(shown.reply) < 2_000
    assert sum(len(f.value) for line in shown.lines for f in line.fields) < 20_000
    assert shown.lines[-1].fields[0].value == "60 more values"


@pytest.mark.deep
@given(st.dictionaries(st.text(max_size=5), JSON), st.dictionaries(st.text(max_size=5), JSON))
def test_whatever_metadata_and_evidence_hold_is_no_error(
    metadata: dict[str, Any], evidence: dict[str, Any]
) -> None:
    one = Reply("s", metadata, "p", "c", None, evidence, "p", 1.0)
    found = run([one], [one], next(iter(metadata), ""))
    assert only(found).reason == SAME


@pytest.mark.parametrize("value", [1234.5, -0.25, 1 / 3])
def test_rewards_have_three_digits(value: float) -> None:
    words = {1234.5: "1,234", -0.25: "\u22120.25", 1 / 3: "0.333"}
    assert only(run([reply("a", value)])).rewards == words[value]
