"""The policy: Rego that decides what a judge's ratings mean, in process or on an OPA server.

Rego answers "undefined" where no rule holds, and its engines differ in what they let pass, so
every way to a decision fails closed: a decision is complete and in range, or it is a `Failure`.

    decision.py   what a policy is given and what it must say
    cases.py      what every policy is tried with, and what it must make of that
    files.py      .rego files: read, refused, tested, and run by `environments.rego`
    server.py     an OPA server: asked within limits, tried, and held to what it was
    settings.py   the keys of the configuration
    shipped/      the policy that is used where no other is named
"""

from environments.dharma.policy.decision import (
    Decision,
    Policy,
    PolicyError,
    Violations,
    hash_text,
    policy_input,
    read_decision,
)
from environments.dharma.policy.files import load_rego
from environments.dharma.policy.server import opa_policy
from environments.dharma.policy.settings import SHIPPED, PolicySettings, load_policy

__all__ = [
    "SHIPPED",
    "Decision",
    "Policy",
    "PolicyError",
    "PolicySettings",
    "Violations",
    "hash_text",
    "load_policy",
    "load_rego",
    "opa_policy",
    "policy_input",
    "read_decision",
]
