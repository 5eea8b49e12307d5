"""What a task says of itself survives the file that it is kept in."""

import json

import pytest

from environments.contract import Environment
from environments.dharma import DharmaEnvironment
from environments.fairness import FairnessEnvironment
from environments.presentation import Presentation
from environments.pubmedqa import PubMedQAEnvironment
from environments.rag import RagEnvironment

ENVIRONMENTS = [FairnessEnvironment, DharmaEnvironment, PubMedQAEnvironment, RagEnvironment]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_it_is_read_as_it_was_written(environment: type[Environment]) -> None:
    content = environment.presentation.to_json()
    assert Presentation.from_json(json.loads(json.dumps(content))) == environment.presentation


def test_a_file_that_says_nothing_has_the_defaults() -> None:
    assert Presentation.from_json({}) == Presentation()


@pytest.mark.parametrize("content", [[], {"words": 3}, {"charts": [{"metric": "a"}]}, {"sets": {}}])
def test_a_damaged_one_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Presentation.from_json(content)
