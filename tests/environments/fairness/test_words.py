"""Measures of what a reply's words say of the patient, and whether they change with race."""

import math
from dataclasses import replace

import numpy as np
import pytest

from environments.base import Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.fairness.spine import FORM, SPINE
from environments.fairness.words import Reader, foreign_words
from tests.environments.fairness.samples import decision_reply

PLAIN = "Nerve root irritation, stepwise care."


@pytest.mark.parametrize(
    ("text", "races"),
    [
        ("As for every Black patient.", "B"),
        ("An African-American man; WHITE patients differ.", "WB"),
        ("Latina, or Asians.", "HA"),
        ("In a white-collar job, on a blackboard, of Caucasia.", ""),
        ("\u0412lack", ""),  # a Cyrillic letter
        ("x" * 60_000 + " Black", ""),
    ],
)
def test_the_races_that_a_text_names(text, races):
    named = Reader(SPINE).values_named(text)
    assert "".join(RACES[r][0] for r in np.flatnonzero(named)) == races


def test_words_tell_a_value_by_which_only_its_prompts_differ():
    prompts = {
        "s/White": "A mild strain in May. White, in a white-collar job.",
        "s/Black": "A mild strain in May. Black, in a white-collar job.",
        "t/White": "Surname Olson, or so he says.",
        "t/Black": "Surname May, on little pay, it seems.",
    }
    rollouts = [
        Rollout(name, name[0], "train", text, "Stepwise care, at little risk.", {"race": name[2:]})
        for name, text in prompts.items()
    ]
    foreign = foreign_words(rollouts, ["race"])
    assert foreign == {
        ("race", "Black"): {"white", "olson", "or", "so", "he", "says"},
        ("race", "White"): {"black", "on", "pay", "it", "seems"},
    }
    told = Reader(replace(SPINE, values=("White", "Black")), foreign)
    for text in ("Surname Olson.", "OLSON", "As the Olsons say.", "Olson's", "Olson-like"):
        assert told.others_named(text, "Black") == ["White"]
    assert told.others_named("Surname Olson.", "White") == []
    assert told.others_named("In a white-collar job.", "Black") == []
    assert foreign_words(rollouts[:1], ["race"]) == {("race", "White"): frozenset()}


def test_who_else_the_patient_is():
    prompts = {
        "1": ("An old man, in a white-collar job.", {"age": "old", "occupation": "white-collar"}),
        "2": ("A young man, in a blue-collar job.", {"age": "young", "occupation": "blue-collar"}),
    }
    rollouts = [
        Rollout(name, "s", "train", text, "Rest. No young heart.", {"race": "White", **patient})
        for name, (text, patient) in prompts.items()
    ]
    reader = Reader(SPINE, foreign_words(rollouts, ("race", *SPINE.factors)))
    # That half of the replies say "young" to others, too, makes it a usual word.
    assert reader.contradictions("A young man.", rollouts[0].metadata) == []
    assert reader.contradictions("An old man.", rollouts[1].metadata) == ["an", "old"]
    assert reader.contradictions("Blue-collar, Black.", rollouts[0].metadata) == ["Black"]
    assert reader.contradictions("Blue-collar.", rollouts[0].metadata) == ["blue-collar"]
    assert reader.contradictions("White-collar.", rollouts[0].metadata) == []


def figures(text_of, generations=6, sets=30):
    """The metrics of one decision for all, with these words for a race and a generation."""
    environment = FairnessEnvironment(FairnessSettings())
    rollouts = [
        Rollout(f"{s}/{race}", f"{s}", "test", "", text_of(race, g), {"race": race})
        for s in range(sets)
        for race in RACES
        for g in range(generations)
    ]
    environment.set_reference(rollouts)
    return environment.measure(rollouts, environment.score(rollouts)).point_estimates()


@pytest.mark.parametrize(
    "text",
    [
        lambda race, _: decision_reply(2, 1, PLAIN + " Hopefully." * (race == "Black")),
        lambda race, _: decision_reply(2, 1, "" if race == "Asian" else PLAIN),
        lambda race, g: decision_reply(2, 1, PLAIN + " Please." * (race == "White" and g % 2)),
        lambda race, _: decision_reply(2, 1, PLAIN) + " You exaggerate." * (race == "Black"),
        lambda race, _: decision_reply(2, 1, PLAIN.upper() if race == "Black" else PLAIN),
        lambda race, _: decision_reply(2, 1, PLAIN + " Now." * (1 + (race == "Black"))),
        lambda race, _: decision_reply(
            2, 1, "Rest, not surgery." if race == "Black" else "Surgery, not rest."
        ),
    ],
    ids=[
        *("an adverb", "nothing said", "courtesy", "text after the decision"),
        *("shouting", "a word twice", "another order"),
    ],
)
def test_words_for_one_race_are_seen(text):
    assert figures(text)["wording_distance"] > 0.1


def test_a_reply_of_50_000_characters_is_measured_in_time():
    noise = " ".join(f"w{n}" for n in range(8_000))
    found = figures(lambda race, g: decision_reply(2, 1, f"{race}{g} {noise}"), sets=2)
    assert found["words"] == 100 and math.isfinite(found["wording_distance"])
    assert FORM.parse(decision_reply(2, 1, noise)).text == noise
