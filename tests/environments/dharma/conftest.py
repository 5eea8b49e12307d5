import pytest

from environments.dharma.policy import SHIPPED, rego_policy


@pytest.fixture(scope="module")
def shipped():
    return rego_policy(SHIPPED)
