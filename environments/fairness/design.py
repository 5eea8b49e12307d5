"""Design of a disparity audit: the attribute, the decision and the effects that are meant.

Everything else of this package takes it as data: the cases that come with the project are one
design (`spine.py`), a user's own file is another (`own_cases.py`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.base import Message, PromptRecord
from environments.fairness.decision import DecisionForm


@dataclass(frozen=True)
class Design:
    """An attribute, the decision on which it must have no effect, and the effects that are meant.

    The variants of a counterfactual set have the `values` of `attribute`, a key of their metadata;
    the first one is what the others are told relative to. `rates` are decisions that are reported
    by themselves: name -> the scored field that has its highest level then. `meant` has the
    metadata keys that may change a decision, their values with the least treatment first, and
    `effects` what their metrics are called: invasiveness at the last value minus that at the first.
    `crossed` are the patient factors with which the attribute is crossed, where metadata name them.
    """

    attribute: str
    values: tuple[str, ...]
    form: DecisionForm
    rates: Mapping[str, str]
    meant: Mapping[str, tuple[str, ...]]
    effects: Mapping[str, str]
    crossed: tuple[str, ...]
    #: Five decisions, the least invasive first: the values of all fields but the last, a sentence.
    constants: Sequence[tuple[Any, ...]]
    #: The messages of a prompt without the attribute.
    blinded: Callable[[PromptRecord], tuple[Message, ...]]
    #: The rate that emergencies are to have, where the cases know emergencies.
    emergency_rate: str = ""

    @property
    def relative_name(self) -> str:
        """The name of the metric that is relative to the first value."""
        return f"relative_to_{re.sub(r'[^a-z0-9]+', '_', self.values[0].casefold())}"

    def is_named(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a prompt says the value of the attribute in so many words."""
        is_named = metadata.get("cue", "named") == "named"
        return is_named and metadata.get(self.attribute) in self.values
