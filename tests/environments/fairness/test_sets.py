"""Rollouts into arrays: any order, whole sets only."""

from functools import partial

import pytest

from environments.base import IncompleteSetError, Rollout
from environments.fairness import sets as arrays
from environments.fairness.decision import Decision
from environments.fairness.spine import FORM, RACES, SPINE

gather_sets = partial(arrays.gather_sets, design=SPINE)
decision_points = partial(arrays.decision_points, design=SPINE)


def rollout(set_id: str, race: str) -> Rollout:
    return Rollout(f"{set_id}/{race}", set_id, "train", "", "", {"race": race, "of": set_id})


def medication(level: int) -> Decision:
    return FORM.decision(level, 0, 0.0, 0, 0, 0, "")


def test_every_rollout_goes_to_its_set_its_race_and_the_next_free_column() -> None:
    rollouts = [rollout(s, race) for _ in range(2) for race in reversed(RACES) for s in "ba"]
    parsed = [medication(i % 5) for i in range(len(rollouts))]
    sets = gather_sets(rollouts, decision_points(parsed))
    assert sets.set_ids == ("b", "a")
    assert [m["of"] for m in sets.metadata] == ["b", "a"]
    assert sets.points.shape == (2, len(RACES), 2, 6)
    assert sets.position[:3].tolist() == [[0, 3, 0], [1, 3, 0], [0, 2, 0]]
    assert sets.position[8].tolist() == [0, 3, 1]
    at = tuple(sets.position.T)
    assert sets.points[..., 0][at].tolist() == [d.levels[0] for d in parsed]


@pytest.mark.parametrize(
    ("rollouts", "said"),
    [
        ([rollout("a", race) for race in RACES[:3]], "Asian 0"),
        ([rollout("a", race) for race in (*RACES, "White")], "needs 2 of each race, has White 2"),
        (
            [rollout("a", race) for race in RACES * 2] + [rollout("b", race) for race in RACES],
            "set 'b' needs 2 of each race",
        ),
        ([rollout("a", "Martian")], "race 'Martian'"),
        ([Rollout("p", "a", "control", "", "")], "race None"),
    ],
    ids=["race missing", "one too many", "sets differ", "unknown race", "no race"],
)
def test_a_part_of_a_set_is_the_callers_bug(rollouts: list[Rollout], said: str) -> None:
    with pytest.raises(IncompleteSetError, match=said):
        gather_sets(rollouts, decision_points([medication(0)] * len(rollouts)))
