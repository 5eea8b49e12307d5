import pytest

from environments.dharma.policy import SHIPPED, Policy, rego_policy


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return rego_policy(SHIPPED)
