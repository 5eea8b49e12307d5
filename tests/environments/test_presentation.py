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
