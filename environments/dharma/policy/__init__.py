"""The policy: Rego that decides what a judge's ratings mean, in process or on an OPA server.

Rego answers "undefined" where no rule holds, and its engines differ in what they let pass, so
every way to a decision fails closed: a decision is complete and in range, or it is a `Failure`.

    decision.py   what a policy is given and must say, and the cases that every policy is tried with
    files.py      .rego files: read, refused, tested, and run by `environments.rego`
    server.py     an OPA server: asked within limits, tried, and held to what it was
    shipped/      the policy that is used where no other is named
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from environments.addresses import AbsolutePath, plain_url
from environments.dharma.policy.decision import (
    Decision,
    Policy,
    PolicyError,
    Violations,
    hash_text,
    policy_input,
    read_decision,
)
from environments.dharma.policy.files import check_rego, load_rego
from environments.dharma.policy.server import opa_policy

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

SHIPPED = Path(__file__).with_name("shipped")


class PolicySettings(BaseModel, extra="forbid", frozen=True, hide_input_in_errors=True):
    """A policy. Files that cannot be used are refused here, a server where it is first asked."""

    engine: Literal["regopy", "opa"] = "regopy"  #: in this process, or an OPA server
    path: AbsolutePath | None = Field(
        default=None, description="folder of .rego files; null for the shipped ones"
    )
    url: str | None = Field(
        default=None, description="of an OPA server, such as http://localhost:8181"
    )

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        return None if url is None else plain_url(url, ": it is kept with the run")

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if self.engine == "opa":
            if not self.url or self.path:
                raise ValueError("engine opa needs url, and its server holds the policy: no path")
            return self
        if self.url:
            raise ValueError("url is for engine opa")
        check_rego(self.path or SHIPPED)
        return self


def load_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name. Raises `PolicyError`."""
    if settings.engine == "opa":
        return opa_policy(str(settings.url))
    return load_rego(settings.path or SHIPPED)
