import pytest

from environments.dharma.policy import SHIPPED, Policy, load_rego


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return load_rego(SHIPPED)
